"""How the settings of a run differ, in words; and the phase of a report."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from specbench.records import Kind
from specbench.report.document import build_document
from specbench.report.provenance import question, setup, which_pass
from specbench.report.terminal import terminal_report
from tests.cell_keys import KEY
from tests.report.stored_runs import SMALL, stored_run

ONE = KEY.condition


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, ("code",)),
        ({"temperature": 1.0}, ("code", "temperature 0")),
        ({"request_rate": 2.0}, ("code", "closed loop")),
        ({"concurrency": 4}, ("code", "one request at a time")),
        ({"concurrency": 4, "request_rate": 2.0}, ("code", "one request at a time")),
        ({"context": 512}, ("code", "prompts unchanged")),
    ],
)
def test_a_setting_is_named_by_what_differs_from_the_others(changes, parts):
    assert ONE.distinct_parts([ONE, replace(ONE, **changes)], also="workload") == parts


def test_rates_at_one_batch_size_are_distinguished():
    several = [replace(ONE, concurrency=64, request_rate=rate) for rate in (2.0, 4.0, 8.0)]
    titles = {setting.distinct_parts(several, also="workload") for setting in several}
    assert titles == {("code", f"{rate:g} requests per second") for rate in (2.0, 4.0, 8.0)}


@pytest.mark.parametrize(
    ("machine", "processor"),
    [
        ({"device": "cpu", "gpu": None}, "CPU"),
        ({"device": "cuda:0", "gpu": "GPU MIG 1g.10gb"}, "GPU MIG 1g.10gb"),
        ({"device": "cuda:0", "gpu": None}, "GPU of unknown name"),
    ],
)
def test_the_title_names_what_decoded(machine, processor):
    stored = stored_run(SMALL)
    environment = replace(stored.run.environment, cpu="a CPU", threads=None, **machine)
    document = build_document(replace(stored, run=replace(stored.run, environment=environment)))
    for text in (question(document), setup(document)):
        assert processor in text
        assert ("CPU" in text) == (processor == "CPU")


def test_confirmation_runs_are_mentioned_only_if_there_is_one():
    document = build_document(stored_run(SMALL))
    assert which_pass(document)
    for wish in ({"drafters": ("poor",)}, {"is_complete": False}):
        assert which_pass(build_document(stored_run(replace(SMALL, **wish)))) is None


def test_a_cross_fitted_answer_has_no_confirmation_run():
    stored = stored_run(replace(SMALL, drafters=("draft",), workloads=("code",)))
    explored = tuple(block for block in stored.blocks if block.purpose == "explore")
    run = replace(stored.run, workload_prompts={"demo": {"code": SMALL.num_prompts}})
    document = build_document(replace(stored, run=run, blocks=explored))
    (decision,) = document.decisions
    assert Kind.CROSS_FITTED() in decision.reasons
    other = replace(decision, speedup=replace(decision.speedup, estimate=1.8))
    assert which_pass(replace(document, decisions=(other,))) is None


def test_the_terminal_report_names_the_phase_of_its_tables():
    out = StringIO()
    document = build_document(stored_run(SMALL))
    Console(file=out, width=80).print(terminal_report(document))
    _, in_short = which_pass(document)
    assert in_short in " ".join(out.getvalue().split())
