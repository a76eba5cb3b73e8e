"""The gate over real runs of the embedded pair: what it is for, end to end.

Two runs are minutes apart, and what else the machine does changes meanwhile; their seconds are
therefore those that this thread has the processor.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specbench.runs import load_run
from tests.cli.calls import specbench
from tests.cli.clocks import WorkClock, work_clock

PAIRINGS = """\
targets:
  demo:
    model: demo:target
    workloads: demo
    drafters:
      draft: {{method: draft_model, model: demo:{draft}}}
"""
SMALL = ("-w", "code", "-k", "4", "--prompts", "5", "--max-new-tokens", "16", "--device", "cpu")
THREAD = ("--threads", "1")  # the one whose seconds are counted
NUM_TARGET_LAYERS = 16
PLANTED_S = 0.2  # some twenty times a forward

pytestmark = pytest.mark.slow


def measured(folder: Path, draft: str = "draft") -> str:
    """The id of a run of demo/draft, whatever model plays the draft."""
    (folder / "pairings.yaml").write_text(PAIRINGS.format(draft=draft))
    ran = specbench("run", "demo/draft", *SMALL, *THREAD, "--json", cwd=folder)
    assert ran.code == 0, ran.err
    run_id: str = json.loads(ran.out)["run_id"]
    return run_id


def gate(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    ran = specbench("check", *arguments, "--json", cwd=folder)
    assert ran.err == ""
    return ran.code, json.loads(ran.out)


def verdicts(document: dict[str, Any]) -> dict[str, str]:
    return {judgement["metric"]: judgement["verdict"] for judgement in document["judgements"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gate")


@pytest.fixture(scope="module", autouse=True)
def clock() -> Iterator[WorkClock]:
    with work_clock(lambda *_: 0.0, counts_cpu=True) as clock:
        yield clock


@pytest.fixture(scope="module")
def usual(place: Path) -> str:
    return measured(place)


@pytest.mark.long
def test_counts_and_text_of_a_second_run_are_the_same(place: Path, usual: str) -> None:
    counts = ("--fail-on", "mean_acceptance_length:2%")
    code, document = gate(place, usual, measured(place), *counts)
    assert code == 0
    assert document["num_tests"] == 0
    assert verdicts(document) == {"mean_acceptance_length": "pass", "output_tokens": "pass"}
    (length,) = (j for j in document["judgements"] if j["metric"] == "mean_acceptance_length")
    assert length["baseline"] == length["candidate"] > 3


def test_a_worse_draft_under_the_same_name_is_caught_by_counts(place: Path, usual: str) -> None:
    poor = measured(place, "poor")
    code, document = gate(place, usual, poor, "--fail-on", "mean_acceptance_length:2%")
    assert code == 1
    assert verdicts(document) == {"mean_acceptance_length": "regression", "output_tokens": "pass"}
    (found,) = document["attributions"]
    assert found["causes"] == ["acceptance"]
    assert "weights of demo/draft" in [change["name"] for change in document["changes"]]


@pytest.mark.long
def test_a_slower_forward_of_the_target_is_caught_as_a_slower_baseline(
    place: Path, usual: str, clock: WorkClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slower(num_layers: int, _num_tokens: int) -> float:
        return PLANTED_S if num_layers == NUM_TARGET_LAYERS else 0.0

    monkeypatch.setattr(clock, "cost", slower)
    slow = measured(place)
    code, document = gate(place, usual, slow)
    assert code == 1
    found = verdicts(document)
    assert (found["mean_acceptance_length"], found["output_tokens"]) == ("pass", "pass")
    assert found["decode_tokens_per_s"] == "regression"
    (attribution,) = document["attributions"]
    assert attribution["causes"] == ["slower K = 0"]
    assert attribution["step"]["after"] > attribution["step"]["before"]

    # The other way round all is faster, K = 0 by more than K = 4: an improvement never fails.
    code, document = gate(place, slow, usual)
    assert code == 0
    assert set(verdicts(document).values()) == {"pass"}


def test_the_forward_that_is_slowed_is_the_targets(place: Path, usual: str) -> None:
    (engine,) = load_run(usual, place / "reports").engines
    assert engine.forward == "fused"
