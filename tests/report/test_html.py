"""The page: one file, no network, only its own script, everything escaped."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import pytest

from specbench.records import FailureRecord, Kind, SpeedupVerdict
from specbench.report import html as html_page
from specbench.report.blocks import Block
from specbench.report.document import Document, build_document
from specbench.report.html import to_html
from specbench.words.answers import text
from tests.report.stored_runs import SMALL, renamed, stored_run

HOSTILE = "\"><script>alert(1)</script>'<img src=x onerror=alert(2)>"
SCRIPT = (Path(html_page.__file__).parent / "table.js").read_text()
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Tags, attributes and visible text; fails at tags that do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.scripts: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"style", "script"}:
            self.text += data
        elif self.open and self.open[-1] == "script":
            self.scripts.append(data)


@pytest.fixture(scope="module")
def html(cpu_document: Document) -> str:
    return to_html([cpu_document])


@pytest.fixture(scope="module")
def two_runs(cpu_document: Document, gpu_document: Document) -> str:
    return to_html([cpu_document, gpu_document])


def why_section(html: str) -> str:
    end = html.index('<details class="part"><summary><h2>What it costs</h2>')
    return Page(html[html.index("<h2>Why</h2>") : end]).text


@pytest.mark.slow
def test_the_page_starts_with_the_answer_and_ends_with_provenance(html: str) -> None:
    text = Page(html).text
    parts = ("Read before", "Speedup against K", "Why", "What it costs", "Evidence", "Provenance")
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert "answers the confirmation run" in text
    assert html.count("<svg", 0, html.index("<h2>Why</h2>")) == 2  # the chart that proves it
    assert html.index("<h2>Why</h2>") < html.index("<table")


def test_a_verdict_per_pairing_and_workload_comes_first(html: str, cpu_document: Document) -> None:
    first = html[: html.index("<svg")]
    cards = re.findall(r'<li class="(\w+)">\s*<p class="about">(.*?)</p>', first)
    assert sorted(title for _, title in cards) == sorted(
        f"{d.leader.source}, {d.condition.workload}" for d in cpu_document.decisions
    )
    colors = {SpeedupVerdict.FASTER: "good", SpeedupVerdict.NO_SPEEDUP: "bad"}
    for d in cpu_document.decisions:
        card = (colors.get(d.verdict, "open"), f"{d.leader.source}, {d.condition.workload}")
        assert card in cards


def test_the_first_sentence_answers_the_title(html: str) -> None:
    assert html.index("<h1>") < html.index('class="conclusion"') < html.index('class="answers"')


def test_a_verdict_without_pairing_is_not_measured(baseline_document: Document) -> None:
    page = to_html([baseline_document])
    assert '<span class="chip">not measured</span>' in page
    assert "<h2>Why</h2>" not in page


def test_sections_other_than_the_answer_chart_and_reasons_are_folded(html: str) -> None:
    shown = re.sub(r"<details.*?</details>", "", html, flags=re.DOTALL)
    assert shown[: shown.index("<h2>Evidence</h2>")].count("<table") == 1  # why
    titles = re.findall(r'<details class="part"><summary><h\d>(.*?)</h\d>', html)
    assert {"What it costs", "Results", "Provenance", "Formulas"} <= set(titles)


def test_every_verdict_is_a_row_of_why_and_its_other_reasons_are_folded(
    cpu_document: Document,
) -> None:
    poor = build_document(stored_run(replace(SMALL, drafters=("poor",))))
    for document in (cpu_document, poor):
        page = to_html([document])
        for decision in document.decisions:
            assert decision.reasons
            assert all(text(reason) in why_section(page) for reason in decision.reasons)
        shown = re.sub(r"<details.*?</details>", "", page, flags=re.DOTALL)
        why = shown[shown.index("<h2>Why</h2>") :]
        assert why[: why.index("</table>")].count("<tr") == 1 + len(document.decisions)


def test_a_verdict_label_is_not_repeated_in_its_sentence(html: str) -> None:
    cards = re.findall(r'<span class="chip">([\w ]+)</span>.*?<p>(.*?)</p>', html, re.DOTALL)
    assert cards
    assert not [text for word, text in cards if text.startswith(word)]


def test_the_template_renders_every_kind_of_block() -> None:
    template = (Path(html_page.__file__).parent / "template.html").read_text()
    kinds = {kind.__name__ for kind in get_args(Block) if isinstance(kind, type)} | {"ReportPart"}
    assert len(kinds) == 8
    assert {kind for kind in kinds if f'"{kind}"' not in template} == set()


def test_the_page_loads_no_external_resources(html: str) -> None:
    page = Page(html)
    assert "://" not in html
    assert not {"link", "img", "iframe", "object", "base"} & page.tags
    assert page.scripts == [SCRIPT]
    assert not re.search(
        r"fetch|XMLHttpRequest|import|WebSocket|innerHTML|eval|localStorage", SCRIPT
    )
    assert not [n for n, v in page.attributes if n in {"src", "href"} and not v.startswith("#")]
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert not re.search(r"@import|url\((?!#)", html)


def test_the_page_contains_every_chart_and_metric(html: str, cpu_document: Document) -> None:
    assert html.count("<svg ") == 11  # five charts of two workloads, and memory
    rows = html.count("<tr") - html.count("<thead>")
    assert rows > len(cpu_document.cells)
    names = {name for cell in cpu_document.cells for name in cell.metrics}
    text = Page(html).text
    assert {name for name in names if name not in text} == set()
    assert "joules_per_token" not in text


def test_absent_values_are_marked_and_never_numbers(html: str) -> None:
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b", Page(html).text)
    assert ">-</td>" in html


def test_dark_mode_and_print_are_provided_for(html: str) -> None:
    assert "@media (prefers-color-scheme: dark)" in html
    assert "@media print" in html
    assert '<meta name="color-scheme" content="light dark">' in html


def test_the_chosen_rows_are_marked(html: str, cpu_document: Document) -> None:
    chosen = sum(decision.draft.method != "none" for decision in cpu_document.decisions)
    assert html.count('<tr class="chosen">') == chosen > 0


@pytest.mark.slow
def test_failures_and_invalid_cells_are_reported(two_runs: str) -> None:
    assert re.search("demo/broken: .*loading: .*: models/broken", two_runs)
    assert two_runs.count('<tr class="invalid">') == 8
    assert re.search("demo/poor K=4 \\(code, .*0 and creative, .*0\\): throttled", two_runs)
    assert "rely on it: 1 not measured<" in two_runs
    assert "rely on it: 2 invalid-cell notes<" in two_runs


def test_the_page_marks_an_interrupted_run(interrupted_document: Document) -> None:
    text = Page(to_html([interrupted_document])).text
    assert "interrupted" in text
    assert "no confirmation run" in text


@pytest.mark.slow
def test_several_runs_share_one_page(two_runs: str) -> None:
    assert two_runs.count('<section class="run">') == 2
    assert two_runs.index("2 runs side") < two_runs.index('<section class="run">')
    assert two_runs.count("<h2>Formulas</h2>") == 1
    assert Page(two_runs).text.count("make demo faster on ") == 3  # once in the title


@pytest.mark.slow
@pytest.mark.parametrize("name", ["demo", "draft", "creative"])
def test_hostile_names_are_escaped_in_html(name: str) -> None:
    stored = renamed(stored_run(replace(SMALL, drafters=("draft",))), name, HOSTILE)
    refuse_markup(to_html([build_document(stored)]))


def test_hostile_errors_warnings_and_commands_are_escaped() -> None:
    stored = stored_run(replace(SMALL, drafters=("draft",)))
    first, *rest = stored.blocks
    failed = replace(first.requests[1], finish_reason="failed", error=HOSTILE, rounds=None)
    block = replace(first, requests=(first.requests[0], failed, *first.requests[2:]))
    environment = replace(stored.run.environment, command=(HOSTILE,), cpu=HOSTILE)
    hostile = replace(
        stored,
        run=replace(stored.run, environment=environment, warnings=(Kind.NOTE(text=HOSTILE),)),
        blocks=(block, *rest),
        models=tuple(replace(model, source=HOSTILE) for model in stored.models),
        failures=(
            FailureRecord(pairing=HOSTILE, workload=HOSTILE, stage="decode", reason=HOSTILE),
        ),
    )
    refuse_markup(to_html([build_document(hostile)]))


def refuse_markup(html: str) -> None:
    page = Page(html)
    assert HOSTILE in page.text
    assert "img" not in page.tags
    assert page.scripts == [SCRIPT]
    assert not [name for name, _ in page.attributes if name.startswith("on")]
