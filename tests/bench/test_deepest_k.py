"""A K that a drafter cannot draft: left out of a range that nobody asked for, else a failure.

A K that nobody named gives way to what the drafter can draft; one that was named does not.
"""

import re
from pathlib import Path

from specbench.bench.plan import DEFAULT_K
from specbench.errors import UsageError
from specbench.report.document import Document, build_document
from specbench.report.notes import run_warnings
from specbench.settings import RunSettings
from tests.bench.fake_runs import SETTINGS, make_plan, measure
from tests.bench.fakes import Call, FakeClock, FakeEngine
from tests.settings.flat_settings import changed

KS = changed(SETTINGS, num_speculative_tokens=(0, 2, 4, 6))
UNSAID = changed(SETTINGS, num_speculative_tokens=None)


def too_deep(call: Call) -> Exception | None:
    """What the built-in engine says."""
    is_too_deep = call.drafter == "good" and call.k > 4
    return UsageError("good drafts at most 4 tokens ahead") if is_too_deep else None


def measured(settings: RunSettings, folder: Path, **depths: int) -> Document:
    plan = make_plan(folder, settings, depths=depths or {"good": 4})
    return build_document(measure(plan, FakeEngine(FakeClock(), breaks=too_deep), folder))


def ks_of(document: Document, drafter: str) -> set[int]:
    cells = (cell for cell in document.cells if cell.key.draft.drafter == drafter)
    return {cell.key.draft.k for cell in cells}


def test_of_a_default_range_only_what_can_be_drafted_is_measured(tmp_path: Path) -> None:
    document = measured(changed(KS, is_default_range=True), tmp_path)

    assert ks_of(document, "good") == {2, 4}
    assert ks_of(document, "bad") == {2, 4, 6}
    assert document.failures == ()
    assert document.missing == ()
    (note,) = run_warnings(document)
    assert re.match("big/good .*K = 6 ", note)


def test_a_k_that_was_asked_for_is_a_failure_and_the_others_are_measured(tmp_path: Path) -> None:
    document = measured(KS, tmp_path)

    assert ks_of(document, "good") == {2, 4}
    (failure,) = document.failures
    assert (failure.pairing, failure.stage) == ("big/good", "warm_up")
    assert re.match("ngram K=6: good .*4 tokens", failure.reason)
    assert [key.draft.k for key in document.missing] == [6]


def test_an_adaptive_k_is_warmed_up_as_deep_as_it_goes(tmp_path: Path) -> None:
    settings = changed(KS, num_speculative_tokens=(0,), adaptive=True, pairings=("big/good",))
    engine = FakeEngine(FakeClock())
    measure(make_plan(tmp_path, settings, depths={"good": 2}), engine, tmp_path)
    warmed_up = {call.k for call in engine.calls if call.request.max_new_tokens == 12}
    assert warmed_up == {0, 1, 2}


def test_a_default_k_is_no_deeper_than_the_drafter(tmp_path: Path) -> None:
    document = measured(UNSAID, tmp_path, good=2, bad=2)  # `bad` names no K, `good` names 3
    assert ks_of(document, "bad") == {2}
    assert {p.key.draft.k for p in document.run.cells} == {0, 2, 3}
    assert [key for key in document.missing if key.draft.drafter == "bad"] == []


def test_a_drafter_that_goes_deeper_keeps_the_default(tmp_path: Path) -> None:
    assert ks_of(measured(UNSAID, tmp_path, good=9, bad=9), "bad") == {DEFAULT_K}


def test_a_run_that_is_resumed_keeps_the_k_it_had(tmp_path: Path) -> None:
    before = measured(UNSAID, tmp_path, good=2, bad=2)
    again = measured(UNSAID, tmp_path, good=2, bad=2)
    assert [c.key for c in again.cells] == [c.key for c in before.cells]
    assert [c.num_requests for c in again.cells] == [c.num_requests for c in before.cells]
    assert again.missing == before.missing
