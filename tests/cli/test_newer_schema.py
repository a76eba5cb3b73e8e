"""A run of a newer specbench is refused with its version by all readers of runs; an older one with
a removed choice is read."""

import json
import shutil
from pathlib import Path

import pytest

from specbench.errors import ExitCode, StoreError
from specbench.notebook import load
from specbench.runs import load_run, resume_run
from tests.cli.calls import specbench

OLD = Path(__file__).parents[1] / "runs" / "stored_sweep" / "sweep"
NEWER = "20991121-010203-a1b2"
SAID = "schema version 99, not "


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs, one of which has an unknown layout."""
    root = tmp_path_factory.mktemp("newer") / "reports"
    shutil.copytree(OLD, root / "old")
    folder = root / NEWER
    shutil.copytree(OLD, folder)
    run = json.loads((folder / "run.json").read_bytes())
    run |= {"schema_version": 99, "run_id": NEWER, "phase_of_the_moon": {"full": True}}
    (folder / "run.json").write_text(json.dumps(run))
    with (folder / "records.jsonl").open("a") as records:
        records.write('{"type":"moon","data":{}}\n')
    return root


@pytest.mark.parametrize(
    "arguments",
    [
        f"report {NEWER}",
        f"recommend {NEWER}",
        f"check old {NEWER}",
        f"check {NEWER} old",
        f"baseline {NEWER} --output baseline.json",
        f"export demo/draft --engine vllm --run reports/{NEWER}",
        f"run --resume {NEWER}",
        f"sweep-k --resume {NEWER}",
        f"pair demo --resume {NEWER}",
    ],
)
def test_a_command_names_the_version_and_ends_with_exit_code_2(arguments, root: Path) -> None:
    ran = specbench(arguments, cwd=root.parent)
    assert (ran.code, ran.out) == (2, "")
    assert SAID in ran.err
    assert "update specbench" in ran.err
    assert NEWER in ran.err


@pytest.mark.parametrize("command", ["history", "list runs"])
def test_commands_over_all_runs_name_a_broken_one_and_continue(command: str, root: Path) -> None:
    ran = specbench(command, cwd=root.parent)
    assert ran.code == 0
    assert "schema version 99" in " ".join((ran.out + ran.err).split())


def test_loading_and_resuming_refuse_a_newer_schema(root: Path) -> None:
    with pytest.raises(StoreError, match=SAID):
        load(root / NEWER)
    before = {path: path.read_bytes() for path in (root / NEWER).glob("r*")}
    with pytest.raises(StoreError, match=SAID):
        resume_run(root, NEWER)
    assert {path: path.read_bytes() for path in (root / NEWER).glob("r*")} == before


@pytest.fixture(scope="module")
def with_gone_choice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, of which `gone` was measured with --attention-backend flex."""
    root = tmp_path_factory.mktemp("gone") / "reports"
    for name in ("kept", "gone"):
        shutil.copytree(OLD, root / name)
    file = root / "gone" / "run.json"
    run = json.loads(file.read_bytes())
    run["settings"] |= {"kernels": "flex"}
    file.write_text(json.dumps(run | {"run_id": "gone"}))
    return root


@pytest.mark.parametrize(
    "arguments",
    [
        "report gone",
        "report gone --json",
        "report kept gone",
        "recommend gone",
        "history",
        "list runs",
        "baseline gone --output baseline.json",
    ],
)
def test_a_run_with_a_removed_kernel_can_be_read(arguments: str, with_gone_choice: Path) -> None:
    ran = specbench(arguments, cwd=with_gone_choice.parent)
    assert ran.code != ExitCode.USER_ERROR
    assert "damaged" not in ran.out + ran.err


def test_a_run_with_a_removed_kernel_is_compared_and_unchanged(with_gone_choice: Path) -> None:
    checks = [
        specbench("check", *names, "--json", cwd=with_gone_choice.parent)
        for names in (("kept", "kept"), ("kept", "gone"))
    ]
    same, other = (json.loads(ran.out) for ran in checks)
    assert same["verdict"] == other["verdict"]
    gone = load_run("gone", with_gone_choice)
    assert gone.run.settings.decoder.kernels == "flex"


def test_a_run_with_a_removed_kernel_cannot_be_resumed(with_gone_choice: Path) -> None:
    before = (with_gone_choice / "gone" / "records.jsonl").read_bytes()
    ran = specbench("sweep-k --resume gone", cwd=with_gone_choice.parent)
    assert ran.code == 2
    assert "--attention-backend 'flex'" in ran.err
    assert (with_gone_choice / "gone" / "records.jsonl").read_bytes() == before
