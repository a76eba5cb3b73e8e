"""The demo models: the folders of the models and of their workloads, made by `tools/demo`."""

from pathlib import Path

ROOT = Path(__file__).parent
MODELS = ROOT / "models"
WORKLOADS = ROOT / "workloads"
