"""The embedded pair: where its models and its own workloads lie; `tools/demo` made them."""

from pathlib import Path

ROOT = Path(__file__).parent
MODELS = ROOT / "models"
WORKLOADS = ROOT / "workloads"
