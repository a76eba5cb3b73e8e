"""The package as a user gets it: an sdist, a wheel made of it, and environments with the wheel.

Slow parts (an environment with build tools, one per version of Python with everything but torch
and transformers) are in $ENGINES (default: ~/.cache/specbench-engines) and made once.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
ENGINES = Path(os.environ.get("ENGINES") or Path.home() / ".cache" / "specbench-engines")
VERSIONS = ("3.11", "3.12", "3.13")
_TOOLS = ("build", "hatchling")
_HEAVY = ("torch", "transformers")  # wheels of them are not at hand for every Python


class BuiltFiles(NamedTuple):
    """Files as they would be published."""

    sdist: Path
    wheel: Path


def build(folder: Path, url: str = "") -> BuiltFiles:
    """Build both, the wheel from the unpacked sdist: what the sdist lacks, the wheel lacks."""
    tools = _venv(sys.executable, ENGINES / "build-tools", _TOOLS)
    command = [tools, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    environment = clean() | {"SPECBENCH_URL": url}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return BuiltFiles(sdist, wheel)


def installed(wheel: Path, folder: Path) -> Path:
    """The bin folder of a new environment: the wheel, and all else from the interpreter's own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    _install(folder / "bin" / "python", wheel)
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def light(wheel: Path, python: str, requirements: list[str]) -> Path:
    """The bin folder of an environment of another Python, without torch and transformers."""
    wanted = [r for r in requirements if not re.match("|".join(_HEAVY), r)]
    version = Path(python).name.removeprefix("python")
    interpreter = _venv(python, ENGINES / f"light-{version}", wanted)
    _install(interpreter, wheel)
    return interpreter.parent


def pythons() -> list[str]:
    """The interpreters of supported versions on this machine, other than the running one."""
    paths = {}
    for folder in sorted((Path.home() / ".pyenv" / "versions").glob("3.*")):
        version = ".".join(folder.name.split(".")[:2])
        paths[version] = str(folder / "bin" / f"python{version}")
    for version in VERSIONS:
        paths.setdefault(version, shutil.which(f"python{version}") or "")
    running = f"3.{sys.version_info.minor}"
    return [path for v, path in paths.items() if v in VERSIONS and v != running and path]


def clean() -> dict[str, str]:
    """This process's environment without the checkout in it."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}


def _venv(python: str, folder: Path, packages: "tuple[str, ...] | list[str]") -> Path:
    """The interpreter of an environment with the packages; an incomplete one is made again."""
    interpreter, stamp = folder / "bin" / "python", folder / "packages.txt"
    listed = "\n".join(packages)
    if not (stamp.exists() and stamp.read_text() == listed):
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([python, "-m", "venv", folder], check=True, env=clean())
        install = [interpreter, "-m", "pip", "install", "-q", *packages]
        subprocess.run(install, check=True, env=clean())
        stamp.write_text(listed)
    return interpreter


def _install(python: Path, wheel: Path) -> None:
    command = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps"]
    subprocess.run([*command, "--force-reinstall", wheel], check=True, env=clean())
