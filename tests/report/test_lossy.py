"""A lossy drafter is always marked, and is never the unmarked answer."""

import csv
import io
import json
import re
from dataclasses import replace

import pytest

from specbench.frames.tables import cells_csv
from specbench.records import CellKey, Interval, Kind, SpeedupVerdict
from specbench.report.answers import answer, answer_lines
from specbench.report.document import Document, build_document
from specbench.report.document_json import to_json
from specbench.report.html import to_html
from specbench.report.markdown import to_markdown
from specbench.report.notes import run_warnings
from specbench.report.sections import sections
from specbench.runs import StoredRun
from tests.cell_keys import with_axes
from tests.report.conftest import drawn, printed
from tests.report.stored_runs import SMALL, renamed, stored_run
from tests.report.test_figures import texts
from tests.report.test_json import VALIDATOR

RULE = "typical alpha=0.5"
# `bold` without its mark; the warning about it says the same in words.
UNMARKED = re.compile(r"\bbold\b(?! \(lossy\)| is lossy by choice)")


def with_rule(stored: StoredRun, drafter: str) -> StoredRun:
    """The run as if a rule had judged the drafts of one drafter."""

    def mark(key: CellKey) -> CellKey:
        return with_axes(key, lossy=RULE) if key.draft.drafter == drafter else key

    ids = {plan.key.id: mark(plan.key).id for plan in stored.run.cells}
    plans = tuple(replace(plan, key=mark(plan.key)) for plan in stored.run.cells)
    blocks = tuple(
        replace(block, requests=tuple(replace(r, cell_id=ids[r.cell_id]) for r in block.requests))
        for block in stored.blocks
    )
    return replace(stored, run=replace(stored.run, cells=plans), blocks=blocks)


@pytest.fixture(scope="module")
def marked() -> Document:
    """`bold` helps and is lossy, `poor` is lossless and does not help."""
    return build_document(with_rule(renamed(stored_run(SMALL), "draft", "bold"), "bold"))


@pytest.fixture(scope="module")
def unmarked() -> Document:
    """The same run without the mark."""
    return build_document(renamed(stored_run(SMALL), "draft", "bold"))


def terminal(document: Document) -> str:
    return printed(document, width=300) + "\n".join(answer_lines(document))


def markdown(document: Document) -> str:
    return to_markdown([document])


def html(document: Document) -> str:
    return re.sub(r"<[^>]*>", "\n", to_html([document]))


def plots(document: Document) -> str:
    shown = []
    for chart in drawn(document).all:
        shown += [chart.setting, chart.caption]
        shown += texts(chart)
    return "\n".join(shown)


@pytest.mark.slow
@pytest.mark.parametrize("show", [terminal, markdown, html, plots])
def test_every_report_format_marks_lossy_drafters(show, marked: Document) -> None:
    text = show(marked)
    assert "bold (lossy)" in text
    assert [line for line in text.splitlines() if UNMARKED.search(line)] == []
    assert "poor (lossy)" not in text


@pytest.mark.slow
@pytest.mark.parametrize("show", [terminal, markdown, html, plots])
def test_an_unmarked_lossy_name_is_detected(show, unmarked: Document) -> None:
    text = show(unmarked)
    assert UNMARKED.search(text)
    assert "lossy" not in text


def test_a_report_of_a_lossy_run_fits_80_columns(marked: Document) -> None:
    assert max(map(len, printed(marked).splitlines())) <= 80


def test_json_names_the_rule_and_keeps_its_schema(marked: Document) -> None:
    json_document = to_json(marked)
    VALIDATOR.validate(json.loads(json.dumps(json_document)))
    for entry in (*json_document["cells"], *json_document["decisions"], *json_document["shared_k"]):
        assert entry["lossy"] == (RULE if "bold" in entry["pairing"] else None)
    for decision in json_document["decisions"]:
        assert decision["text"].endswith(f" [lossy: {RULE}]") == bool(decision["lossy"])


def test_csv_has_the_rule_in_a_column(marked: Document) -> None:
    rows = list(csv.DictReader(io.StringIO(cells_csv([marked]))))
    assert {row["drafter"]: row["lossy"] for row in rows} == {"none": "", "bold": RULE, "poor": ""}


def test_a_warning_is_labeled_as_one(marked: Document) -> None:
    assert Kind.LOSSY(pairing="demo/bold", rule=RULE) in run_warnings(marked)


def test_the_headline_prefers_a_lossless_drafter_that_helps(marked: Document) -> None:
    def both_help(document: Document) -> Document:
        speedups = {"demo/bold": Interval(estimate=3, low=2.9, high=3.1)}
        slower = Interval(estimate=1.2, low=1.1, high=1.3)
        return replace(
            document,
            decisions=tuple(
                replace(
                    d,
                    speedup=speedups.get(d.leader.pairing, slower),
                    verdict=SpeedupVerdict.FASTER,
                )
                for d in document.decisions
            ),
        )

    section = sections(both_help(marked))[0]
    assert section.best is not None
    assert section.best.leader.pairing == "demo/poor"
    assert answer(section).headline.startswith("demo/poor, ")
    line = answer_lines(both_help(marked))[1]
    assert line.startswith("  demo/bold (lossy): ")
    assert line.endswith(f"[lossy: {RULE}]")


def test_the_headline_marks_a_lossy_winner(marked: Document) -> None:
    headline = answer(sections(marked)[0]).headline
    assert headline.startswith("demo/bold (lossy), K=")
    assert headline.endswith(f"[lossy: {RULE}]")


def test_a_text_that_differs_from_k_0_is_expected() -> None:
    stored = with_rule(renamed(stored_run(SMALL), "draft", "bold"), "bold")
    blocks = tuple(
        replace(
            block,
            requests=tuple(
                replace(r, output_ids=(9, *r.output_ids[1:])) if "bold" in r.cell_id else r
                for r in block.requests
            ),
        )
        for block in stored.blocks
    )
    cells = build_document(replace(stored, blocks=blocks)).cells
    warnings = {warning for cell in cells for warning in cell.warnings}
    assert warnings == {Kind.OUTPUTS_MAY_DIFFER(differing=6, compared=6, rule=RULE)}
    assert all(cell.valid for cell in cells)


def test_speedups_of_texts_that_differ_in_length_are_per_token() -> None:
    """A text half as long in half the time is not faster."""
    stored = with_rule(renamed(stored_run(SMALL), "draft", "bold"), "bold")
    base = {
        (block.block_id, r.prompt_id): r
        for block in stored.blocks
        for r in block.requests
        if "|k0|" in r.cell_id
    }

    def halved(block, request):
        if "bold" not in request.cell_id:
            return request
        same = base[block.block_id, request.prompt_id]
        half = len(same.output_ids[1:]) // 2
        return replace(
            request, output_ids=same.output_ids[: 1 + half], decode_s=(same.decode_s or 0) / 2
        )

    blocks = tuple(
        replace(block, requests=tuple(halved(block, r) for r in block.requests))
        for block in stored.blocks
    )
    cells = build_document(replace(stored, blocks=blocks)).cells
    speedups = [c.speedup for c in cells if c.key.draft.drafter == "bold"]
    assert speedups
    assert all(s is not None and abs(s.estimate - 1) < 1e-9 for s in speedups)


def test_cells_of_different_acceptance_rules_have_different_ids() -> None:
    keys = [plan.key for plan in stored_run(SMALL).run.cells]
    (key, *_) = [key for key in keys if key.draft.k]
    ids = {with_axes(key, lossy=rule).id for rule in (None, "typical", RULE)}
    assert len(ids) == 3
    assert key.id in ids
