"""The gate over real runs of a tiny pair: what it is for, end to end.

The load of the machine changes between two runs; the time of a forward therefore follows from its
layers.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specbench.runs import load_run
from tests.cli.calls import specbench
from tests.cli.clocks import WorkClock, work_clock
from tests.tiny_pair import make_pair, write_pair

PAIRINGS = """\
targets:
  tiny:
    model: ./target
    drafters:
      draft: {{method: draft_model, model: ./{draft}}}
"""
SMALL = ("-w", "prompts.jsonl", "-k", "4", "--num-prompts", "5", "--max-new-tokens", "32")
ONE_CPU = ("--device", "cpu", "--threads", "1")
NUM_TARGET_LAYERS = 4

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny pair; the target's chat template prints the time to the second."""
    folder = tmp_path_factory.mktemp("clocked")
    write_pair(folder)
    template = folder / "target" / "chat_template.jinja"
    template.write_text("{{ strftime_now('%d %b %Y %H:%M:%S.%f') }}" + template.read_text())
    return folder


def test_a_template_date_is_fixed_and_another_template_is_refused(
    clocked: Path,
) -> None:
    pair = ("--target", "./target", "--draft", "./draft")
    ids = [
        json.loads(specbench("run", *pair, *SMALL, *ONE_CPU, "--json", cwd=clocked).out)["run_id"]
        for _ in range(2)
    ]
    counts = ("--fail-on", "mean_acceptance_length:0%")
    again = specbench("check", *ids, *counts, cwd=clocked)
    assert again.code == 0, again.out + again.err
    runs = [load_run(run_id, clocked / "reports") for run_id in ids]
    prompts = [{r.prompt_sha256 for b in run.blocks for r in b.requests} for run in runs]
    assert prompts[0] == prompts[1]
    assert len(prompts[0]) == 5
    assert {model.template_clock for model in runs[0].models} == {"2024-07-26", ""}

    template = clocked / "target" / "chat_template.jinja"
    template.write_text("Be brief." + template.read_text())
    specbench("run", *pair, *SMALL, *ONE_CPU, cwd=clocked)
    changed = specbench("check", ids[0], "latest", *counts, cwd=clocked)
    assert changed.code == 2
    assert "template of target" in changed.err


def measured(folder: Path, draft: str = "draft") -> str:
    """The id of a run of tiny/draft with this folder as the draft."""
    (folder / "pairings.yaml").write_text(PAIRINGS.format(draft=draft))
    ran = specbench("run", "tiny/draft", *SMALL, *ONE_CPU, "--json", cwd=folder)
    assert ran.is_complete, ran.err
    run_id: str = json.loads(ran.out)["run_id"]
    return run_id


def gate(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    ran = specbench("check", *arguments, "--json", cwd=folder)
    assert ran.err == ""
    return ran.code, json.loads(ran.out)


def verdicts(document: dict[str, Any]) -> dict[str, str]:
    return {judgment["metric"]: judgment["verdict"] for judgment in document["judgments"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny pair and `poor`, a draft unrelated to the target."""
    folder = tmp_path_factory.mktemp("gate")
    write_pair(folder)
    shutil.copytree(folder / "draft", folder / "poor")
    _, poor = make_pair(seed=1)
    poor.save_pretrained(folder / "poor")
    return folder


def forward_s(num_layers: int, _num_tokens: int) -> float:
    return 0.002 * num_layers


@pytest.fixture(scope="module", autouse=True)
def clock() -> Iterator[WorkClock]:
    with work_clock(forward_s) as clock:
        yield clock


@pytest.fixture(scope="module")
def usual_run(place: Path) -> str:
    return measured(place)


def test_counts_and_text_of_a_second_run_are_the_same(place: Path, usual_run: str) -> None:
    counts = ("--fail-on", "mean_acceptance_length:2%")
    code, document = gate(place, usual_run, measured(place), *counts)
    assert code == 0
    assert document["num_tests"] == 0
    assert verdicts(document) == {"mean_acceptance_length": "pass", "output_tokens": "pass"}
    (length,) = (j for j in document["judgments"] if j["metric"] == "mean_acceptance_length")
    assert length["baseline"] == length["candidate"] > 3


def test_a_worse_draft_under_the_same_name_is_caught_by_counts(place: Path, usual_run: str) -> None:
    poor = measured(place, "poor")
    code, document = gate(place, usual_run, poor, "--fail-on", "mean_acceptance_length:2%")
    assert code == 1
    assert verdicts(document) == {"mean_acceptance_length": "regression", "output_tokens": "pass"}
    (attribution,) = document["attributions"]
    assert attribution["causes"] == ["changed weights", "acceptance"]
    assert "weights of tiny/draft" in [change["name"] for change in document["changes"]]


def test_a_slower_forward_of_the_target_is_caught_as_a_slower_baseline(
    place: Path, usual_run: str, clock: WorkClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slower(num_layers: int, num_tokens: int) -> float:
        return forward_s(num_layers, num_tokens) * (20 if num_layers == NUM_TARGET_LAYERS else 1)

    monkeypatch.setattr(clock, "cost", slower)
    slow = measured(place)
    code, document = gate(place, usual_run, slow)
    assert code == 1
    by_metric = verdicts(document)
    assert (by_metric["mean_acceptance_length"], by_metric["output_tokens"]) == ("pass", "pass")
    assert by_metric["decode_tokens_per_s"] == "regression"
    (attribution,) = document["attributions"]
    assert attribution["causes"] == ["machine"]
    assert attribution["step"]["after"] > attribution["step"]["before"]

    # The other way all is faster, K = 0 by more than K = 4: an improvement never fails.
    code, document = gate(place, slow, usual_run)
    assert code == 0
    assert set(verdicts(document).values()) == {"pass"}


def test_the_slowed_forward_in_the_gate_test_is_fused(place: Path, usual_run: str) -> None:
    (engine,) = load_run(usual_run, place / "reports").engines
    assert engine.forward == "fused"
