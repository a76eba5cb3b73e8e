"""Makes the environment with the oldest transformers that we support, outside the tree, once.

    python tests/families/environment.py

It is in $ENGINES (default: ~/.cache/specbench-engines) and takes torch and all else from the
environment of the interpreter that makes it: transformers' releases need different versions of
huggingface_hub, but of no other package.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ENGINES = Path(os.environ.get("ENGINES") or Path.home() / ".cache" / "specbench-engines")
OLDEST = "5.17.0"
FOLDER = ENGINES / f"transformers-{OLDEST}"
PYTHON = FOLDER / "bin" / "python"
_SHARED = "shared.pth"


def make() -> None:
    """Make all that is missing; the last step marks it as complete."""
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(FOLDER)}))
    shared = packages / _SHARED
    if not shared.exists():
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
        install = ["-m", "pip", "install", "-q", f"transformers=={OLDEST}"]
        subprocess.run([PYTHON, *install], check=True)
    # Written last, and every time: pip must not see the other environment, which may have moved.
    shared.write_text(sysconfig.get_path("purelib") + "\n")


if __name__ == "__main__":
    make()
