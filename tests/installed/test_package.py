"""The sdist and the wheel: their contents, sizes, and supported versions of Python."""

import re
import subprocess
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from specbench import __version__
from tests.installed.environment import ROOT, BuiltFiles, build, clean, light, pythons

pytestmark = pytest.mark.docs

WHEEL_MIB, INSTALLED_MIB = 12, 18  # the bundled models are most of it
NEEDED = (
    *("py.typed", "pairings.yaml", "workloads/chat.jsonl", "workloads/tools.yaml"),
    *("demo/models/target/model.safetensors", "demo/MODEL_CARD.md"),
    *("report/template.html", "families.json"),
)
FIRST_LOOK = (
    *("--version", "--help", "list pairings", "list workloads", "list methods", "list metrics"),
    *("run demo/draft --dry-run", "init mine --target demo:target --draft demo:draft"),
)


def in_wheel(built: BuiltFiles) -> list[zipfile.ZipInfo]:
    with zipfile.ZipFile(built.wheel) as wheel:
        return wheel.infolist()


def metadata(built: BuiltFiles) -> Message:
    with zipfile.ZipFile(built.wheel) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(wheel.read(name))


def run_installed(bin_folder: Path, words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [bin_folder / "specbench", *words.split()]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=clean())


def test_sdist_and_wheel_have_the_version_of_the_program(built, bin_folder, tmp_path):
    assert built.sdist.name == f"specbench_llm-{__version__}.tar.gz"
    assert built.wheel.name == f"specbench_llm-{__version__}-py3-none-any.whl"
    assert run_installed(bin_folder, "--version", tmp_path).stdout == f"specbench {__version__}\n"


def test_the_wheel_has_data_types_and_license_only(built):
    names = [info.filename for info in in_wheel(built)]
    assert {f"specbench/{name}" for name in NEEDED} <= set(names)
    assert f"specbench_llm-{__version__}.dist-info/licenses/LICENSE" in names
    assert {name.split("/")[0] for name in names} == {
        "specbench",
        f"specbench_llm-{__version__}.dist-info",
    }
    assert not [name for name in names if name.endswith((".pyc", ".so"))]


def test_the_wheel_is_small(built):
    assert built.wheel.stat().st_size < WHEEL_MIB * 2**20
    assert sum(info.file_size for info in in_wheel(built)) < INSTALLED_MIB * 2**20


def test_the_sdist_has_all_that_its_tests_need(built):
    with tarfile.open(built.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    kept = [name for name in tracked if not name.startswith((".ci/", "reports/"))]
    assert not set(kept) - names


def test_package_metadata_has_python_version_license_and_entry_point(built):
    fields = metadata(built)
    assert fields["Requires-Python"] == ">=3.11"
    assert fields["License-Expression"] == "Apache-2.0"
    with zipfile.ZipFile(built.wheel) as wheel:
        entry = wheel.read(f"specbench_llm-{__version__}.dist-info/entry_points.txt").decode()
    assert "specbench = specbench.cli:main" in entry


def test_the_package_readme_has_no_broken_links(built, tmp_path):
    def links(of: BuiltFiles) -> set[str]:
        return set(re.findall(r"\]\(([^)]+)\)", str(metadata(of).get_payload())))

    there = set(re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text()))
    assert len(there) > 15
    assert not metadata(built).get_all("Project-URL")
    assert links(built) == {link for link in there if link.startswith("https://")}
    url = "https://example.org/specbench/blob/main"
    published = build(tmp_path, url)
    assert {link.removesuffix("?raw=true") for link in links(published)} == {
        link if link.startswith("https://") else f"{url}/{link}" for link in there
    }
    assert len(metadata(published).get_all("Project-URL") or []) == 2


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).name)
def test_other_python_versions_compile_the_code_and_read_runs(python, built, bin_folder, tmp_path):
    """Without torch: every file compiles, first commands answer, a run of the first is read."""
    other = light(built.wheel, python, metadata(built).get_all("Requires-Dist") or [])
    every = [
        "-c",
        "import compileall, specbench; "
        "exit(not compileall.compile_dir(specbench.__path__[0], quiet=1, force=True))",
    ]
    subprocess.run([other / "python", *every], check=True, env=clean(), cwd=tmp_path)
    for words in FIRST_LOOK:
        done = run_installed(other, words, tmp_path)
        assert done.returncode == 0, (words, done.stderr)
    wrong = run_installed(other, "run demo/daft", tmp_path)
    assert wrong.returncode == 2
    assert "demo/draft" in wrong.stderr
    small = "run demo/draft -w code --num-prompts 5 -k 2 --max-new-tokens 24 --threads 1"
    assert run_installed(bin_folder, small, tmp_path).returncode == 0
    for words in ("report latest", "list runs", "baseline latest --output b.json"):
        done = run_installed(other, words, tmp_path)
        assert done.returncode == 0, (words, done.stderr)
