"""One version, budgets of size and of imports; `make test-docs` builds it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from specbench import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SHIPPED_MIB = 18  # 13 of it are the bundled models
MODULES = 350  # 228 in November 2026, Python's own among them
HEAVY = ("torch", "transformers", "numpy", "pandas", "matplotlib", "scipy", "jinja2", "aiohttp")


def test_the_version_is_written_once_and_the_same_everywhere():
    assert "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "specbench/__init__.py"
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [__version__]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+?),? ", changes, re.MULTILINE)[0] == __version__


def test_pipx_run_finds_the_command_by_the_packages_name():
    assert {"specbench", PROJECT["project"]["name"]} == set(PROJECT["project"]["scripts"])


def test_shipped_files_stay_below_the_size_limit():
    files = [ROOT / "pairings.yaml", *(ROOT / "workloads").iterdir()]
    files += [f for f in (ROOT / "specbench").rglob("*") if "__pycache__" not in f.parts]
    assert (ROOT / "specbench" / "py.typed") in files
    assert sum(file.stat().st_size for file in files if file.is_file()) < SHIPPED_MIB * 2**20


def test_every_path_in_the_sdist_include_list_exists():
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert all((ROOT / name).exists() for name in included)
    needed = {path.name for path in ROOT.iterdir() if path.suffix in (".md", ".cff", ".txt")}
    assert needed <= set(included)


def test_the_preflight_imports_few_modules(tmp_path):
    script = (
        "import sys\nfrom specbench.cli import main\n"
        "for words in ([], ['--help'], ['run', '--help']):\n"
        "    sys.argv = ['specbench', *words]\n"
        "    try:\n        main()\n    except SystemExit as done:\n        assert not done.code\n"
        "print('\\n', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    modules = done.stdout.splitlines()[-1].split()
    assert not set(HEAVY) & set(modules)
    assert len(modules) < MODULES
