"""The gate: whether a run is worse than its baseline by more than noise and the tolerances.

Its tests are one-sided, so an improvement never fails. Counts are judged before seconds.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from specbench.errors import UsageError
from specbench.gate.attribution import Attribution, attribute, changed_causes
from specbench.gate.baseline import Snapshot
from specbench.gate.comparable import CellPair, pair_up
from specbench.gate.fingerprint import (
    HARDWARE,
    changes,
    have_same_arithmetic,
    thread_difference,
)
from specbench.gate.judging import (
    BASELINE,
    CANDIDATE,
    GateVerdict,
    Judgment,
    MetricCase,
    Runs,
    cases_of,
    judge,
    judge_text,
    judge_unusable,
)
from specbench.gate.tolerances import (
    MetricKind,
    Tolerance,
    default_tolerances,
    kind_of,
    metric_name,
)
from specbench.metrics.machine import WAITED
from specbench.metrics.registry import Metric, all_metrics
from specbench.metrics.server_facts import RunDifference
from specbench.records import NO_DRAFTER, CellKey, Kind, Reason
from specbench.settings.words import nearest
from specbench.stats.multiple_testing import holm
from specbench.words.answers import text

WAITS = 0.9  # of the baseline's share of the CPU; less slows a run by more than 10%


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """The result of a comparison, and the two sides."""

    baseline: Snapshot
    candidate: Snapshot
    tolerances: tuple[Tolerance, ...]
    judgments: tuple[Judgment, ...]  # counts before seconds
    attributions: tuple[Attribution, ...]  # of regressions, and of undecided cells that changed
    num_tests: int  # judgments that noise could have failed
    allowed: tuple[RunDifference, ...]  # differences that --allow-different permits
    changes: tuple[RunDifference, ...]  # other differences, which can explain a regression
    notes: tuple[Reason, ...]

    @property
    def verdict(self) -> GateVerdict:
        """The worst verdict."""
        return max((j.verdict for j in self.judgments), key=list(GateVerdict).index)


def check(
    baseline: Snapshot,
    candidate: Snapshot,
    tolerances: Sequence[Tolerance] | None = None,
    allowed: Collection[str] = (),
) -> Gate:
    """Judge a candidate by a baseline: its cells with drafts, or else those at K = 0.

    `tolerances` None: the default ones. UsageError for runs that must not be compared and for
    unknown metrics.
    """
    chosen = _applicable(tolerances, baseline, candidate)
    threads = thread_difference(baseline.fingerprint, candidate.fingerprint)
    notes: list[Reason] = []
    if threads is not None and HARDWARE not in allowed:
        chosen, notes = _without_seconds(chosen, threads)
    is_absolute = any(kind_of(metric_of(t)) is MetricKind.TIME for t in chosen)
    comparable = pair_up(baseline, candidate, allowed, absolute_times=is_absolute)
    drafted = [p for p in comparable.pairs if p.baseline.key.draft.drafter != NO_DRAFTER]
    pairs = drafted or comparable.pairs
    sides = {BASELINE: baseline, CANDIDATE: _with_waiting(baseline, candidate)}
    same_text = have_same_arithmetic(baseline.fingerprint, candidate.fingerprint)
    verdicts = [(pair, judge_unusable(pair, is_complete=candidate.is_complete)) for pair in pairs]
    usable = [pair for pair, missing in verdicts if missing is None]
    cases = [
        case
        for tolerance in chosen
        for pair in usable
        for case in cases_of(
            pair,
            metric_of(tolerance),
            tolerance.metric,
            tolerance.share,
            runs=Runs(baseline.num_runs, candidate.num_runs),
            devices=(baseline.fingerprint.device, candidate.fingerprint.device),
            same_hardware=baseline.fingerprint.hardware == candidate.fingerprint.hardware,
            noisy=tuple(name for name, side in sides.items() if side.noise),
        )
    ]
    texts = [judge_text(pair, is_binding=same_text) for pair in usable]
    unusable = [missing for _, missing in verdicts]
    judgments = [*filter(None, unusable), *filter(None, texts), *_judged(cases)]
    if not judgments:
        raise UsageError(
            f"--fail-on: cannot be judged in these runs: {', '.join(t.metric for t in chosen)}"
        )
    judgments.sort(key=lambda judgment: list(MetricKind).index(judgment.kind))
    return Gate(
        baseline=baseline,
        candidate=candidate,
        tolerances=chosen,
        judgments=tuple(judgments),
        attributions=tuple(
            _attributions(judgments, pairs, baseline, candidate, comparable.allowed)
        ),
        num_tests=sum(case.is_test for case in cases),
        allowed=comparable.allowed,
        changes=changes(baseline.fingerprint, candidate.fingerprint),
        notes=(
            *notes,
            *_not_judged(chosen, usable),
            *_notes(sides[BASELINE], sides[CANDIDATE], comparable.only_candidate),
            *dict.fromkeys(_clock_notes(usable)),
            *_without_times(chosen, judgments),
        ),
    )


def _with_waiting(baseline: Snapshot, candidate: Snapshot) -> Snapshot:
    """The candidate, marked as noisy if its process got clearly less CPU time than a baseline that
    never waited for the CPU."""
    before, after = baseline.cpu_share, candidate.cpu_share
    if candidate.noise or before is None or after is None or before < WAITED:
        return candidate
    if after > WAITS * before:
        return candidate
    fact = Kind.WAITED_MORE(share=after, before=before)
    origins = tuple(replace(origin, noise=(fact,)) for origin in candidate.origins)
    return replace(candidate, origins=origins)


def _clock_notes(pairs: Sequence[CellPair]) -> Iterator[Reason]:
    for before, after in pairs:
        changed = before.changed_prompts(after) if after else ()
        if after and changed and before.shows_clock(after):
            at = before.key.condition
            yield Kind.CLOCK_IN_PROMPTS(
                engine=at.engine,
                differing=len(changed),
                compared=len(before.prompt_sha256),
                workload=at.workload,
            )


def metric_of(tolerance: Tolerance) -> Metric:
    """The metric of a tolerance; UsageError if it is unknown or neither direction is better."""
    known = all_metrics()
    name = metric_name(tolerance.metric)
    metric = known.get(name)
    if metric is None:
        near = nearest(name, tuple(known))
        raise UsageError(
            f"--fail-on: no metric {name!r}{near}; `specbench list metrics` has them all"
        )
    if metric.better is None:
        raise UsageError(
            f"--fail-on {metric.name}: neither more nor less of it is better; name another metric"
        )
    return metric


def _applicable(
    tolerances: Sequence[Tolerance] | None, baseline: Snapshot, candidate: Snapshot
) -> tuple[Tolerance, ...]:
    cells = (*baseline.cells, *candidate.cells)
    names = {name for cell in cells for name in cell.figures}
    names |= set(map(metric_name, names))
    requested = tuple(tolerances or default_tolerances(baseline.fingerprint.device))
    for tolerance in requested:
        metric = metric_of(tolerance)
        if tolerances is not None and tolerance.metric not in names:
            raise UsageError(
                f"--fail-on: {tolerance.metric} is missing on both sides: {metric.formula}"
            )
    return tuple(tolerance for tolerance in requested if tolerance.metric in names)


def _without_seconds(
    chosen: Sequence[Tolerance], threads: RunDifference
) -> tuple[tuple[Tolerance, ...], list[Reason]]:
    """The tolerances of counts and ratios, and a note; UsageError if none is left."""
    kept = tuple(t for t in chosen if kind_of(metric_of(t)) is not MetricKind.TIME)
    remedy = Kind.SAME_THREADS()
    if threads.baseline.isdigit():
        remedy = Kind.MEASURE_WITH_THREADS(threads=int(threads.baseline))
    if not kept:
        raise UsageError(
            f"{threads.text}: absolute times are not compared, and --fail-on names no other "
            f"metric; {text(remedy)}"
        )
    dropped = tuple(t.metric for t in chosen if t not in kept)
    note = Kind.THREADS_DIFFER(difference=threads.text, dropped=dropped, remedy=(remedy,))
    return kept, [note]


def _judged(cases: Sequence[MetricCase]) -> Iterator[Judgment]:
    """Judgments, adjusted by Holm over the cases that vary; the others cannot fail by chance."""
    tests = [case for case in cases if case.is_test]
    adjusted = dict(zip(map(id, tests), holm([case.p_value for case in tests]), strict=True))
    for case in cases:
        yield judge(case, adjusted.get(id(case)), num_tests=max(1, len(tests)))


def _attributions(
    judgments: Sequence[Judgment],
    pairs: Sequence[CellPair],
    baseline: Snapshot,
    candidate: Snapshot,
    allowed: Sequence[RunDifference],
) -> Iterator[Attribution]:
    same_hardware = baseline.fingerprint.hardware == candidate.fingerprint.hardware
    for before, after in pairs:
        of_cell = [j for j in judgments if j.cell == before.key]
        failed = [j.metric for j in of_cell if j.verdict is GateVerdict.REGRESSION]
        is_undecided = any(j.verdict is GateVerdict.INCONCLUSIVE for j in of_cell)
        fingerprints = baseline.fingerprint, candidate.fingerprint
        changed = changed_causes(before.key, *fingerprints, allowed)
        if after is not None and (failed or (is_undecided and changed)):
            yield attribute(before, after, failed, same_hardware=same_hardware, changed=changed)


def _not_judged(tolerances: Sequence[Tolerance], usable: Sequence[CellPair]) -> Iterator[Reason]:
    for tolerance in tolerances:
        is_there = any(
            metric_name(name) == metric_name(tolerance.metric)
            for pair in usable
            for name in pair.baseline.figures
        )
        if usable and not is_there:
            yield Kind.NOT_IN_BASELINE(metric=tolerance.metric)


def _without_times(
    tolerances: Sequence[Tolerance], judgments: Sequence[Judgment]
) -> Iterator[Reason]:
    if any(j.reason and j.reason.kind is Kind.MACHINE_BUSY for j in judgments):
        rest = [t for t in tolerances if kind_of(metric_of(t)) is not MetricKind.TIME]
        kept = ",".join(f"{t.metric}:{t.percent}" for t in rest)
        yield Kind.MEASURE_AGAIN_OR(rest=kept) if rest else Kind.MEASURE_AGAIN()


def _notes(
    baseline: Snapshot, candidate: Snapshot, only_candidate: Sequence[CellKey]
) -> Iterator[Reason]:
    run_ids = {origin.run_id for origin in candidate.origins}
    in_baseline = {origin.run_id for origin in baseline.origins}
    if run_ids == in_baseline:
        yield Kind.SAME_RUNS(runs=tuple(sorted(run_ids)))
    elif run_ids & in_baseline:
        yield Kind.OWN_RUN()
    sides = ((BASELINE, baseline), (CANDIDATE, candidate))
    busy = [
        Kind.BUSY_RUN(side=name, run_id=run_id, because=signs)
        for name, side in sides
        for run_id, signs in side.noise.items()
    ]
    if busy and run_ids != in_baseline:
        yield Kind.RUNS_BUSY(runs=tuple(busy))
    for name, side in sides:
        if not side.is_complete:
            yield Kind.SIDE_INTERRUPTED(side=name)
    if only_candidate:
        yield Kind.NEW_CELLS(cells=(len(only_candidate), "cell"))
    if any(cell.key.draft.is_adaptive for cell in baseline.cells):
        yield Kind.AUTO_COUNTS()
    if baseline.num_runs == candidate.num_runs == 1:
        yield Kind.SINGLE_RUNS()
