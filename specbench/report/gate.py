"""A gate as sentences, a terminal table, Markdown, JSON and JUnit XML."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from pydantic_core import to_jsonable_python
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.gate.attribution import Attribution, Cause, Shift
from specbench.gate.baseline import Snapshot
from specbench.gate.check import Gate
from specbench.gate.fingerprint import THREADS
from specbench.gate.judging import CELL, FALSE_ALARM, GateVerdict, Judgement
from specbench.gate.tolerances import MetricKind, default_tolerances, deviation_floor
from specbench.metrics.registry import all_metrics
from specbench.records import NO_DRAFTER, Interval
from specbench.report.markdown import escape
from specbench.report.numbers import (
    ABSENT,
    effect_text,
    listed,
    measured,
    number,
    plural,
    scale_of,
)
from specbench.report.terminal import titled_table


def baseline_lines(baseline: Snapshot) -> Iterator[str]:
    """A line a cell that speculates, or where none does a line a cell."""
    device = baseline.fingerprint.device
    drafting = [cell for cell in baseline.cells if cell.key.draft.drafter != NO_DRAFTER]
    for cell in drafting or baseline.cells:
        told = []
        for name in (tolerance.metric for tolerance in default_tolerances(device)):
            figure = cell.figures.get(name)
            if figure is not None:
                metric = all_metrics()[name]
                spread = "" if figure.deviation is None else f" +- {figure.deviation:.2%}"
                told.append(f"{name} {measured(figure.value, metric.unit)}{spread}")
        yield f"{cell.key.label}: {', '.join(told)}"
    for run in baseline.noise:
        yield (
            f"measured on a busy machine: {run}. `check` cannot judge absolute times against this "
            "baseline; measure it again while nothing else runs"
        )
    threads = baseline.fingerprint.hardware.get(THREADS, "")
    if threads.count("|"):
        yield (
            f"threads: {threads}: a check with this baseline compares no absolute times; give "
            "every run the same --threads"
        )
    if baseline.num_runs == 1:
        floors = ((kind, deviation_floor(kind, device)) for kind in MetricKind)
        granted = ", ".join(f"{floor:.1%} of a {kind.value}" for kind, floor in floors if floor)
        yield (
            f"one run does not show the variation between runs; assumed: {granted}. Pool several "
            "runs to measure it"
        )


HEADERS = ("metric", "before", "after", "change +- 95 %", "limit", "MDE", "verdict")
REFUSED = "refused"  # stands for a verdict where the two sides must not be compared
LEGEND = (
    "before, after: baseline and candidate; limit: tolerated change; MDE: minimum detectable "
    "loss beyond the limit, at 80 % power."
)


class JudgementRow(NamedTuple):
    """A judgement as a table shows it, in the order of HEADERS."""

    metric: str
    before: str
    after: str
    change: str
    limit: str
    mde: str
    verdict: str


def row(judgement: Judgement) -> JudgementRow:
    unit, effect = judgement.unit, judgement.minimum_detectable_effect
    return JudgementRow(
        judgement.metric,
        _value(judgement.baseline, unit),
        _value(judgement.candidate, unit),
        _change(judgement.change),
        _limit(judgement),
        ABSENT if effect is None else effect_text(effect),
        judgement.verdict.value
        if judgement.verdict is GateVerdict.PASS
        else judgement.verdict.upper(),
    )


def title(gate: Gate) -> str:
    """The two sides of the comparison."""
    ids = [origin.run_id for origin in gate.baseline.origins]
    runs = ids[0] if len(ids) == 1 else f"{len(ids)} runs, {ids[0]} the first"
    return f"{gate.candidate.origins[0].run_id} against {runs}"


def headline(gate: Gate) -> str:
    """The answer in one sentence."""
    by_verdict = {v: [j for j in gate.judgements if j.verdict is v] for v in GateVerdict}
    cells = len({judgement.cell for judgement in gate.judgements})
    count = f"{plural(len(gate.judgements), 'comparison')} of {plural(cells, 'cell')}"
    worst = by_verdict[gate.verdict]
    if gate.verdict is GateVerdict.PASS:
        tolerated = ", ".join(f"{t.metric} {100 * t.share:.3g}%" for t in gate.tolerances)
        return f"PASS: {count}, none worse than tolerated ({tolerated})"
    return f"{gate.verdict.upper()}: {_first(worst, count)}{first_cause(gate, worst[0])}"


def first_cause(gate: Gate, judgement: Judgement) -> str:
    """`; cause: changed weights` of a regression, else what changed; empty if it is unknown."""
    found = next((a for a in gate.attributions if a.cell == judgement.cell and a.causes), None)
    if found is None:
        return ""
    if judgement.verdict is GateVerdict.REGRESSION:
        return f"; cause: {found.causes[0].value}"
    return f"; possible cause: {found.causes[0].value}" if found.changes else ""


def detail_lines(gate: Gate) -> tuple[str, ...]:
    """Causes first, then what the table's numbers do not say, then what else changed."""
    return (
        *(cause_text(found) for found in gate.attributions),
        *_reasons(gate.judgements),
        *(
            f"allowed to differ: {d.name}: {d.baseline} in the baseline, {d.candidate} now"
            for d in gate.allowed
        ),
        *(f"changed since: {d.name}: {d.baseline} -> {d.candidate}" for d in gate.changes),
        *gate.notes,
    )


def chance_note(gate: Gate) -> str:
    """How far a verdict could be due to chance; empty if none could."""
    compared = {j.verdict for j in gate.judgements} - {GateVerdict.MISSING}
    if not gate.num_tests:
        if not compared or GateVerdict.INCONCLUSIVE in compared:  # nothing compared, or no interval
            return ""
        return "No false alarms are possible: everything compared here repeats exactly."
    return (
        f"{plural(gate.num_tests, 'comparison')} of noisy figures (Holm): identical runs fail by "
        f"chance in at most {FALSE_ALARM:.0%} of cases."
    )


def cause_text(found: Attribution) -> str:
    """`demo/draft K=5 on code: acceptance: fell from 3.1 to 2.2 tokens a round ...`."""
    name = found.cell.label
    if not found.causes:
        return f"{name}: cause unknown: {', '.join(found.metrics)} regressed"
    possible = "" if found.metrics else "possible cause: "
    return f"{name}: {possible}{listed([cause.value for cause in found.causes])}: {_why(found)}"


def _why(found: Attribution) -> str:
    """The evidence for each cause, in the order of `Cause`."""
    causes = set(found.causes)
    is_longer = bool(causes & {Cause.DRAFT_COST, Cause.VERIFICATION, Cause.ROUND_TIME})
    told = [f"{d.name} {d.baseline} -> {d.candidate}" for d in found.changes]
    if found.acceptance and (is_longer or Cause.ACCEPTANCE in causes):
        told.append(_acceptance(found, found.acceptance))
    if Cause.TEXT in causes:
        told.append("greedy output changed")
    if is_longer and found.round:
        told.append(_round_time(found, found.round))
    elif Cause.ACCEPTANCE in causes and found.round:
        told.append(f"round time {_moved(found.round)}")
    if causes & {Cause.MEMORY, Cause.PREFILL}:
        told.append(f"{', '.join(found.metrics)} rose")
    is_in_steps = found.metrics and found.round is not None and found.round.unit == "steps"
    if is_in_steps and found.step and found.step.log > 0:
        told.append(
            f"K = 0 is slower too, {_moved(found.step)} per step: driver, clocks, packages or the "
            "machine"
        )
    return "; ".join(told)


def _acceptance(found: Attribution, shift: Shift) -> str:
    if Cause.ACCEPTANCE not in found.causes:
        return f"acceptance held ({_moved(shift)})"
    curve = " -> ".join(" ".join(f"{rate:.0%}" for rate in rates) for rates in found.curve if rates)
    positions = f", by position {curve}" if curve else ""
    return f"fewer drafts are accepted, {_moved(shift)}{positions}"


def _round_time(found: Attribution, shift: Shift) -> str:
    parts = [f"{part.name} {_moved(part)}" for part in found.slower]
    told = f"a round takes longer, {_moved(shift)}"
    if shift.unit == "s" and shift.log <= 0 and found.step:
        told = f"a round takes {_moved(shift)}, and a K = 0 step got faster, {_moved(found.step)}"
    return f"{told}: {', '.join(parts)}" if parts else told


def _moved(shift: Shift) -> str:
    scale = scale_of(shift.unit, max(shift.before, shift.after))
    ends = (number(value, shift.unit, scale) for value in (shift.before, shift.after))
    return f"{' -> '.join(ends)} {scale.unit}"


def _first(worst: Sequence[Judgement], count: str) -> str:
    first = worst[0]
    told = f"{first.cell.label}: {'' if first.metric == CELL else first.metric}"
    if first.change is not None and first.baseline is not None and first.candidate is not None:
        values = (
            f"{measured(first.baseline, first.unit)} -> {measured(first.candidate, first.unit)}"
        )
        told += f" {values}, {first.change.estimate:+.1%} where {_limit(first)} is tolerated"
    if first.reason:
        told = f"{told.removesuffix(': ')}: {first.reason}"
    return f"{told} ({len(worst)} of {count})"


def _reasons(judgements: Sequence[Judgement]) -> Iterator[str]:
    for judgement in judgements:
        effect = judgement.minimum_detectable_effect
        if judgement.verdict is GateVerdict.INCONCLUSIVE and effect is not None:
            seen = f"; minimum detectable loss: {effect_text(effect)} beyond it"
        else:
            seen = ""
        if judgement.reason:
            metric = "" if judgement.metric == CELL else f"{judgement.metric}: "
            yield f"{judgement.cell.label}: {metric}{judgement.reason}{seen}"


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return ABSENT
    if unit == "texts":
        return f"{value:,.0f} texts"
    scale = scale_of(unit, value)
    mark = scale.unit if scale.unit in {"%", "x", "ms", "GiB", "MiB", "KiB"} else ""
    gap = " " if mark not in {"", "%", "x"} else ""
    return f"{number(value, unit, scale)}{gap}{mark}"


def _change(change: Interval | None) -> str:
    if change is None:
        return ABSENT
    if change.low is None or change.high is None or change.low == change.high:
        return f"{change.estimate:+.1%}"
    return f"{change.estimate:+.1%} +- {100 * (change.high - change.low) / 2:.1f}"


def _limit(judgement: Judgement) -> str:
    if judgement.tolerance is None:
        return ABSENT
    metric = all_metrics()[judgement.metric.partition("[")[0]]
    return f"{'-' if metric.better == 'higher' else '+'}{100 * judgement.tolerance:.3g}%"


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
        parts += [_terminal_table(cell.label, list(judgements)), ""]
    parts += [Text(line) for line in detail_lines(gate)]
    parts += [Text(f"{LEGEND} {chance_note(gate)}".rstrip(), style="dim"), ""]
    return Group(*parts)


def _terminal_table(name: str, judgements: list[Judgement]) -> Table:
    table = titled_table(name)
    for i, header in enumerate(HEADERS):
        is_words = i in (0, len(HEADERS) - 1)
        table.add_column(
            header, justify="left" if is_words else "right", overflow="fold", no_wrap=i > 0
        )
    for judgement in judgements:
        table.add_row(*row(judgement), style=_STYLES[judgement.verdict])
    return table


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
            yield _markdown_row(judgement, is_first=i == 0)
    yield from ("", escape(f"{LEGEND} {chance_note(gate)}".rstrip()), "")


def _markdown_row(judgement: Judgement, *, is_first: bool) -> str:
    mark = "**" if judgement.verdict is GateVerdict.REGRESSION else ""
    *values, verdict = (escape(text) for text in row(judgement))
    name = escape(judgement.cell.label) if is_first else ""
    return f"| {' | '.join((name, *values))} | {mark}{verdict}{mark} |"


JSON_VERSION = 1


def gate_json(gate: Gate) -> dict[str, Any]:
    """One document; keys are added without a new version."""
    return {
        "schema_version": JSON_VERSION,
        "verdict": gate.verdict.value,
        "sentence": headline(gate),
        "false_alarm": FALSE_ALARM,
        "num_tests": gate.num_tests,
        "baseline": _side_json(gate.baseline),
        "candidate": _side_json(gate.candidate),
        "tolerances": {t.metric: t.share for t in gate.tolerances},
        "judgements": [_judgement_json(judgement) for judgement in gate.judgements],
        "attributions": [_attribution_json(found) for found in gate.attributions],
        "allowed": [d._asdict() for d in gate.allowed],
        "changes": [d._asdict() for d in gate.changes],
        "notes": list(gate.notes),
    }


def refusal_json(reason: str) -> dict[str, Any]:
    """The document where the two sides must not be compared, or one of them cannot be read."""
    return {"schema_version": JSON_VERSION, "verdict": REFUSED, "sentence": reason}


def _side_json(side: Snapshot) -> dict[str, Any]:
    found: dict[str, Any] = to_jsonable_python(
        {"runs": side.origins, "fingerprint": side.fingerprint}
    )
    return found


def _judgement_json(judgement: Judgement) -> dict[str, Any]:
    found: dict[str, Any] = to_jsonable_python(judgement)
    return {**found, "cell": judgement.cell.id}


def _attribution_json(found: Attribution) -> dict[str, Any]:
    document: dict[str, Any] = to_jsonable_python(found)
    before, after = found.curve
    return {
        **document,
        "cell": found.cell.id,
        "changes": [d._asdict() for d in found.changes],
        "curve": {"before": list(before), "after": list(after)},
        "sentence": cause_text(found),
    }


_ELEMENTS = {
    GateVerdict.REGRESSION: "failure",
    GateVerdict.MISSING: "error",
    GateVerdict.INCONCLUSIVE: "skipped",
}
_NAME = "specbench check"


def gate_junit(gate: Gate) -> str:
    """An XML document with one test suite."""
    count = {v: sum(j.verdict is v for j in gate.judgements) for v in GateVerdict}
    numbers = {
        "tests": str(len(gate.judgements)),
        "failures": str(count[GateVerdict.REGRESSION]),
        "errors": str(count[GateVerdict.MISSING]),
    }
    root = ET.Element("testsuites", {"name": _NAME, **numbers})
    suite = ET.SubElement(
        root,
        "testsuite",
        {
            "name": _NAME,
            **numbers,
            "skipped": str(count[GateVerdict.INCONCLUSIVE]),
            "timestamp": gate.candidate.origins[0].created_at,
        },
    )
    causes = {found.cell: cause_text(found) for found in gate.attributions}
    for judgement in gate.judgements:
        case = ET.SubElement(
            suite,
            "testcase",
            {
                "classname": _printable(judgement.cell.label),
                "name": judgement.metric,
                "time": "0",
            },
        )
        if judgement.verdict in _ELEMENTS:
            found = ET.SubElement(
                case, _ELEMENTS[judgement.verdict], {"message": _message(gate, judgement)}
            )
            found.text = _printable(causes.get(judgement.cell, ""))
    ET.SubElement(suite, "system-out").text = _printable(
        f"{headline(gate)}\n{chance_note(gate)}".rstrip()
    )
    return _document(root)


def refusal_junit(reason: str) -> str:
    """The same where the two sides must not be compared: one test case that is an error."""
    numbers = {"name": _NAME, "tests": "1", "failures": "0", "errors": "1"}
    root = ET.Element("testsuites", numbers)
    suite = ET.SubElement(root, "testsuite", {**numbers, "skipped": "0"})
    case = ET.SubElement(suite, "testcase", {"classname": _NAME, "name": REFUSED, "time": "0"})
    first, *others = map(str.strip, reason.splitlines())
    message = _printable(" ".join(filter(None, [first, "; ".join(others)])))
    ET.SubElement(case, "error", {"message": message}).text = _printable(reason)
    return _document(root)


def _document(root: ET.Element) -> str:
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _message(gate: Gate, judgement: Judgement) -> str:
    shown = row(judgement)
    values = f"{shown.before} -> {shown.after}, {shown.change}, limit {shown.limit}"
    whole = "; ".join(filter(None, (values, judgement.reason)))
    return _printable(f"{whole}{first_cause(gate, judgement)}")


def _printable(text: str) -> str:
    """XML 1.0 has no control characters, escaped or not."""
    return "".join(c for c in text if c in "\t\n" or ord(c) >= 32)
