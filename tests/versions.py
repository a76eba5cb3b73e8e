"""Runs the tests on the oldest versions that pyproject.toml allows, and on the newest released.

    python -m tests.versions oldest            run the whole suite there
    python -m tests.versions newest tests/fit  run a part of it
    python -m tests.versions raise             run it on what is newer than the bounds, raise them

The environments are in $ENGINES (default: ~/.cache/specbench-engines) and are kept: making them
takes minutes and some GB each. `newest` is what `pip install .` brings today.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
ENGINES = Path(os.environ.get("ENGINES") or Path.home() / ".cache" / "specbench-engines")
OLDEST, NEWEST = "oldest", "newest"
# What the checks of source code need; their versions change nothing in a test.
_OF_SOURCE = re.compile(r"mypy|ruff|types-.*|.*-stubs")


def python_of(name: str) -> Path:
    return ENGINES / name / "bin" / "python"


def requirements(root: Path = ROOT) -> Iterator[Requirement]:
    """What an installation with tests needs, each with its bounds."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for line in (*project["dependencies"], *extras["quant"], *extras["dev"]):
        requirement = Requirement(line)
        if requirement.name != project["name"] and not _OF_SOURCE.fullmatch(requirement.name):
            yield requirement


def bound(requirement: Requirement, operator: str) -> str | None:
    """The version after this operator; None without one."""
    found = (part.version for part in requirement.specifier if part.operator == operator)
    return next(found, None)


def make(name: str, *, is_bounded: bool = True) -> Path:
    """The interpreter of an environment with these versions, made or brought up to date."""
    python = python_of(name)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", ENGINES / name], check=True)
    wanted = []
    for requirement in requirements():
        least, limit = bound(requirement, ">="), bound(requirement, "<")
        wanted.append(
            f"{requirement.name}=={least}"
            if name == OLDEST
            else f"{requirement.name}>={least}" + (f",<{limit}" if limit and is_bounded else "")
        )
    stamp = ENGINES / name / "requirements.txt"
    text = "\n".join(wanted)
    if name == NEWEST or not stamp.exists() or stamp.read_text("utf-8") != text:
        how = ["install", "-q", "--upgrade", "--upgrade-strategy", "eager"]
        subprocess.run([python, "-m", "pip", *how, *wanted], check=True)
        stamp.write_text(text, encoding="utf-8")
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "-e", ROOT], check=True)
    return python


def run(python: Path, arguments: Sequence[str]) -> int:
    """Pytest's exit code."""
    options = ["-n", "auto", "--dist", "worksteal", *arguments]
    return subprocess.run([python, "-m", "pytest", *options], cwd=ROOT).returncode


def raise_bounds(python: Path, root: Path = ROOT) -> None:
    """Write bounds above the versions in this environment, and pin them in constraints.txt."""
    show = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    project, pins = root / "pyproject.toml", root / "constraints.txt"
    text, pinned = project.read_text("utf-8"), pins.read_text("utf-8")
    for requirement in requirements(root):
        if (limit := bound(requirement, "<")) is None:
            continue
        name = requirement.name
        got = Version(subprocess.check_output([python, "-c", show, name], text=True).strip())
        if got >= Version(limit):
            above = f"{got.major}.{got.minor + 1}"
            text, count = re.subn(rf'("{name}>=[^"<]*,<){re.escape(limit)}', rf"\g<1>{above}", text)
            if not count:
                raise SystemExit(f'pyproject.toml: write "{name}>=LEAST,<LIMIT"')
        if name != "torch":  # of which not every release has a build for CPUs
            pinned = re.sub(rf"(?m)^{name}==.*$", f"{name}=={got.base_version}", pinned)
    project.write_text(text, encoding="utf-8")
    pins.write_text(pinned, encoding="utf-8")


def main(what: str, *arguments: str) -> int:
    if what not in (OLDEST, NEWEST, "raise") or (what == "raise" and arguments):
        raise SystemExit(__doc__)
    python = make(OLDEST if what == OLDEST else NEWEST, is_bounded=what != "raise")
    code = run(python, arguments)
    if what == "raise" and code == 0:
        raise_bounds(python)
    return code


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] or [""])))
