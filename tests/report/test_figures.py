"""Charts: what they draw, that they repeat, and that they read on any background."""

import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from specbench.records import NO_DRAFTER, MemoryRecord
from specbench.report.charts.canvas import DRAFT, REST, SERIES, VERIFY, Chart, Label, spread
from specbench.report.charts.round_time import parts
from specbench.report.document import Document, build_document
from specbench.report.grids import need
from specbench.report.html import charts
from tests.report.stored_runs import SMALL, renamed, stored_run

COST = "Speed-up against added memory"
SPEEDUP, ACCEPTANCE, TIME = (
    "Speed-up against K",
    "Acceptance per position",
    "Where the round time goes",
)
MEMORY = "Memory of the target alone and with each drafter"


@pytest.fixture(scope="module")
def cpu_charts(cpu_document: Document) -> tuple[Chart, ...]:
    return charts(cpu_document)


def texts(svg: str) -> list[str]:
    """Every text of a chart; also a check that it is well-formed."""
    return ["".join(node.itertext()) for node in ElementTree.fromstring(svg).iter("text")]


@pytest.mark.slow
def test_a_run_gives_each_chart_for_each_setting(
    cpu_charts: tuple[Chart, ...], gpu_document: Document
) -> None:
    assert [chart.title for chart in cpu_charts] == [
        SPEEDUP,
        COST,
        ACCEPTANCE,
        TIME,  # demo/draft
        TIME,  # demo/poor
        MEMORY,
    ]
    settings = [chart.setting for chart in charts(gpu_document) if chart.title == SPEEDUP]
    assert [setting.split(", ")[1] for setting in settings] == ["temperature 0", "temperature 1"]


def test_without_a_drafter_only_memory_is_drawn(baseline_document: Document) -> None:
    assert [chart.title for chart in charts(baseline_document)] == [MEMORY]
    assert charts(replace(baseline_document, memory=())) == ()


@pytest.mark.slow
def test_equal_documents_give_equal_bytes(
    cpu_document: Document, cpu_charts: tuple[Chart, ...]
) -> None:
    assert charts(cpu_document) == cpu_charts


def test_lines_are_named_where_they_end_and_the_chosen_k_is_written_beside_its_point(
    cpu_document: Document, cpu_charts: tuple[Chart, ...]
) -> None:
    speedup = texts(cpu_charts[0].svg)
    assert speedup.count("draft") == speedup.count("poor") == 2
    chosen = [f"K={d.draft.k}" for d in cpu_document.decisions if d.speedup]
    assert {text for text in speedup if text.startswith("K=")} == set(chosen) - {"K=0"}


def test_a_round_that_cannot_be_told_apart_is_one_part(
    cpu_document: Document, gpu_document: Document
) -> None:
    cells = cpu_document.cells
    assert [part.name for part in parts(cells[3])] == ["draft", "verify", "other"]
    # K = 4: four drafts of 0.15 steps, verification 1 + 4 * 0.04, 0.06 steps of bookkeeping
    assert [part.steps for part in parts(cells[3])] == pytest.approx([0.6, 1.16, 0.06], rel=0.03)
    (whole,) = parts(gpu_document.cells[3])
    assert whole.name == "round"
    assert whole.steps == pytest.approx(1.82, rel=0.03)
    assert parts(cells[0]) == ()


def test_needed_memory_is_weights_and_cache_and_the_rest_of_the_peak() -> None:
    record = MemoryRecord(
        target="demo",
        drafter=NO_DRAFTER,
        weights_bytes=100,
        kv_bytes_per_token=2,
        process_peak_bytes=130,
    )
    assert need(record, 10) == (100, 20, 30)
    assert need(record, 10).total == 150
    assert need(replace(record, peak_allocated_bytes=110), 10).rest == 10
    assert need(replace(record, process_peak_bytes=None), 10).rest is None


def test_names_that_would_overlap_are_moved_apart_and_keep_their_order() -> None:
    labels = [Label(y, name, "") for y, name in [(1.0, "a"), (1.1, "b"), (5.0, "c"), (1.05, "d")]]
    placed = spread(labels, gap=0.5)
    assert [label.text for label in placed] == ["a", "d", "b", "c"]
    assert all(high.y - low.y >= 0.5 - 1e-9 for low, high in pairwise(placed))
    assert placed[1].y == pytest.approx(1.05)  # the crowd stays around its middle
    assert placed[3].y == 5.0


def test_colours_hold_on_white_and_on_near_black() -> None:
    for colour in {*SERIES, DRAFT, VERIFY, REST}:
        assert contrast(colour, "#ffffff") >= 3
        assert contrast(colour, "#16181c") >= 3
    assert contrast("#ffee00", "#ffffff") < 3  # the check can fail


def test_text_takes_the_page_colour_and_every_reference_is_answered(
    cpu_charts: tuple[Chart, ...],
) -> None:
    svg = "".join(chart.svg for chart in cpu_charts)
    assert "currentColor" in svg
    assert "#010203" not in svg
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg))
    defined = set(re.findall(r' id="([^"]+)"', svg))
    assert {first or second for first, second in used} <= defined
    assert "font-family" not in svg
    assert "<style" not in svg


def test_names_are_text_whatever_they_hold() -> None:
    stored = stored_run(replace(SMALL, drafters=("draft",)))
    hostile = renamed(renamed(stored, "creative", "<b>$\\frac{$</b>&"), "draft", "\u732b\"'")
    found = charts(build_document(hostile))
    assert "<b>$\\frac{$</b>&" in texts(found[0].svg)
    assert "\u732b\"'" in texts(found[0].svg)
    assert all("<b>" not in chart.svg for chart in found)


def contrast(first: str, second: str) -> float:
    """WCAG 2 contrast ratio of two #rrggbb colours."""
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
