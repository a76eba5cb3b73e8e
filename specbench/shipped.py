"""Files that ship with the package: inside it once installed, next to it in a checkout."""

from pathlib import Path

PACKAGE = Path(__file__).parent
DEMO_MODELS, DEMO_WORKLOADS = (PACKAGE / "demo" / name for name in ("models", "workloads"))


def shipped(name: str) -> Path:
    """The path of `pairings.yaml` or `workloads`; the wheel puts both inside the package."""
    installed = PACKAGE / name
    return installed if installed.exists() else PACKAGE.parent / name
