"""Charts: their contents, reproducible and readable on any background."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from specbench.records import CellSummary
from specbench.report.charts.bars import parts, round_time_chart
from specbench.report.charts.canvas import (
    DRAFT,
    REST,
    SERIES,
    VERIFY,
    Chart,
    Label,
    drawing,
    series_styles,
    shorten,
    spaced,
)
from specbench.report.charts.lines import _conditional
from specbench.report.charts.speedups import dots, speedup_chart
from specbench.report.document import Document, build_document
from specbench.report.html import pictures
from specbench.report.sections import by_setting, sections
from specbench.words.numbers import speedup_text
from tests.report.conftest import drawn
from tests.report.stored_runs import SMALL, renamed, stored_run

SPEEDUP, ACCEPTANCE, TIME = (
    "Speedup against K",
    "Acceptance per position",
    "Where the round time goes",
)
PROMPTS = "Speedup of each prompt"
MEMORY = "Memory of the target, and with each drafter"


@pytest.fixture(scope="module")
def cpu_charts(cpu_document: Document) -> tuple[Chart, ...]:
    return drawn(cpu_document).all


def redrawn(document: Document, draw: Callable[..., Iterable[Chart | None]]) -> list[Chart]:
    """The charts of one kind, for a document that no other test draws."""
    styles = series_styles(key.source for key in document.run.keys if key.draft.k)
    with drawing():
        return [chart for chart in draw(by_setting(sections(document)), styles) if chart]


def speedups_of(document: Document) -> Chart:
    (chart,) = redrawn(document, lambda groups, styles: [speedup_chart(g, styles) for g in groups])
    return chart


def hover_texts(chart: Chart) -> list[str]:
    titles = [t.text for p in chart.panels for t in ElementTree.fromstring(p).iter("title")]
    return [text for text in titles if text]


def texts(chart: Chart) -> list[str]:
    """Every text of a chart; also a check that its panels are well-formed."""
    drawn = map(ElementTree.fromstring, chart.panels)
    return ["".join(node.itertext()) for panel in drawn for node in panel.iter("text")]


@pytest.mark.slow
def test_every_setting_of_a_run_has_its_charts(
    cpu_charts: tuple[Chart, ...], gpu_document: Document
) -> None:
    assert [chart.title for chart in cpu_charts] == [
        SPEEDUP,
        f"{TIME}: demo/draft",
        f"{TIME}: demo/poor",
        MEMORY,
        PROMPTS,
        ACCEPTANCE,
    ]
    settings = [chart.setting for chart in drawn(gpu_document).all if chart.title == SPEEDUP]
    assert [setting.split(", ")[1] for setting in settings] == ["temperature 0", "temperature 1"]


def test_without_a_drafter_only_memory_is_drawn(baseline_document: Document) -> None:
    assert [chart.title for chart in drawn(baseline_document).all] == [MEMORY]
    assert drawn(replace(baseline_document, memory=())).all == ()


@pytest.mark.slow
def test_equal_documents_give_equal_bytes(
    cpu_document: Document, cpu_charts: tuple[Chart, ...]
) -> None:
    assert pictures(cpu_document).all == cpu_charts


def test_lines_are_labeled_at_their_ends_and_the_chosen_k_at_its_point(
    cpu_document: Document, cpu_charts: tuple[Chart, ...]
) -> None:
    speedup = texts(cpu_charts[0])
    assert speedup.count("draft") == speedup.count("poor") == 2
    chosen = [f"K={d.draft.k}" for d in cpu_document.decisions if d.speedup]
    assert {text for text in speedup if text.startswith("K=")} == set(chosen) - {"K=0"}


def test_a_round_without_timed_parts_is_one_part(
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


def test_names_that_would_overlap_are_moved_apart_and_keep_their_order() -> None:
    labels = [Label(y, name, "") for y, name in [(1.0, "a"), (1.1, "b"), (5.0, "c"), (1.05, "d")]]
    placed = spaced(labels, gap=0.5)
    assert [label.text for label in placed] == ["a", "d", "b", "c"]
    assert all(high.y - low.y >= 0.5 - 1e-9 for low, high in pairwise(placed))
    assert placed[1].y == pytest.approx(1.05)  # most dots stay around the middle
    assert placed[3].y == 5.0


def test_chart_colors_have_contrast_on_light_and_dark_backgrounds() -> None:
    for color in {*SERIES, DRAFT, VERIFY, REST}:
        assert contrast(color, "#ffffff") >= 3
        assert contrast(color, "#16181c") >= 3
    assert contrast("#ffee00", "#ffffff") < 3  # the check can fail


def test_chart_text_inherits_its_color_and_every_svg_reference_exists(
    cpu_charts: tuple[Chart, ...],
) -> None:
    svg = "".join(panel for chart in cpu_charts for panel in chart.panels)
    assert "currentColor" in svg
    assert "#010203" not in svg
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg))
    defined = set(re.findall(r' id="([^"]+)"', svg))
    assert {first or second for first, second in used} <= defined
    assert "font-family" not in svg
    assert "<style" not in svg


def test_a_chart_fits_on_a_phone(cpu_charts: tuple[Chart, ...]) -> None:
    """In 1/72 inch: 390 pixels without the page's margins, text at its full size."""
    widths = [re.search(r'viewBox="0 0 ([\d.]+)', p) for c in cpu_charts for p in c.panels]
    assert max(float(width[1]) for width in widths if width) <= 0.75 * 358


def test_a_long_chart_label_is_shortened_in_its_name_only() -> None:
    assert shorten("demo/draft", 1.0) == "demo/draft"
    assert shorten("a-long-name (step: 9 ms)", 1.0) == "a-long\u2026 9 ms)"
    assert shorten("x" * 99, 0.0) == "x\u2026x"
    long = renamed(stored_run(replace(SMALL, drafters=("draft",))), "demo", "d" * 60)
    every = [text for chart in drawn(build_document(long)).all for text in texts(chart)]
    (note,) = (text for text in every if "speculation costs" in text)
    assert note.startswith("dd")
    assert "\u2026" in note
    assert re.search(r": 1\.76 GiB, .*23\.1 MiB$", note)
    assert max(map(len, every)) <= 52


def test_a_chart_point_has_hover_text(cpu_document: Document) -> None:
    (proof,) = drawn(cpu_document).proof
    cells = [cell for cell in cpu_document.cells if cell.speedup]
    titles = {f"{c.key.draft.drafter}, K={c.key.draft.k}: {speedup_text(c.speedup)}" for c in cells}
    assert set(hover_texts(proof)) == titles


def test_the_chosen_k_has_the_largest_point(cpu_charts: tuple[Chart, ...]) -> None:
    panel = cpu_charts[0].panels[0]  # code
    outlines = dict(re.findall(r'<path id="([^"]+)" d="([^"]+)"', panel))
    points = re.findall(r'<use href="#([^"]+)"[^>]*><title>([^:]+)', panel)
    sizes = {name: max(map(float, re.findall(r"[\d.]+", outlines[i]))) for i, name in points}
    assert len(sizes) == 6  # three K of two drafters
    assert [name for name, size in sizes.items() if size > 3] == ["draft, K=4"]


def test_points_of_fewer_than_five_prompts_are_pale(cpu_document: Document) -> None:
    nums = {2: 3, 4: 5}
    cells = [
        replace(cell, num_prompts=nums.get(cell.key.draft.k, 5)) for cell in cpu_document.cells
    ]
    proof = speedups_of(replace(cpu_document, cells=tuple(cells)))
    pattern = re.compile(r'<use [^>]*style="([^"]*)"[^>]*><title>([^<]*)</title>')
    points = [match for panel in proof.panels for match in pattern.findall(panel)]
    pale = {title for style, title in points if "opacity: 0.35" in style}
    assert pale
    assert pale == {title for _, title in points if "K=2:" in title}


def test_invalid_points_are_hollow_and_labeled(gpu_document: Document) -> None:
    (proof,) = drawn(gpu_document).proof
    pattern = re.compile(r'<use [^>]*style="([^"]*)"[^>]*><title>([^<]*)</title>')
    points = [match for panel in proof.panels for match in pattern.findall(panel)]
    invalid = [title for style, title in points if "fill-opacity: 0;" in style]
    assert invalid == [title for _, title in points if title.endswith(", invalid")]
    assert len(invalid) == 4  # K = 4 of two drafters and workloads
    assert all("K=4" in title for title in invalid)


def test_a_speedup_without_an_interval_is_plotted_as_a_point(
    cpu_document: Document,
) -> None:
    def changed(cell: CellSummary) -> CellSummary:
        if cell.key.draft.k == 1:
            return replace(cell, speedup=None)
        if cell.key.draft.k == 2 and cell.speedup:
            return replace(cell, speedup=replace(cell.speedup, low=None, high=None))
        return cell

    proof = speedups_of(replace(cpu_document, cells=tuple(map(changed, cpu_document.cells))))
    counts = Counter(title.partition(":")[0] for title in hover_texts(proof))
    # Two workloads; a point with an interval has a second text, for the interval.
    assert counts == {"draft, K=2": 2, "poor, K=2": 2, "draft, K=4": 4, "poor, K=4": 4}


def test_a_round_without_an_acceptance_length_has_no_yield_line(cpu_document: Document) -> None:
    def changed(cell: CellSummary) -> CellSummary:
        metrics = {k: v for k, v in cell.metrics.items() if k != "mean_acceptance_length"}
        return replace(cell, metrics=metrics) if cell.key.draft.k == 2 else cell

    document = replace(cpu_document, cells=tuple(map(changed, cpu_document.cells)))
    times = redrawn(document, lambda groups, _: [round_time_chart(groups[0], "demo/draft")])
    texts = [text for chart in times for text in hover_texts(chart) if "tokens per round" in text]
    assert {text.partition(":")[0] for text in texts} == {"K=1", "K=4"}


def test_conditional_rates_of_fewer_than_20_rounds_are_not_drawn(cpu_document: Document) -> None:
    rounds = {"acceptance_histogram": (5, 6, 1, 4, 15)}  # 31, 26, 20 and 19 reach a position
    rates = {"conditional_acceptance_rate": (0.9, 0.8, 0.7, 0.6)}
    cell = cpu_document.cells[-1]
    cell = replace(cell, metrics={**cell.metrics, **rounds, **rates})
    assert _conditional(cell) == (0.9, 0.8, 0.7)


def test_the_prompt_chart_shows_the_speedup_of_every_prompt(
    cpu_document: Document, cpu_charts: tuple[Chart, ...]
) -> None:
    (chart,) = [chart for chart in cpu_charts if chart.title == PROMPTS]
    drawn = hover_texts(chart)
    assert len([text for text in drawn if text.startswith("code-")]) == 2 * 6
    (winner,) = [d for d in cpu_document.decisions if d.draft.k == 4]
    speedups = cpu_document.prompts[winner.leader]
    assert {f"{prompt}: {speedup:.2f}x" for prompt, speedup in speedups.items()} <= set(drawn)
    assert winner.speedup is not None
    dot = re.compile(r'<use [^>]*\bx="([\d.]+)"[^>]*><title>code-\d+: ([\d.]+)x</title>')
    placed = sorted((float(x), float(speed)) for x, speed in dot.findall(chart.panels[0]))
    assert len(placed) == 2 * 6
    assert [speed for _, speed in placed] == sorted(speed for _, speed in placed)
    middle = sorted(speedups.values())[3]
    assert middle == pytest.approx(winner.speedup.estimate, rel=0.1)


def test_very_many_prompts_are_sampled_evenly() -> None:
    shown = list(dots({f"p{i}": float(i) for i in range(1000)}))
    assert len(shown) == 250
    assert [speedup for _, speedup in shown[:3]] == [0.0, 4.0, 8.0]


def test_chart_panels_of_a_page_have_unique_ids(cpu_charts: tuple[Chart, ...]) -> None:
    ids = [i for c in cpu_charts for p in c.panels for i in set(re.findall(r' id="([^"]+)"', p))]
    assert len(ids) == len(set(ids)) > 10


def test_hostile_names_in_charts_are_plain_text() -> None:
    stored = stored_run(replace(SMALL, drafters=("draft",)))
    hostile = renamed(renamed(stored, "creative", "<b>$\\frac{$</b>&\x1b"), "draft", "\u732b\"'")
    charts = drawn(build_document(hostile)).all
    assert "<b>$\\frac{$</b>&\u241b" in texts(charts[0])
    assert "\u732b\"'" in texts(charts[0])
    assert all("<b>" not in panel for chart in charts for panel in chart.panels)


def contrast(first: str, second: str) -> float:
    """WCAG 2 contrast ratio of two #rrggbb colors."""
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(color: str) -> float:
    channels = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
