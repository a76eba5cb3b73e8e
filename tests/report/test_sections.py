"""What tells the settings of a run apart, in words; and which pass a report speaks of."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from specbench.report.document import build_document
from specbench.report.provenance import which_pass
from specbench.report.terminal import terminal_report
from tests.cell_keys import KEY, with_axes
from tests.report.stored_runs import SMALL, stored_run

ONE = KEY.condition


@pytest.mark.parametrize(
    ("others", "parts"),
    [
        ({}, ("code",)),
        ({"temperature": 1.0}, ("code", "temperature 0")),
        ({"request_rate": 2.0}, ("code", "closed loop")),
        ({"concurrency": 4}, ("code", "one request at a time")),
        ({"concurrency": 4, "request_rate": 2.0}, ("code", "one request at a time")),
        ({"context": 512}, ("code", "prompts unchanged")),
    ],
)
def test_a_setting_is_named_by_what_the_others_have_otherwise(others, parts):
    assert ONE.distinct_parts([ONE, replace(ONE, **others)], also="workload") == parts


def test_rates_of_one_number_of_rows_are_told_apart():
    several = [replace(ONE, concurrency=64, request_rate=rate) for rate in (2.0, 4.0, 8.0)]
    titles = {one.distinct_parts(several, also="workload") for one in several}
    assert titles == {("code", f"{rate:g} requests per second") for rate in (2.0, 4.0, 8.0)}


def test_a_second_measurement_is_told_of_where_a_k_was_picked_from_several():
    document = build_document(stored_run(SMALL))
    assert "confirmation run" in which_pass(document)
    first = {}
    for cell in document.cells:
        if cell.key.draft.k:
            first.setdefault((cell.key.pairing, cell.key.condition.workload), cell)
    assert which_pass(replace(document, cells=tuple(first.values()))) == ""


def test_one_question_of_several_k_is_enough_to_tell_of_a_second_measurement():
    document = build_document(stored_run(SMALL))
    drafting = [c for c in document.cells if c.key.draft.k]
    single = replace(drafting[0], key=with_axes(drafting[0].key, workload="another"))
    assert which_pass(replace(document, cells=(*document.cells, single)))


def test_a_terminal_says_which_pass_its_tables_show_as_the_page_does():
    said = StringIO()
    document = build_document(stored_run(SMALL))
    Console(file=said, width=80).print(terminal_report(document))
    assert which_pass(document).partition(". ")[0] in " ".join(said.getvalue().split())
