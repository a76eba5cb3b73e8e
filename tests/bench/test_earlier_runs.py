"""A run takes the deviation between states of the machine from earlier runs in its folder."""

import shutil
from pathlib import Path

import pytest
import torch

from specbench.bench.expected_time import earlier_run
from specbench.bench.planning import plan_run
from specbench.fit.memory_plan import DeploymentSpec
from specbench.inputs.config import load_pairings
from specbench.metrics import earlier
from specbench.metrics.aggregate import aggregate_run
from specbench.metrics.summary import summarize
from specbench.runs import StoredRun, list_runs
from tests.bench.tiny_runs import run_on, settings_for, write_tiny

pytestmark = pytest.mark.slow  # whole runs

PROMPTS = [f"Count to {i} and then say hello" for i in range(8)]  # some may be left out as stalled


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny"), PROMPTS)


@pytest.fixture(scope="module")
def two(tiny: Path) -> Path:
    for _ in range(2):
        assert measure(tiny).run.earlier is None
    return tiny / "reports"


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with other programs, some of such short runs are invalid."""
    monkeypatch.setattr(earlier, "judge_cell", lambda _: ())


def measure(tiny: Path, **changes: object) -> StoredRun:
    usual = {"command": "run", "pairings": ("tiny/draft",), "num_speculative_tokens": (3,)}
    settings = settings_for(tiny, **{**usual, "max_new_tokens": 24, **changes})
    return run_on(tiny, settings, tiny / "reports")


def test_runs_of_the_same_cells_count_even_beside_one_that_cannot_be_read(tiny, two):
    (broken := two / "20260101T000000-broken").mkdir()
    (broken / "run.json").write_text('{"schema_version": 1}')
    stored = measure(tiny)
    assert stored.run.earlier is not None
    assert stored.run.earlier.num_runs == 2
    (cell,) = (c for c in summarize(aggregate_run(stored)) if c.key.draft.k)
    assert cell.margin is not None
    assert cell.margin.num_earlier == 2


@pytest.mark.usefixtures("two")
def test_runs_of_other_cells_or_threads_do_not_count(tiny, monkeypatch):
    assert measure(tiny, num_speculative_tokens=(2,)).run.earlier is None
    assert measure(tiny, dummy_weights=True).run.earlier is None
    # Two threads that share their cores with other programs wait for each other.
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    assert measure(tiny, threads=2).run.earlier is None


def test_a_damaged_run_does_not_keep_from_planning(tiny, two, tmp_path):
    shutil.copytree(two, tmp_path / "reports")
    ids = [listing.run_id for listing in list_runs(tmp_path / "reports") if not listing.problem]
    records = tmp_path / "reports" / ids[-1] / "records.jsonl"
    first, second, *rest = records.read_text().splitlines()
    records.write_text("\n".join((first, second[: len(second) // 2], *rest)) + "\n")
    settings = settings_for(tiny, command="run", pairings=("tiny/draft",))
    pairings = load_pairings(tiny / "pairings.yaml").select(settings.workload.pairings)
    (plan,) = plan_run(settings, pairings).targets
    found = earlier_run(plan, DeploymentSpec(device="cpu"), tmp_path / "reports")
    assert found is not None
    assert found.run.run_id == ids[-2]


def test_a_drafter_that_was_edited_since_does_not_count(tmp_path):
    tiny = write_tiny(tmp_path, PROMPTS)
    pairings = {"pairings": ("tiny/draft", "tiny/ngram")}
    for _ in range(2):
        measure(tiny, **pairings)
    file = tiny / "pairings.yaml"
    edited = "method: ngram, parameters: {max_ngram: 2}"
    file.write_text(file.read_text().replace("method: ngram", edited))
    assert measure(tiny, **pairings).run.earlier is None
    assert measure(tiny).run.earlier is not None
