"""The report as one HTML page that needs no network and no other file, and no script to be read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from specbench.decide.recommend import Verdict
from specbench.plain_text import plain
from specbench.report.answers import Answer, answer, compromise_lines, without_workload
from specbench.report.charts.canvas import drawing
from specbench.report.charts.speedups import answers_charts
from specbench.report.columns import Column
from specbench.report.comparisons import comparison_grids
from specbench.report.document import Document
from specbench.report.forecasts import forecast_legend, forecast_lines
from specbench.report.grids import Grid, metric_grids, position_grid, result_columns, result_grid
from specbench.report.memory import memory_grid, memory_legend
from specbench.report.notes import notes
from specbench.report.numbers import listed, plural
from specbench.report.pictures import Pictures, pictures
from specbench.report.provenance import (
    Fact,
    formulas,
    model_grid,
    provenance,
    question,
    setup,
    which_pass,
)
from specbench.report.sections import sections
from specbench.report.sessions import sessions_grid, sessions_legend
from specbench.report.several_runs import answers_grid, differences_grid
from specbench.report.steps import STEPS_LEGEND, Steps, steps

_TEMPLATE = Path(__file__).with_name("template.html")
_SCRIPT = Path(__file__).with_name("table.js")
_CHIPS = {
    Verdict.HELPS: ("good", "speculate"),
    Verdict.GAINS_NOTHING: ("bad", "do not speculate"),
    Verdict.NOT_SHOWN: ("open", "undecided"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """What the template shows of one run, in the order of a reader."""

    id: str
    question: str
    setup: str
    answers: tuple[Answer, ...]
    compromises: list[str]
    which_pass: str
    noted: str  # what the notes hold; "" without one
    pictures: Pictures
    memory: Grid | None
    memory_legend: str
    notes: dict[str, list[str]]  # by heading
    comparisons: tuple[Grid, ...]
    results: tuple[Grid, ...]
    columns: tuple[Column, ...]  # of the results
    forecast_legend: str
    sessions: Grid | None
    sessions_legend: str
    positions: tuple[Grid, ...]
    generations: tuple[Steps, ...]
    metrics: tuple[Grid, ...]
    facts: tuple[Fact, ...]
    models: Grid | None


def to_html(documents: Sequence[Document]) -> str:
    """One page for one or more runs, several beside each other first; all text is escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["without_workload"] = without_workload
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    with drawing():
        beside = tuple(answers_charts(documents))
    page: str = template.render(
        answers=answers_grid(documents),
        answers_charts=beside,
        differences=differences_grid(documents),
        script=_SCRIPT.read_text(encoding="utf-8"),
        runs=[_run(document) for document in documents],
        chips=_CHIPS,
        steps_legend=STEPS_LEGEND,
        formulas=formulas(tuple(documents)),
    )
    return plain(page)


def _run(document: Document) -> _Run:
    every = sections(document)
    found = notes(document)
    return _Run(
        id=document.run.run_id,
        question=question(document),
        setup=setup(document),
        answers=tuple(map(answer, every)),
        compromises=[*compromise_lines(document), *forecast_lines(document)],
        which_pass=which_pass(document),
        noted=_noted(found),
        pictures=pictures(document),
        memory=memory_grid(document),
        memory_legend=memory_legend(document),
        notes=found,
        comparisons=comparison_grids(document),
        results=tuple(result_grid(section) for section in every if section.measured),
        columns=result_columns(every),
        forecast_legend=forecast_legend(document),
        sessions=sessions_grid(document),
        sessions_legend=sessions_legend(document),
        positions=tuple(grid for grid in map(position_grid, every) if grid),
        generations=steps(document),
        metrics=tuple(grid for section in every for grid in metric_grids(section)),
        facts=provenance(document),
        models=model_grid(document),
    )


def _noted(found: dict[str, list[str]]) -> str:
    """`2 not measured, 1 invalid-cell note and 3 warnings`: they stand with the evidence."""
    counts = {heading: len(lines) for heading, lines in found.items()}
    said = [
        f"{n} not measured" if heading == "Not measured" else plural(n, _ONE_NOTE[heading])
        for heading, n in counts.items()
    ]
    return listed(said) if said else ""


_ONE_NOTE = {"Invalid cells": "invalid-cell note", "Warnings": "warning"}
