"""A gate as Markdown: a CI job's summary, or a comment on a pull request."""

from collections.abc import Iterator
from itertools import groupby

from specbench.gate.check import Gate
from specbench.gate.judging import GateVerdict, Judgement
from specbench.report.gate_words import (
    HEADERS,
    LEGEND,
    REFUSED,
    chance_note,
    detail_lines,
    headline,
    row,
    title,
)
from specbench.report.markdown import escape


def gate_markdown(gate: Gate) -> str:
    """The answer, why, and a table; whole lines, so that it can be appended to a file."""
    return "\n".join(_lines(gate)) + "\n"


def refusal_markdown(reason: str) -> str:
    """The same where the two sides must not be compared: why."""
    first, *rest = reason.splitlines() or [""]
    lines = (f"## specbench check: {REFUSED}", "", f"**{escape(first)}**", "")
    return "\n".join((*lines, *(f"- {escape(line.strip())}" for line in rest), "")) + "\n"


def _lines(gate: Gate) -> Iterator[str]:
    yield from (f"## specbench check: {gate.verdict.value}", "")
    yield from (f"**{escape(headline(gate))}**", "")
    yield from (f"- {escape(line)}" for line in detail_lines(gate))
    yield from ("", f"{escape(title(gate))}.", "")
    yield f"| cell | {' | '.join(HEADERS)} |"
    yield f"| --- | --- | {'---: | ' * (len(HEADERS) - 2)}--- |"
    ordered = sorted(gate.judgements, key=lambda j: j.cell.id)
    for _, judgements in groupby(ordered, key=lambda j: j.cell):
        for i, judgement in enumerate(judgements):
            yield _row(judgement, is_first=i == 0)
    yield from ("", escape(f"{LEGEND} {chance_note(gate)}".rstrip()), "")


def _row(judgement: Judgement, *, is_first: bool) -> str:
    mark = "**" if judgement.verdict is GateVerdict.REGRESSION else ""
    *values, verdict = (escape(text) for text in row(judgement))
    name = escape(judgement.cell.label) if is_first else ""
    return f"| {' | '.join((name, *values))} | {mark}{verdict}{mark} |"
