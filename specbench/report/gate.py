"""A gate as sentences, blocks, JSON and JUnit XML."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Literal

from specbench.doc import JsonObject, Key, Maybe, Several, docs_of, keys_of
from specbench.gate.attribution import Attribution, Cause
from specbench.gate.baseline import Snapshot, SourceRun
from specbench.gate.check import Gate
from specbench.gate.fingerprint import THREADS, Fingerprint
from specbench.gate.judging import CELL, FALSE_ALARM, GateVerdict, Judgment
from specbench.gate.tolerances import MetricKind, default_tolerances, deviation_floor, metric_name
from specbench.metrics.registry import all_metrics
from specbench.metrics.server_facts import RunDifference
from specbench.records import NO_DRAFTER, Kind, Reason
from specbench.report.blocks import Lines, Paragraph, ReportPart
from specbench.words.answers import REASON, joined, text
from specbench.words.numbers import (
    effect_text,
    measured,
    number,
    plural,
    scale_of,
)
from specbench.words.table import ABSENT, Table, labeled


def baseline_lines(baseline: Snapshot) -> Iterator[str]:
    """One line per cell that speculates, or per cell if none does."""
    device = baseline.fingerprint.device
    drafting = [cell for cell in baseline.cells if cell.key.draft.drafter != NO_DRAFTER]
    for cell in drafting or baseline.cells:
        metrics = []
        for name in (tolerance.metric for tolerance in default_tolerances(device)):
            figure = cell.figures.get(name)
            if figure is not None:
                metric = all_metrics()[name]
                spread = "" if figure.deviation is None else f" +- {figure.deviation:.2%}"
                metrics.append(f"{name} {measured(figure.value, metric.unit)}{spread}")
        yield f"{cell.key.label}: {', '.join(metrics)}"
    for run_id, signs in baseline.noise.items():
        yield text(Kind.BASELINE_BUSY(run_id=run_id, because=signs))
    threads = baseline.fingerprint.hardware.get(THREADS, "")
    if threads.count("|"):
        yield text(Kind.THREADS_VARY(threads=threads))
    if baseline.num_runs == 1:
        kinds: dict[float, list[str]] = {}  # by the deviation that is assumed of them
        for kind in MetricKind:
            kinds.setdefault(deviation_floor(kind, device), []).append(kind.value)
        granted = (
            Kind.ASSUMED_DEVIATION(share=floor, of=tuple(of))
            for floor, of in kinds.items()
            if floor
        )
        yield text(Kind.ASSUMED(deviations=tuple(granted)))


_NAME = "specbench check"
REFUSED = "refused"  # the verdict of sides that cannot be compared
LEGEND = (
    "before, after: baseline and candidate; limit: tolerated change; MDE: minimum detectable "
    "loss beyond the limit, at 80% power."
)


def title(gate: Gate) -> str:
    """The two sides of the comparison."""
    ids = [origin.run_id for origin in gate.baseline.origins]
    runs = ids[0] if len(ids) == 1 else f"{len(ids)} runs, {ids[0]} the first"
    return f"{gate.candidate.origins[0].run_id} against {runs}"


def headline(gate: Gate) -> str:
    """The answer in one sentence."""
    return f"{gate.verdict.upper()}: {joined(answer_of(gate))}"


def answer_of(gate: Gate) -> Iterator[Reason]:
    """What the verdict is about: the first of the judgments that have it."""
    cells = len({judgment.cell for judgment in gate.judgments}), "cell"
    comparisons = len(gate.judgments), "comparison"
    if gate.verdict is GateVerdict.PASS:
        tolerated = tuple(f"{t.metric} {t.percent}" for t in gate.tolerances)
        yield Kind.NONE_WORSE(comparisons=comparisons, cells=cells, tolerated=tolerated)
        if losses := tuple(_hidden_losses(gate)):
            yield Kind.MIGHT_MISS(losses=losses)
        return
    worst = [judgment for judgment in gate.judgments if judgment.verdict is gate.verdict]
    first = worst[0]
    reason = () if first.reason is None else (first.reason,)
    if first.change is None or first.baseline is None or first.candidate is None:
        yield Kind.OF_CELLS(cells=(_name(first),), because=reason)
    else:
        yield Kind.MOVED(
            name=_name(first),
            shift=(first.baseline, first.candidate, first.unit),
            change=first.change.estimate,
            limit=_limit(first),
        )
        yield from reason
    yield Kind.NUM_WORST(worst=len(worst), comparisons=comparisons, cells=cells)
    yield from first_cause(gate, first)


def _hidden_losses(gate: Gate) -> Iterator[Reason]:
    """The smallest loss of each metric that the gate would see in every cell, if noise could hide
    one."""
    smallest: dict[str, float] = {}
    for judgment in gate.judgments:
        if judgment.minimum_detectable_effect and judgment.minimum_detectable_loss is not None:
            name, loss = metric_name(judgment.metric), judgment.minimum_detectable_loss
            smallest[name] = max(loss, smallest.get(name, 0.0))
    for metric, loss in smallest.items():
        yield Kind.LOSS_BELOW(metric=metric, loss=loss)


def first_cause(gate: Gate, judgment: Judgment) -> Iterator[Reason]:
    """The first cause of a regression, else a possible cause; nothing if unknown."""
    for attribution in gate.attributions:
        if attribution.cell == judgment.cell and attribution.causes:
            cause = attribution.causes[0].value
            if judgment.verdict is GateVerdict.REGRESSION:
                yield Kind.FIRST_CAUSE(cause=cause)
            elif attribution.changes:
                yield Kind.FIRST_POSSIBLE_CAUSE(cause=cause)
            return


def detail_lines(gate: Gate) -> tuple[str, ...]:
    """The causes, the reasons of verdicts, other changes, and notes."""
    return (
        *map(cause_text, gate.attributions),
        *_reasons(gate.judgments),
        *(text(Kind.ALLOWED(**d._asdict())) for d in gate.allowed),
        *(text(Kind.CHANGED(**d._asdict())) for d in gate.changes),
        *map(text, gate.notes),
    )


def chance_note(gate: Gate) -> str:
    """The probability that a verdict is due to chance; empty if none can be."""
    compared = {j.verdict for j in gate.judgments} - {GateVerdict.MISSING}
    if not gate.num_tests:
        if not compared or GateVerdict.INCONCLUSIVE in compared:  # nothing compared, or no interval
            return ""
        return "No false alarms are possible: everything compared here repeats exactly."
    return (
        f"{plural(gate.num_tests, 'comparison')} of noisy figures (Holm): identical runs fail by "
        f"chance in at most {FALSE_ALARM:.0%} of cases."
    )


def cause_text(attribution: Attribution) -> str:
    """`demo/draft K=5 on code: acceptance: fewer drafts are accepted, 3.1 -> 2.2 tokens ...`."""
    return f"{attribution.cell.label}: {text(causes_of(attribution))}"


def causes_of(attribution: Attribution) -> Reason:
    """The causes with their evidence."""
    if not attribution.causes:
        return Kind.CAUSE_UNKNOWN(metrics=attribution.metrics)
    return (Kind.CAUSES if attribution.metrics else Kind.POSSIBLE_CAUSES)(
        causes=tuple(cause.value for cause in attribution.causes),
        because=tuple(_evidence(attribution)),
    )


def _evidence(attribution: Attribution) -> Iterator[Reason]:
    """The evidence for each cause, in the order of `Cause`."""
    causes, round_time, step = set(attribution.causes), attribution.round, attribution.step
    is_longer = bool(causes & {Cause.DRAFT_COST, Cause.VERIFICATION, Cause.ROUND_TIME})
    for change in attribution.changes:
        yield Kind.FACT_CHANGED(**change._asdict())
    if attribution.acceptance and Cause.ACCEPTANCE in causes:
        curves = (" ".join(f"{rate:.0%}" for rate in rates) for rates in attribution.curve if rates)
        yield Kind.FEWER_ACCEPTED(shift=attribution.acceptance.figure, positions=tuple(curves))
    elif attribution.acceptance and is_longer:
        yield Kind.SAME_ACCEPTANCE(shift=attribution.acceptance.figure)
    if Cause.TEXT in causes:
        yield Kind.TEXT_CHANGED()
    if is_longer and round_time:
        parts = tuple(
            Kind.PART_MOVED(name=part.name, shift=part.figure) for part in attribution.slower
        )
        if round_time.unit == "s" and round_time.log <= 0 and step:
            yield Kind.STEP_FASTER(shift=round_time.figure, step=step.figure, parts=parts)
        else:
            yield Kind.ROUND_LONGER(shift=round_time.figure, parts=parts)
    elif Cause.ACCEPTANCE in causes and round_time:
        yield Kind.ROUND_MOVED(shift=round_time.figure)
    if causes & {Cause.MEMORY, Cause.PREFILL}:
        yield Kind.METRICS_ROSE(metrics=attribution.metrics)
    is_in_steps = attribution.metrics and round_time is not None and round_time.unit == "steps"
    if is_in_steps and step and step.log > 0:
        yield Kind.STEP_SLOWER(step=step.figure)


def _name(judgment: Judgment) -> str:
    """The cell, and the metric unless the judgment is about the whole cell."""
    return ": ".join((judgment.cell.label, *([judgment.metric] if judgment.metric != CELL else [])))


def _reasons(judgments: Sequence[Judgment]) -> Iterator[str]:
    """The reasons of judgments; a note says once that a machine was busy."""
    for judgment in judgments:
        if judgment.reason is None or judgment.reason.kind is Kind.MACHINE_BUSY:
            continue
        effect, detectable = judgment.minimum_detectable_effect, ""
        if judgment.verdict is GateVerdict.INCONCLUSIVE and effect is not None:
            detectable = f"; minimum detectable loss: {effect_text(effect)} beyond it"
        yield f"{_name(judgment)}: {text(judgment.reason)}{detectable}"


_SHOWN = {"%", "x", "ms", "GiB", "MiB", "KiB", "texts"}  # units; the others follow from the metric


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return ABSENT
    scale = scale_of(unit, value)
    return measured(value, unit) if scale.unit in _SHOWN else number(value, unit, scale)


def _limit(judgment: Judgment) -> float | None:
    """The tolerated change with its sign."""
    if judgment.tolerance is None:
        return None
    metric = all_metrics()[metric_name(judgment.metric)]
    return -judgment.tolerance if metric.better == "higher" else judgment.tolerance


_MARKS = {
    GateVerdict.REGRESSION: "worse",
    GateVerdict.INCONCLUSIVE: "open",
    GateVerdict.MISSING: "open",
}


def gate_report(gate: Gate) -> ReportPart:
    """The headline, the details and a table per cell."""
    ordered = sorted(gate.judgments, key=lambda judgment: judgment.cell.id)
    grids = (judgment_table(list(of_cell)) for _, of_cell in groupby(ordered, key=lambda j: j.cell))
    return ReportPart(
        f"{_NAME}: {gate.verdict.value}",
        [
            Lines([headline(gate)], is_answer=True),
            Lines(detail_lines(gate)),
            Paragraph(title(gate)),
            *grids,
            Paragraph(f"{LEGEND} {chance_note(gate)}".rstrip()),
        ],
    )


def _verdict(judgment: Judgment) -> str:
    is_good = judgment.verdict is GateVerdict.PASS
    return judgment.verdict.value if is_good else judgment.verdict.upper()


def _columns() -> list[Key]:
    """The labeled fields of a judgment, the verdict last; values are in its unit."""
    keys = keys_of(Judgment)
    keys["verdict"] = keys.pop("verdict")._replace(value=_verdict)
    keys["baseline"] = keys["baseline"]._replace(value=lambda j: _value(j.baseline, j.unit))
    keys["candidate"] = keys["candidate"]._replace(value=lambda j: _value(j.candidate, j.unit))
    keys["tolerance"] = keys["tolerance"]._replace(value=_limit)
    return labeled(keys)


def judgment_table(judgments: Sequence[Judgment]) -> Table:
    """The judgments of a cell, a row per metric."""
    return Table(
        title=judgments[0].cell.label,
        columns=_columns(),
        records=judgments,
        num_remarks=1,
        mark=lambda judgment: _MARKS.get(judgment.verdict, ""),
    )


def incomparable_report(reason: str) -> ReportPart:
    """Two sides that cannot be compared, with the reason."""
    first, *rest = map(str.strip, reason.splitlines() or [""])
    return ReportPart(f"{_NAME}: {REFUSED}", [Lines([first], is_answer=True), Lines(rest)])


JSON_VERSION = 1

DIFFERENCE = JsonObject("Difference", "A fact that differs.", keys_of(RunDifference))
_SIDE = JsonObject(
    "Side",
    "One side of the comparison.",
    {
        "runs": Key(tuple[SourceRun, ...], "its runs", attrgetter("origins")),
        "fingerprint": Key(Fingerprint, "the facts that hold for all its cells"),
    },
)
_CURVE = JsonObject(
    "Curve",
    "Acceptance per position.",
    {
        "before": Key(tuple[float, ...], "in the baseline", itemgetter(0)),
        "after": Key(tuple[float, ...], "in the candidate", itemgetter(1)),
    },
)
_ATTRIBUTION = JsonObject(
    "Attribution",
    "The causes of a regression.",
    {
        **keys_of(Attribution, objects={"changes": Several(DIFFERENCE), "curve": _CURVE}),
        "cell": Key(str, docs_of(Attribution)["cell"], attrgetter("cell.id")),
        "reasons": Key(Several(REASON), "the evidence of each cause", _evidence),
        "text": Key(str, "the attribution in words", cause_text),
    },
)
_JUDGMENT = JsonObject(
    "Judgment",
    "The verdict on one metric of one cell.",
    {
        **keys_of(Judgment, objects={"reason": Maybe(REASON)}),
        "cell": Key(str, docs_of(Judgment)["cell"], attrgetter("cell.id")),
    },
)
DOCUMENT = JsonObject(
    "Check",
    "The output of `specbench check --json`.",
    {
        "schema_version": Key(Literal[1], "version of this document", lambda _: JSON_VERSION),
        "verdict": Key(
            GateVerdict,
            "the most severe one: `pass`, `inconclusive`, `missing` or `regression`; or "
            "`refused`, see below",
        ),
        "reasons": Key(Several(REASON), "what the verdict is about, and how often", answer_of),
        "text": Key(str, "the answer in words", headline),
        "false_alarm": Key(
            float, "upper bound of the probability that identical runs fail", lambda _: FALSE_ALARM
        ),
        "num_tests": Key(int, "comparisons that noise could fail; they share that chance"),
        "baseline": Key(_SIDE, "its `runs` and `fingerprint`"),
        "candidate": Key(_SIDE, "the same, of the candidate"),
        "tolerances": Key(
            Mapping[str, float],
            "metric to the share that it may be worse (0.02: 2%)",
            lambda gate: {t.metric: t.share for t in gate.tolerances},
        ),
        "judgments": Key(Several(_JUDGMENT), "one metric of one cell each, counts before seconds"),
        "attributions": Key(Several(_ATTRIBUTION), "why, for every cell with a regression"),
        "allowed": Key(Several(DIFFERENCE), "what differs and was allowed to"),
        "changes": Key(
            Several(DIFFERENCE),
            "what else differs, such as the draft's weights, packages or the driver",
        ),
        "notes": Key(Several(REASON), "notes about the comparison"),
    },
)


def gate_json(gate: Gate) -> dict[str, Any]:
    """The gate as a JSON document; new keys do not change its version."""
    return DOCUMENT.of(gate)


def incomparable_json(reason: str) -> dict[str, Any]:
    """The document of two sides that cannot be compared, or cannot both be read."""
    return {"schema_version": JSON_VERSION, "verdict": REFUSED, "text": reason}


_ELEMENTS = {
    GateVerdict.REGRESSION: "failure",
    GateVerdict.MISSING: "error",
    GateVerdict.INCONCLUSIVE: "skipped",
}


def _suite(tests: int, failures: int, errors: int, **more: str) -> tuple[ET.Element, ET.Element]:
    """The root of an XML document and its only test suite."""
    counts = {"tests": str(tests), "failures": str(failures), "errors": str(errors)}
    root = ET.Element("testsuites", {"name": _NAME, **counts})
    return root, ET.SubElement(root, "testsuite", {"name": _NAME, **counts, **more})


def gate_junit(gate: Gate) -> str:
    """An XML document with one test suite."""
    count = {v: sum(j.verdict is v for j in gate.judgments) for v in GateVerdict}
    root, suite = _suite(
        len(gate.judgments),
        count[GateVerdict.REGRESSION],
        count[GateVerdict.MISSING],
        skipped=str(count[GateVerdict.INCONCLUSIVE]),
        timestamp=gate.candidate.origins[0].created_at,
    )
    causes = {a.cell: cause_text(a) for a in gate.attributions}
    for judgment in gate.judgments:
        name = {"classname": _printable(judgment.cell.label), "name": judgment.metric}
        case = ET.SubElement(suite, "testcase", {**name, "time": "0"})
        if judgment.verdict in _ELEMENTS:
            message = {"message": _message(gate, judgment)}
            element = ET.SubElement(case, _ELEMENTS[judgment.verdict], message)
            element.text = _printable(causes.get(judgment.cell, ""))
    ET.SubElement(suite, "system-out").text = _printable(
        f"{headline(gate)}\n{chance_note(gate)}".rstrip()
    )
    return _document(root)


def incomparable_junit(reason: str) -> str:
    """The XML of two sides that cannot be compared: one test case that is an error."""
    root, suite = _suite(tests=1, failures=0, errors=1, skipped="0")
    case = ET.SubElement(suite, "testcase", {"classname": _NAME, "name": REFUSED, "time": "0"})
    first, *rest = map(str.strip, reason.splitlines())
    message = _printable(" ".join(filter(None, [first, "; ".join(rest)])))
    ET.SubElement(case, "error", {"message": message}).text = _printable(reason)
    return _document(root)


def _document(root: ET.Element) -> str:
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _message(gate: Gate, judgment: Judgment) -> str:
    _, before, after, change, limit, *_ = judgment_table([judgment]).rows[0]
    values = f"{before} -> {after}, {change}, limit {limit}"
    reason = filter(None, (judgment.reason,))
    return _printable(joined((values, *reason, *first_cause(gate, judgment))))


def _printable(text: str) -> str:
    """The text without control characters, which XML 1.0 forbids."""
    return "".join(c for c in text if c in "\t\n" or ord(c) >= 32)
