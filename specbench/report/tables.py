"""Terminal tables of 80 columns: what was measured, a row a cell."""

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.pairing.reasons import speedup_text
from specbench.records import CellSummary
from specbench.report.answers import compromise_lines
from specbench.report.document import Document
from specbench.report.notes import failure_lines, invalid_lines, warning_lines
from specbench.report.numbers import ABSENT, scalar, significant
from specbench.report.sections import Section, sections

_LEGEND = (
    "speed-up: decode seconds at K=0 / at K over the same prompts, with its 95% interval; "
    "MDE: the smallest effect that this comparison would detect; "
    "length: mean acceptance length, tokens a round; accepted: of the drafted tokens; "
    "draft / verify: share of a round's time."
)


def terminal_report(document: Document) -> RenderableType:
    """Tables, notes and compromises of a run; the answer itself is `answer_lines`."""
    measured = [section for section in sections(document) if section.baseline or section.cells]
    parts: list[RenderableType] = [_table(section) for section in measured]
    if measured:
        parts.append(Text(_LEGEND, style="dim"))
    for lines, style in (
        (failure_lines(document), "red"),
        (invalid_lines(document), "red"),
        (warning_lines(document), "yellow"),
        (compromise_lines(document), ""),
    ):
        if lines:
            parts.append(Text("\n" + "\n".join(lines), style=style))
    return Group(*parts)


def _table(section: Section) -> Table:
    table = Table(
        title=Text(section.title),
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="",
    )
    table.add_column("drafter", overflow="fold", min_width=7)
    for header in ("K", "tok/s", "speed-up [95%]", "MDE", "length", "accepted", "draft /\nverify"):
        table.add_column(header, justify="right", no_wrap=True, vertical="bottom")
    table.add_column("", no_wrap=True)
    named = ""
    for cell, note in _rows(section):
        drafter = "" if cell.key.drafter == named else cell.key.drafter
        named = cell.key.drafter
        style = {"chosen": "bold green", "invalid": "dim"}.get(note, "")
        table.add_row(Text(drafter), *_numbers(cell), note, style=style)
    return table


def _rows(section: Section) -> Iterator[tuple[CellSummary, str]]:
    """Each cell with its note; the note says in words what colour only underlines."""
    for cell in (section.baseline, *section.cells):
        if cell is None:
            continue
        if not cell.valid:
            yield cell, "invalid"
        else:
            yield cell, "chosen" if section.is_chosen(cell.key) else ""


def _numbers(cell: CellSummary) -> tuple[str, ...]:
    get = cell.metrics.get
    speed = scalar(get("decode_tokens_per_s"))
    length = scalar(get("mean_acceptance_length"))
    rate = scalar(get("acceptance_rate"))
    whole, draft, verify = (scalar(get(name)) for name in ("round_s", "draft_s", "verify_s"))
    split = whole and draft is not None and verify is not None
    effect = cell.minimum_detectable_effect
    return (
        str(cell.key.num_speculative_tokens),
        ABSENT if speed is None else significant(speed, 4),
        speedup_text(cell.speedup) if cell.speedup else ABSENT,
        ABSENT if effect is None else f"{effect:.1%}",
        ABSENT if length is None else f"{length:.2f}",
        ABSENT if rate is None else f"{rate:.0%}",
        f"{draft / whole:.0%} / {verify / whole:.0%}" if split else ABSENT,
    )
