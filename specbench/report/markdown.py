"""The report as Markdown, for pull requests and job summaries."""

from collections.abc import Iterator, Sequence

from specbench.records import SpeedupVerdict
from specbench.report.answers import SectionAnswer
from specbench.report.blocks import (
    Block,
    Facts,
    Lines,
    Paragraph,
    ReportPart,
    RunReport,
    formulas_part,
    run_report,
    side_by_side_part,
)
from specbench.report.document import Document
from specbench.report.provenance import FactLine
from specbench.untrusted import plain
from specbench.words.answers import decision_text, main_reasons
from specbench.words.table import Legend, Table

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
    """The report of one or more runs: the answers of each run first, formulas at the end."""
    lines = [*_block(side_by_side_part(documents), level=1)]
    for document in documents:
        lines += _run(run_report(document))
    lines += _block(formulas_part(documents), level=2)
    return "\n".join(lines)


def part_to_markdown(part: ReportPart) -> str:
    """A part, as a section that can be appended to a file."""
    return "\n".join(_block(part, level=2)) + "\n"


def escape(text: str) -> str:
    """Text escaped so that Markdown shows it as it is."""
    return plain(text).translate(_ESCAPES).replace("](", "]\\(")


def _run(report: RunReport) -> Iterator[str]:
    yield from (f"# {escape(report.question)}", "", f"{escape(report.setup)}.", "")
    yield from (f"**{escape(report.conclusion)}.**", "")
    for answer in report.answers:
        yield from _answer(answer)
    for block in (report.shared, report.which_pass, *report.parts):
        yield from _block(block, level=2) if block else ()


def _answer(answer: SectionAnswer) -> Iterator[str]:
    mark = "**" if answer.verdict is SpeedupVerdict.FASTER else ""
    yield f"- {mark}{escape(answer.title)}: {escape(answer.headline)}{mark}"
    if answer.quoted:
        yield from (f"  - {escape(reason)}" for reason in main_reasons(answer.quoted))
    for decision in answer.unquoted:
        yield f"  - {escape(decision.leader.source)}: {escape(decision_text(decision))}"
        yield from (f"    - {escape(reason)}" for reason in main_reasons(decision))
    yield ""


def _block(block: Block, *, level: int) -> Iterator[str]:
    """The lines of a block; empty for charts and rounds, which need a page, and for reasons."""
    match block:
        case ReportPart():
            below = level + 1 if block.title else level
            lines = [line for part in block.blocks for line in _block(part, level=below)]
            if lines and block.title:
                yield from (f"{'#' * level} {escape(block.title)}", "")
            yield from lines
        case Lines(is_answer=True):
            yield from (f"**{escape(line)}**\n" for line in block.lines)
        case Lines() if block.lines:
            yield from (*(f"- {escape(line)}" for line in block.lines), "")
        case Paragraph():
            yield from (escape(block.text), "")
        case Legend():
            yield from (*(f"- **{escape(h)}**: {escape(text)}" for h, text in block.entries), "")
        case Facts():
            yield from (*map(_fact, block.facts), "")
        case Table():
            yield from _grid(block, level=level if block.has_title else None)


def _fact(fact: FactLine) -> str:
    name = f"**{fact.name}** ({fact.unit})" if fact.unit else escape(fact.name)
    return f"- {name}: {escape(fact.value)}"


def _grid(grid: Table, *, level: int | None) -> Iterator[str]:
    if level is not None:
        yield from (f"{'#' * level} {escape(grid.title)}", "")
    rule = ("---" if grid.is_words(i) else "---:" for i in range(len(grid.headers)))
    for line in (grid.headers, rule, *grid.rows):
        yield f"| {' | '.join(escape(text) for text in line)} |"
    yield ""
