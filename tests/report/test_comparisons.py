"""The tables that compare batch sizes, K = auto, contexts, engines and runs, in every format."""

import json
import re
from dataclasses import replace

import pytest

from specbench.decide.comparisons import compare_adaptive, crossovers, may_be_equal
from specbench.frames.tables import cells_csv
from specbench.metrics.aggregate import aggregate_run
from specbench.records import Auto, EngineRecord, Interval, Kind
from specbench.report.blocks import side_by_side_part
from specbench.report.comparisons import (
    adaptive_grid,
    adaptive_reasons,
    answers_grid,
    comparison_grids,
    context_grid,
    crossover_grid,
    differences_grid,
    side_by_side_grid,
)
from specbench.report.document import Document
from specbench.report.document_json import to_json
from specbench.report.html import to_html
from specbench.report.markdown import to_markdown
from specbench.words.answers import decision_text, text
from specbench.words.numbers import faster_text, slower_to_faster, speedup_text
from tests.cell_keys import KEY, with_axes
from tests.decide.conftest import summary
from tests.report.conftest import printed
from tests.report.test_json import VALIDATOR
from tests.served_sessions import Sweep, served_sweep


def test_the_crossover_table_states_where_the_speedup_ends(served: Document) -> None:
    grid = crossover_grid(served.crossovers)
    assert grid.headers == (
        "",
        "drafter",
        "K",
        "1 request",
        "2 requests",
        "4 requests",
        "shown up to",
        "1.00x at",
    )
    # K = 4: 1.2 / 0.6 s, a third less each time the rows double: 2, 1.33 and 0.89.
    (row,) = [row for row in grid.rows if row[:3] == ("code", "draft", "4")]
    assert row[3:7] == ("2.00x", "1.33x", "0.89x", "2 requests")
    assert 2 < float(row[7]) < 4
    assert [row[2] for row in grid.rows if row[0] == "creative"] == ["2", "4", "auto"]


@pytest.mark.parametrize(
    ("bounds", "shown", "crosses"),
    [
        (((1.9, 2.0), (1.2, 1.3)), "4 requests", "> 4"),
        (((1.9, 2.0), None), "1 request", "> 1"),
        (((0.7, 0.8), (0.5, 0.6)), "none", "< 1"),
        (((0.7, 0.8), (1.2, 1.3)), "4 requests", "unknown"),
        ((None, None), "unknown", "unknown"),
    ],
)
def test_a_crossover_outside_of_what_was_measured(bounds, shown, crosses) -> None:
    keys = [with_axes(KEY, concurrency=n) for n in (1, 4)]
    cells = []
    for key, of_cell in zip(keys, bounds, strict=True):
        low, estimate = of_cell or (None, 1.0)
        made = summary(4, low, estimate, None if low is None else estimate + 0.1)
        cells.append(replace(made, key=key, valid=of_cell is not None))
    (row,) = crossover_grid(crossovers(cells)).rows
    assert row[-2:] == (shown, crosses)


def test_the_adaptive_table_names_the_best_fixed_k_and_what_was_picked(served: Document) -> None:
    grid = adaptive_grid(served.adaptive)
    first, second, third, *_ = grid.rows
    assert first[0] == "code, one request at a time"
    assert first[2] == "K=auto"
    assert (first[3], first[5], first[7]) == ("4", "4.7", "6 prompts")
    assert first[4].startswith("0.92x [")  # 0.60 against 0.65 s
    assert (second[0], second[7]) == ("code, 2 concurrent requests", "6 passes")
    assert third[3] == "0"  # four rows: not speculating is best
    assert "geometric mean" not in grid.title  # nothing was measured again


def test_a_sentence_has_every_concurrency_of_an_adaptive_k(served: Document) -> None:
    code, *_ = adaptive_reasons(served)
    assert (code.figures["cell"], code.figures["scheme"]) == ("code, draft", "K=auto")
    rows = [row for row in served.adaptive if row.adaptive.condition.workload == "code"]
    points = code.figures["because"]
    assert [point.figures["speed"] for point in points] == [row.decode for row in rows]
    assert [point.figures["k"] for point in points] == [row.best_fixed.draft.k for row in rows]
    at = [point.figures["concurrency"] for point in points]
    assert at == [row.adaptive.condition.concurrency for row in rows]
    kinds = {True: Kind.ADAPTIVE_OPEN, False: Kind.ADAPTIVE_DIFFERS}
    assert [point.kind for point in points] == [kinds[may_be_equal(row.decode)] for row in rows]


def test_an_engines_scheme_has_one_sentence_and_table_over_users(served: Document) -> None:
    """It is 8% slower than K = 4 at 2 users and 15% faster at 4, by servers in cycles."""
    cells = []
    for users, speed in ((2, 0.92), (4, 1.15)):
        sweep = Sweep(rows=(users,), confirmed=None, num_prompts=32, cycles=6, wobble=0.01)
        scheme = replace(sweep, ks=(4,), variant="scheme", slower={4: 1 / speed})
        cells += aggregate_run(served_sweep(sweep))
        cells += [
            replace(cell, key=replace(cell.key, draft=replace(cell.key.draft, length=Auto(4))))
            for cell in aggregate_run(served_sweep(scheme))
            if cell.k
        ]
    rows = compare_adaptive(cells)
    (said,) = adaptive_reasons(replace(served, adaptive=rows))
    parts = re.findall(r"(\d+)% (slower|faster) \[(\d+), (\d+)\] than K=4 at (\d+)", text(said))
    assert [(name, int(users)) for _, name, _, _, users in parts] == [("slower", 2), ("faster", 4)]
    for (estimate, _, low, high, _), true in zip(parts, (8, 15), strict=True):
        assert int(low) < true < int(high)
        assert abs(int(estimate) - true) < 4
    table = [(*row[2:4], row[7]) for row in adaptive_grid(rows).rows]
    assert table == [("scheme", "4", "6 cycles")] * 2


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_sentence_says_whether_the_fixed_k_was_chosen_by_its_figures(
    served: Document, is_confirmed: bool
) -> None:
    rows = tuple(replace(row, is_confirmed=is_confirmed) for row in served.adaptive)
    for reason in adaptive_reasons(replace(served, adaptive=rows)):
        assert (Kind.FAVORS_FIXED() in reason.figures["bound"]) is not is_confirmed


def test_a_sentence_about_a_lossy_adaptive_k_ends_with_its_rule(served: Document) -> None:
    lossy = [
        replace(row, adaptive=with_axes(row.adaptive, lossy="typical")) for row in served.adaptive
    ]
    sentences = [*map(text, adaptive_reasons(replace(served, adaptive=tuple(lossy))))]
    assert sentences
    assert all(sentence.endswith(" [lossy: typical]") for sentence in sentences)


def test_an_invalid_comparison_is_in_no_sentence(served: Document) -> None:
    rows = tuple(replace(row, valid=False) for row in served.adaptive)
    assert not [*adaptive_reasons(replace(served, adaptive=rows))]


def test_a_relative_speed_is_slower_or_faster_in_percent() -> None:
    assert faster_text(Interval(estimate=0.92, low=0.89, high=0.95)) == "8% slower [5, 11]"
    assert faster_text(Interval(estimate=1.15, low=0.98, high=1.3)) == "15% faster [-2, 30]"
    assert faster_text(Interval(estimate=0.98, low=0.95, high=1.01)) == "2% slower [-1, 5]"
    assert faster_text(Interval(estimate=1.0, low=None, high=None)) == "0% faster"
    assert slower_to_faster(Interval(estimate=1, low=0.97, high=1.05)) == "3% slower to 5% faster"
    assert slower_to_faster(Interval(estimate=1, low=None, high=None)) == "no interval"


def test_the_adaptive_table_states_the_number_of_settings_in_its_mean(served: Document) -> None:
    first, *rest = served.adaptive
    again = replace(served, adaptive=(replace(first, is_confirmed=True), *rest))
    grid = adaptive_grid(again.adaptive)
    assert re.search(r"0\.923x .*1 setting of the confirmation run$", grid.title)


def test_the_side_by_side_table_pairs_what_does_the_same_work(served: Document) -> None:
    grid = side_by_side_grid(served.side_by_side)
    assert grid.title.endswith("relative to transformers")
    code = [row[1:4] for row in grid.rows if row[0] == "code"]
    assert [pair[:2] for pair in code] == [
        ("K=0", "generate"),
        ("K=0", "generate_static"),
        ("draft K=2", "assisted_default K=20"),
        ("draft K=4", "assisted K=4"),
        ("draft K=4", "assisted_default K=20"),
        ("draft auto", "assisted_default K=20"),
    ]
    assert code[0][2] == speedup_text(served.side_by_side[0].decode)
    assert {row[4] for row in grid.rows} == {"100%"}


def test_a_side_by_side_row_with_an_invalid_side_is_marked(served: Document) -> None:
    invalid = tuple(replace(pair, valid=False) for pair in served.side_by_side)
    grid = side_by_side_grid(invalid)
    assert {row[-1] for row in grid.rows} == set(grid.marks) == {"invalid"}
    assert {row[3] for row in grid.rows if row[2] == "generate"} == {"2.00x"}
    assert not any("[" in text for row in grid.rows for text in row)  # no interval


def test_the_context_table_has_speedups_and_the_kv_cache(lengths: Document) -> None:
    grid = context_grid(lengths.context_curves)
    assert grid.headers[:5] == ("", "drafter", "K", "512", "4,096")
    assert grid.headers[6:] == ("KV, 512", "KV, 4,096")
    (row,) = grid.rows
    assert row[:6] == ("code", "draft", "4", "2.00x", "2.00x", "-")
    # 10 + 13 tokens of 2.125 MiB each.
    assert row[6] == "48.9 MiB"


def test_a_report_without_comparisons_has_no_comparison_table(cpu_document: Document) -> None:
    assert comparison_grids(cpu_document) == ()


def test_the_terminal_shows_the_comparisons_in_80_columns(
    served: Document, lengths: Document
) -> None:
    for document in (served, lengths):
        text = printed(document)
        assert max(map(len, text.splitlines())) <= 80
        assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert "Side by side" in printed(served)
    assert "tokens of context" in " ".join(printed(lengths).split())


@pytest.mark.slow
def test_pages_show_every_comparison(served: Document, lengths: Document) -> None:
    for render in (to_html, to_markdown):
        text = render([served, lengths])
        for title in (
            "Side by side",
            "Adaptive K against",
            "concurrent requests",
            "tokens of context",
        ):
            assert title in text


def test_the_machine_document_holds_the_comparisons(served: Document, lengths: Document) -> None:
    for document in (served, lengths):
        json_document = json.loads(json.dumps(to_json(document), allow_nan=False))
        VALIDATOR.validate(json_document)
    json_document = to_json(served)
    assert json_document["cells"][0]["context"] is None
    assert len(json_document["side_by_side"]) == 2 * 6
    assert json_document["side_by_side"][0]["peer"]["method"] == "generate"
    assert {c["adaptive"]["adaptive"] for c in json_document["adaptive_comparisons"]} == {True}
    assert len(json_document["crossovers"]) == 2 * 3
    assert [engine["engine"] for engine in json_document["engines"]] == ["builtin", "transformers"]
    (curve,) = to_json(lengths)["context_curves"]
    assert [point["at"] for point in curve["points"]] == [512, 4096]


def test_the_csv_has_adaptive_cells_and_contexts(served: Document) -> None:
    header, *rows = cells_csv([served]).splitlines()
    assert {"adaptive", "context", "request_rate", "busy_tokens_per_s"} <= set(header.split(","))
    assert len(rows) == len(served.cells)


def test_a_single_run_has_no_comparison(cpu_document: Document) -> None:
    assert not side_by_side_part([cpu_document]).blocks


def test_the_comparison_has_a_row_per_workload_and_drafter(
    cpu_document: Document, interrupted_document: Document
) -> None:
    grid = answers_grid([cpu_document, interrupted_document])
    rows = {row[:2]: row[2:] for row in grid.rows}
    assert len(rows) == len(cpu_document.decisions) == 4
    first, second = rows["code", "draft"]
    (decision,) = [d for d in cpu_document.decisions if d.draft.k == 4]
    assert first == decision_text(decision)
    assert second == "undecided"  # it was not measured again
    assert rows["creative", "poor"][0].startswith("no speedup: K=1 measured 0.88x [")
    assert rows["creative", "poor"][1] == "-"  # that run does not have the drafter


def test_only_differing_settings_of_several_runs_are_listed(cpu_document: Document) -> None:
    faster = replace(cpu_document.run.environment, cpu="Other CPU", git_commit=None)
    other = replace(cpu_document, run=replace(cpu_document.run, run_id="b", environment=faster))
    grid = differences_grid([cpu_document, other])
    assert [row[0] for row in grid.rows] == ["run", "specbench", "CPU"]
    assert grid.rows[0][1:] == (cpu_document.run.run_id, "b")
    assert grid.rows[2][1:] == ("Made-up CPU, 2 cores", "Other CPU, 2 cores")


def test_a_setting_of_the_first_of_two_targets_is_compared(cpu_document: Document) -> None:
    first = EngineRecord(target="demo", engine="builtin", forward="fused")
    second = replace(first, target="other")
    eager = replace(first, forward="eager")
    runs = [replace(cpu_document, engines=(engine, second)) for engine in (first, eager)]
    (row,) = differences_grid(runs).rows
    was, then = (f"demo, {forward} forward; other, fused forward" for forward in ("fused", "eager"))
    assert row == ("engine builtin", was, then)
