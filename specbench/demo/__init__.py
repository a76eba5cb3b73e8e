"""The embedded pair: where its models and its own workloads lie."""

from pathlib import Path

ROOT = Path(__file__).parent
MODELS = ROOT / "models"
WORKLOADS = ROOT / "workloads"
