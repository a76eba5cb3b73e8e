"""Makes the environment in which other libraries write heads, outside the tree, once.

    python tests/foreign_heads/environments.py

It is in $ENGINES (default: ~/.cache/specbench-engines) with the libraries of `PACKAGES` and what
they import; torch and all other packages are those of the Python that runs this. The libraries
require more (servers, trackers of experiments), which writing a head does not need.
"""

import os
import subprocess
import sys
from pathlib import Path
from sysconfig import get_path

ENGINES = Path(os.environ.get("ENGINES") or Path.home() / ".cache" / "specbench-engines")
FOLDER = ENGINES / "foreign_heads"
PYTHON = FOLDER / "venv" / "bin" / "python"

TRANSFORMERS = "transformers==5.8.1"  # that all of the libraries run with
PACKAGES = (
    *("speculators==0.9.0", "hs-connectors==0.9.0", "specforge==0.2.0", "nvidia-modelopt==0.47.0"),
    "dflash==0.1.0",
)
IMPORTED = (
    *("loguru", "pydantic-settings", "python-dotenv", "openai", "distro", "jiter", "sniffio"),
    *("datasets", "dill", "multiprocess", "xxhash", "pyarrow", "aiohttp", "aiohappyeyeballs"),
    *("aiosignal", "frozenlist", "multidict", "yarl", "propcache", "attrs", "fsspec"),
    *("omegaconf", "antlr4-python3-runtime==4.9.*", "pulp<4", "ninja", "accelerate"),
    *("requests", "urllib3", "charset-normalizer", "idna", "certifi"),
)


def make() -> None:
    """The environment, unless it is there with the same packages."""
    made_of = FOLDER / "packages.txt"
    wanted = "\n".join([sys.version, TRANSFORMERS, *PACKAGES, *IMPORTED])
    if made_of.exists() and made_of.read_text() == wanted:
        return
    _run(sys.executable, "-m", "venv", "--clear", PYTHON.parents[1])
    _run(PYTHON, "-m", "pip", "install", "-q", TRANSFORMERS)
    _run(PYTHON, "-m", "pip", "install", "-q", "--no-deps", *PACKAGES, *IMPORTED)
    site_packages = subprocess.run(
        [PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    Path(site_packages, "beside.pth").write_text(get_path("purelib"))
    made_of.write_text(wanted)


def _run(*command: str | Path) -> None:
    print(*command, flush=True)
    subprocess.run(command, check=True)


if __name__ == "__main__":
    make()
