import dataclasses
import getpass
import json
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from fake_nvml import FakeGpu, FakeNvml

from specbench import __version__
from specbench.probes import environment
from specbench.probes.environment import (
    cpu_model,
    describe_environment,
    git_commit,
    package_versions,
    program_name,
)
from specbench.probes.gpu import Probe, open_probe
from specbench.records import Environment
from specbench.runs.codec import decode_line, encode_line

FAKE_GIT = f"""#!{sys.executable}
import json, os, pathlib, sys
assert os.environ["GIT_OPTIONAL_LOCKS"] == "0"
_, option, folder, verb, *rest = sys.argv
assert option == "-C"
if verb == "describe":
    assert "--dirty" not in rest and "--abbrev=40" in rest
answers = pathlib.Path(folder, "answers.json")
if not answers.exists():
    sys.exit("fatal: not a git repository")
print(json.loads(answers.read_text()).get(verb, ""))
"""


@pytest.fixture
def fake_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git that prints the texts in the folder's answers.json; the folder is the working one."""
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(FAKE_GIT)
    program.chmod(0o755)
    monkeypatch.setattr(environment, "git_commit", git_commit)  # not looked up once
    monkeypatch.setenv("PATH", str(program.parent))
    folder = tmp_path / "checkout"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_the_environment_records_versions_packages_and_hardware():
    environment = describe_environment("cpu", 2, ["specbench", "run"], Probe("no GPU here"))

    assert environment.specbench_version == __version__
    assert environment.python == platform.python_version()
    assert environment.packages["torch"] == version("torch")
    assert environment.num_cpu_cores >= 1
    assert environment.cpu
    assert (environment.device, environment.threads) == ("cpu", 2)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", environment.created_at)
    assert environment.gpu is None
    assert environment.power_limit_w is None
    assert environment.probe == "no GPU here"
    assert decode_line(encode_line(environment)) == environment


def test_a_gpu_is_described_through_the_probe():
    probe = open_probe("cuda:0", nvml=FakeNvml(FakeGpu()), environment={})

    environment = describe_environment("cuda:0", 1, ["specbench"], probe)

    assert environment.gpu == "Fake 100"
    assert environment.gpu_memory_bytes == 80_000
    assert environment.driver == "580.1"
    assert environment.power_limit_w == 700.0
    assert environment.sm_clock_default_mhz == 1_800
    assert environment.probe == "NVML"


def test_the_environment_contains_no_host_user_or_folder():
    argv = ["/home/someone/bin/specbench", "run", "--out", "my/folder"]

    environment = describe_environment("cpu", 1, argv, Probe("none"))

    assert environment.command == ("specbench", "run", "--out", "my/folder")
    text = json.dumps(dataclasses.asdict(environment))
    assert '"/' not in text
    assert str(Path.cwd()) not in text
    words = re.findall(r"[\w.-]+", text)
    assert not {platform.node(), getpass.getuser(), "someone"} & set(words)


@pytest.mark.parametrize(
    ("argv0", "name"),
    [
        ("/opt/venv/bin/specbench", "specbench"),
        ("/opt/venv/lib/specbench/__main__.py", "specbench"),
        ("specbench", "specbench"),
    ],
)
def test_the_recorded_program_name_has_no_folder(argv0: str, name: str):
    assert program_name(argv0) == name


def test_packages_that_are_not_installed_are_omitted():
    versions = package_versions()

    assert {"torch", "transformers", "tokenizers", "numpy", "nvidia-ml-py"} <= versions.keys()
    assert all(versions.values())


def test_the_cpu_name_is_its_model_name_or_architecture(tmp_path: Path):
    cpu_info = tmp_path / "cpuinfo"
    cpu_info.write_text("processor\t: 0\nmodel name\t: Fast 9000: the CPU\nmodel name\t: other\n")
    assert cpu_model(cpu_info) == "Fast 9000: the CPU"

    cpu_info.write_text("processor\t: 0\nBogoMIPS\t: 50\n")
    assert cpu_model(cpu_info) == cpu_model(tmp_path / "absent") != ""


def test_the_commit_of_a_checkout_is_recorded_with_its_state(fake_git: Path):
    (fake_git / "answers.json").write_text('{"ls-files": "a.py", "describe": "ab12"}')
    assert git_commit(fake_git) == "ab12"
    changed = '{"ls-files": "a.py", "describe": "ab12", "status": " M a.py"}'
    (fake_git / "answers.json").write_text(changed)
    assert git_commit(fake_git) == "ab12-dirty"


def test_outside_a_checkout_the_working_folder_is_used(fake_git: Path):
    (fake_git / "answers.json").write_text('{"ls-files": "a.py", "describe": "ab12"}')

    def described() -> Environment:
        return describe_environment("cpu", 1, ["specbench"], Probe("none"))

    assert described().git_commit == "ab12"


def test_a_folder_that_git_ignores_or_does_not_know_has_no_commit(fake_git: Path):
    assert git_commit(fake_git) is None

    (fake_git / "answers.json").write_text('{"ls-files": "", "describe": "ab12"}')
    assert git_commit(fake_git) is None


def test_without_git_there_is_no_commit(fake_git: Path):
    (fake_git / "answers.json").write_text('{"ls-files": "a.py", "describe": "ab12"}')
    (fake_git.parent / "bin" / "git").unlink()

    assert git_commit(fake_git) is None


def test_probes_do_not_import_torch():
    code = (
        "import sys, specbench.probes.environment, specbench.probes.gpu, specbench.probes.host;"
        "sys.exit('torch' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
