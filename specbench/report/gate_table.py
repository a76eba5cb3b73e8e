"""A gate on the terminal: a table a cell, within 80 columns."""

from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.gate.check import Gate
from specbench.gate.judging import GateVerdict, Judgement
from specbench.report.gate_words import (
    HEADERS,
    LEGEND,
    chance_note,
    detail_lines,
    row,
    title,
)
from specbench.report.tables import titled_table

_STYLES = {
    GateVerdict.PASS: "",
    GateVerdict.INCONCLUSIVE: "yellow",
    GateVerdict.MISSING: "yellow",
    GateVerdict.REGRESSION: "bold red",
}


def gate_table(gate: Gate) -> Group:
    """All but the answer itself, which is `gate_words.headline`."""
    parts: list[RenderableType] = [Text(title(gate)), ""]
    ordered = sorted(gate.judgements, key=lambda j: j.cell.id)
    for cell, judgements in groupby(ordered, key=lambda j: j.cell):
        parts += [_table(cell.label, list(judgements)), ""]
    parts += [Text(line) for line in detail_lines(gate)]
    parts += [Text(f"{LEGEND} {chance_note(gate)}".rstrip(), style="dim"), ""]
    return Group(*parts)


def _table(name: str, judgements: list[Judgement]) -> Table:
    table = titled_table(name)
    for i, header in enumerate(HEADERS):
        is_words = i in (0, len(HEADERS) - 1)
        table.add_column(
            header, justify="left" if is_words else "right", overflow="fold", no_wrap=i > 0
        )
    for judgement in judgements:
        table.add_row(*row(judgement), style=_STYLES[judgement.verdict])
    return table
