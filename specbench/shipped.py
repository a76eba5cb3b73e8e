"""Files that travel with the package: inside it once installed, beside it in a checkout."""

from pathlib import Path

PACKAGE = Path(__file__).parent


def shipped(name: str) -> Path:
    """Where `pairings.yaml` or `workloads` lies; the wheel puts both inside the package."""
    installed = PACKAGE / name
    return installed if installed.exists() else PACKAGE.parent / name
