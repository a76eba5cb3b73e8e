"""The report as Markdown: for a pull request, a job summary, a design review."""

from collections.abc import Iterator, Sequence

from specbench.decide.recommend import Verdict
from specbench.plain_text import plain
from specbench.report.answers import answer, compromise_lines, without_workload
from specbench.report.comparisons import comparison_grids
from specbench.report.document import Document
from specbench.report.forecasts import forecast_legend, forecast_lines
from specbench.report.grids import (
    Grid,
    metric_grids,
    position_grid,
    result_grid,
    result_legend,
)
from specbench.report.memory import memory_grid, memory_legend
from specbench.report.notes import notes
from specbench.report.provenance import (
    formulas,
    model_grid,
    provenance,
    question,
    setup,
    which_pass,
)
from specbench.report.sections import Section, sections
from specbench.report.sessions import sessions_grid, sessions_legend
from specbench.report.several_runs import answers_grid, differences_grid

_ESCAPES = str.maketrans(
    {
        "\\": "\\\\",
        "&": "&amp;",
        "<": "&lt;",
        "|": "\\|",
        "`": "\\`",
        "*": "\\*",
        "\n": " ",
    }
)


def to_markdown(documents: Sequence[Document]) -> str:
    """One text for one or more runs, each beginning with its answer; formulas at the end."""
    lines: list[str] = []
    beside = answers_grid(documents), differences_grid(documents)
    lines += (line for grid in beside if grid for line in _table(grid, level=2))
    for document in documents:
        lines += _run(document)
    lines += ["## Formulas", ""]
    lines += (
        f"- **{formula.name}** ({formula.unit}): {escape(formula.text)}"
        for formula in formulas(tuple(documents))
    )
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no HTML, no link, no new table cell."""
    return plain(text).translate(_ESCAPES).replace("](", "]\\(")


def _run(document: Document) -> Iterator[str]:
    every = sections(document)
    yield from (f"# {escape(question(document))}", "", f"{escape(setup(document))}.", "")
    for section in every:
        yield from _answer(section)
    yield from _items("", compromise_lines(document))
    yield from _items("", forecast_lines(document))
    yield from (which_pass(document), "")
    for heading, lines in notes(document).items():
        yield from _items(f"## {heading}", lines)
    memory = memory_grid(document)
    if memory:
        yield from ("## Memory", "")
        yield from _table(memory, heading=False)
        yield from (escape(memory_legend(document)), "")
    yield from ("## Results", "")
    for section in every:
        if section.measured:
            yield from _table(result_grid(section))
    yield from (escape(result_legend(every)), "")
    comparisons = comparison_grids(document)
    if comparisons:
        yield from ("## Comparisons", "")
        for grid in comparisons:
            yield from _table(grid)
        if document.forecasts:
            yield from (escape(forecast_legend(document)), "")
    sessions = sessions_grid(document)
    if sessions:
        yield from ("## Sessions", "")
        yield from _table(sessions, heading=False)
        yield from (escape(sessions_legend(document)), "")
    positions = [grid for grid in map(position_grid, every) if grid]
    if positions:
        yield from ("## Acceptance per position", "")
        for grid in positions:
            yield from _table(grid)
    models = model_grid(document)
    yield from ("## Provenance", "")
    yield from (f"- {escape(fact.name)}: {escape(fact.value)}" for fact in provenance(document))
    yield ""
    if models:
        yield from _table(models, heading=False)
    yield from ("## All metrics", "")
    for section in every:
        for grid in metric_grids(section):
            yield from _table(grid)


def _answer(section: Section) -> Iterator[str]:
    found = answer(section)
    mark = "**" if found.verdict is Verdict.HELPS else ""
    yield f"- {mark}{escape(found.title)}: {escape(found.headline)}{mark}"
    yield from (f"  - {escape(reason)}" for reason in found.reasons)
    for other in found.others:
        yield f"  - {escape(other.leader.source)}: {escape(without_workload(other))}"
        yield from (f"    - {escape(reason)}" for reason in other.reasons)
    yield ""


def _items(heading: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield from (heading, "") if heading else ()
        yield from (f"- {escape(line)}" for line in lines)
        yield ""


def _table(grid: Grid, *, heading: bool = True, level: int = 3) -> Iterator[str]:
    if heading:
        yield from (f"{'#' * level} {escape(grid.title)}", "")
    rule = ("---" if grid.is_words(i) else "---:" for i in range(len(grid.headers)))
    for line in (grid.headers, rule, *grid.rows):
        yield f"| {' | '.join(escape(text) for text in line)} |"
    yield ""
