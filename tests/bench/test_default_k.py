"""A K that nobody named gives way to what the drafter can draft; one that was named does not."""

from pathlib import Path

from specbench.bench.plan import DEFAULT_K
from specbench.report.document import Document, build_document
from specbench.settings import RunSettings
from tests.bench.fake_runs import SETTINGS, make_plan, measure
from tests.bench.fakes import FakeClock, FakeEngine
from tests.settings.flat_settings import changed

UNSAID = changed(SETTINGS, num_speculative_tokens=None)


def measured(settings: RunSettings, folder: Path, most: int) -> Document:
    limits = {"good": most, "bad": most}
    plan = make_plan(folder, settings, depths=limits)
    return build_document(measure(plan, FakeEngine(FakeClock()), folder))


def ks_of(document: Document, drafter: str) -> set[int]:
    return {c.key.draft.k for c in document.cells if c.key.draft.drafter == drafter}


def test_a_default_k_is_no_deeper_than_the_drafter(tmp_path: Path) -> None:
    document = measured(UNSAID, tmp_path, 2)  # `bad` names no K, `good` names 3
    assert ks_of(document, "bad") == {2}
    assert {p.key.draft.k for p in document.run.cells} == {0, 2, 3}
    assert [key for key in document.missing if key.draft.drafter == "bad"] == []


def test_a_drafter_that_goes_deeper_keeps_the_default(tmp_path: Path) -> None:
    assert ks_of(measured(UNSAID, tmp_path, 9), "bad") == {DEFAULT_K}


def test_a_run_that_is_resumed_keeps_the_k_it_had(tmp_path: Path) -> None:
    before = measured(UNSAID, tmp_path, 2)
    again = measured(UNSAID, tmp_path, 2)
    assert [c.key for c in again.cells] == [c.key for c in before.cells]
    assert [c.num_requests for c in again.cells] == [c.num_requests for c in before.cells]
    assert again.missing == before.missing
