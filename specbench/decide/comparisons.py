"""Comparisons of cells: the built-in decoder with other engines, sets of engine arguments, K = auto
with a fixed K, several samples with one, and speedups by concurrency and by context length.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import inf
from operator import itemgetter
from statistics import geometric_mean
from typing import Annotated, NamedTuple

from specbench.doc import Doc
from specbench.metrics.best_of import by_prompt, first_log_prob, gain, picked_log_prob
from specbench.metrics.cell import CellData, Pair, against, have_same_text, turn_of
from specbench.metrics.machine import machine_noise
from specbench.metrics.pairs import PairedSeconds, paired_cpu, paired_decode, paired_end_to_end
from specbench.metrics.registry import number_of
from specbench.metrics.speed import (
    aggregate_tokens_per_s,
    busy_tokens_per_s,
    decode_tokens_per_s,
    end_to_end_tokens_per_s,
    mean_num_speculative_tokens,
)
from specbench.metrics.summary import log_speedup, summarize
from specbench.metrics.validity import judge_cell
from specbench.records import (
    ASSISTED_DEFAULT,
    CellKey,
    CellSummary,
    Interval,
    RequestRecord,
    SpeedupVerdict,
)
from specbench.settings import BUILTIN
from specbench.stats.intervals import (
    break_even,
    falls_below_1,
    interval,
    log_ratio,
    mean_interval,
    minimum_detectable_effect,
)

TIE = 0.01  # speedups this close are equal, and the smaller K wins
BEATS_BASELINE = 1 + TIE  # the lower bound of K = 0 is 1
GAINS_NOTHING = 1.02  # with an upper bound up to here, do not speculate


def judge(speedup: Interval | None) -> SpeedupVerdict:
    """The verdict that a speedup's interval supports."""
    if speedup is None or speedup.low is None or speedup.high is None:
        return SpeedupVerdict.UNDECIDED
    if speedup.high <= GAINS_NOTHING:
        return SpeedupVerdict.NO_SPEEDUP
    return SpeedupVerdict.FASTER if speedup.low > BEATS_BASELINE else SpeedupVerdict.UNDECIDED


@dataclass(frozen=True, kw_only=True, slots=True)
class SideBySide:
    """The speed of a cell relative to a cell that does the same work in another engine or with
    other engine arguments, with 95% intervals.

    A built-in cell next to a server has only estimates, since the built-in decoder was started
    only once.
    """

    cell: Annotated[CellKey, Doc("the cell: of the built-in decoder, or of a variant")]
    peer: Annotated[CellKey, Doc("the other cell: of another engine, or of the first variant")]
    decode: Annotated[
        Interval,
        Doc(
            "decode seconds of the peer / those of the cell, over the same prompts; no bounds for "
            "a built-in cell next to a serving engine",
            "x",
            label="decode [95%]",
        ),
    ]
    equal_text: Annotated[
        float | None,
        Doc(
            "share of requests with the same output tokens; absent if one side does not "
            "report tokens",
            "fraction",
            low=0,
            high=1,
            label="same text",
        ),
    ]
    end_to_end: Annotated[Interval | None, Doc("`decode` for whole requests", "x", label="whole")]
    cpu: Annotated[
        Interval | None, Doc("`decode` for process CPU time of whole requests", "x", label="CPU")
    ]
    num_prompts: Annotated[
        int, Doc("prompts that both finished", "prompts", low=1, label="prompts")
    ]
    valid: Annotated[bool, Doc("`false`: a cell is invalid, so nothing can be concluded")]


def may_be_equal(speed: Interval) -> bool:
    """Whether a relative speed may be above or below 1, so that either side may be faster."""
    return (speed.low or 0.0) <= 1 <= (speed.high or inf)


def side_by_side(cells: Sequence[CellData]) -> tuple[SideBySide, ...]:
    """Each built-in cell compared with the cells of other engines that do the same work.

    The same work means the same target, workload and setting, and no drafts, or the same drafter
    at the same K or at the other engine's defaults.
    """
    pairs = (
        _compare_with_server(cell, peer)
        if peer.servers
        else _compare(cell, peer, against(cell, peer))
        for cell in cells
        for peer in cells
        if cell.key.condition.engine == BUILTIN and _is_same_work(cell.key, peer.key)
    )
    return tuple(pair for pair in pairs if pair is not None)


def compare_variants(cells: Sequence[CellData]) -> tuple[SideBySide, ...]:
    """Each cell under a set of engine arguments compared with the first set at the same K.

    Both cells have their sessions in the same cycles.
    """
    first_variants: dict[CellKey, CellData] = {}
    pairs = []
    for cell in cells:
        peer = first_variants.setdefault(cell.key.without("variant"), cell)
        if peer is not cell:
            pairs.append(_compare(cell, peer, against(cell, peer)))
    return tuple(pair for pair in pairs if pair is not None)


def _is_same_work(key: CellKey, peer: CellKey) -> bool:
    if peer.condition.engine == BUILTIN or key.draft.drafter != peer.draft.drafter:
        return False
    if key.condition.without("engine") != peer.condition.without("engine"):
        return False
    return peer.draft.method == ASSISTED_DEFAULT or key.draft.length == peer.draft.length


def _compare(cell: CellData, peer: CellData, both: CellData) -> SideBySide | None:
    """The comparison by pairs of requests; None if no request finished on both sides."""
    decode = log_speedup(both, paired_decode(both))
    if decode is None:
        return None
    return SideBySide(
        cell=cell.key,
        peer=peer.key,
        decode=interval(decode),
        end_to_end=_interval(both, paired_end_to_end(both)),
        cpu=_interval(both, paired_cpu(both)),
        num_prompts=len(_prompts(cell) & _prompts(peer)) if both.servers else decode.num_prompts,
        equal_text=_equal_text(both.pairs),
        valid=not judge_cell(cell) and not judge_cell(peer),
    )


def _compare_with_server(builtin: CellData, peer: CellData) -> SideBySide | None:
    """The comparison by tokens per second, over all requests for prompts that both finished."""
    common = _prompts(builtin) & _prompts(peer)
    builtin_part, peer_part = _restrict_to(builtin, common), _restrict_to(peer, common)
    condition = builtin.key.condition
    rates = (
        (busy_tokens_per_s, aggregate_tokens_per_s)
        if condition.is_stream and condition.request_rate is None
        else (decode_tokens_per_s, end_to_end_tokens_per_s)
    )
    decode, end_to_end = (_ratio(rate(builtin_part), rate(peer_part)) for rate in rates)
    if decode is None:
        return None
    first = {_turn(request): request for request in reversed(peer_part.finished)}
    pairs = [Pair(first[_turn(r)], r) for r in builtin_part.finished if _turn(r) in first]
    return SideBySide(
        cell=builtin.key,
        peer=peer.key,
        decode=decode,
        end_to_end=end_to_end,
        cpu=None,
        num_prompts=len(common),
        equal_text=_equal_text(pairs),
        valid=not judge_cell(builtin) and not judge_cell(peer),
    )


def _turn(request: RequestRecord) -> tuple[str, int]:
    return request.prompt_id, request.turn


def _prompts(cell: CellData) -> set[str]:
    return {request.prompt_id for request in cell.finished}


def _restrict_to(cell: CellData, prompts: Collection[str]) -> CellData:
    """The cell with only the requests of these prompts; its passes are unchanged."""
    return replace(cell, requests=tuple(r for r in cell.finished if r.prompt_id in prompts))


def _ratio(rate: float | None, peer_rate: float | None) -> Interval | None:
    return Interval(estimate=rate / peer_rate, low=None, high=None) if rate and peer_rate else None


def _equal_text(pairs: Sequence[Pair[RequestRecord]]) -> float | None:
    """The share of equal texts among the pairs of which both or neither report token ids."""
    known = [pair for pair in pairs if bool(pair.base.output_ids) == bool(pair.spec.output_ids)]
    return sum(have_same_text(*pair) for pair in known) / len(known) if known else None


def _interval(cell: CellData, seconds: PairedSeconds | None) -> Interval | None:
    ratio = log_speedup(cell, seconds)
    return interval(ratio) if ratio else None


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveComparison:
    """The speed of an adaptive K relative to the best fixed K, which may be K = 0."""

    adaptive: Annotated[
        CellKey, Doc("the cell with K = auto, or with the scheme of a serving engine (`variant`)")
    ]
    best_fixed: Annotated[
        CellKey,
        Doc(
            "the cell with the best fixed K: the highest speedup in the exploration phase, of the "
            "valid cells if there are any"
        ),
    ]
    decode: Annotated[
        Interval,
        Doc("speed of the adaptive K / speed of the best fixed K", "x", label="decode [95%]"),
    ]
    minimum_detectable_effect: Annotated[
        float | None,
        Doc(
            "smallest relative effect on `decode` that is detected in 80% of runs; absent "
            "without an interval",
            "fraction",
            low=0,
        ),
    ]
    mean_num_speculative_tokens: Annotated[
        float | None,
        Doc("mean over rounds of the chosen K", "tokens/round", label="mean K", form="{:.1f}"),
    ]
    end_to_end: Annotated[Interval | None, Doc("`decode` for whole requests", "x", label="whole")]
    num_units: Annotated[
        int,
        Doc(
            "prompts that the interval is over, or if requests overlap passes (of a server cycles)",
            low=1,
        ),
    ]
    is_confirmed: Annotated[
        bool,
        Doc(
            "`true`: from the confirmation run of both; `false`: from the exploration phase, "
            "which favors the fixed K"
        ),
    ]
    valid: Annotated[bool, Doc("`false`: a cell is invalid, so nothing can be concluded")]


class PooledRatio(NamedTuple):
    """The mean ratio of several settings, and their number."""

    ratio: float
    num_settings: int


def compare_adaptive(
    explored: Sequence[CellData], confirmed: Sequence[CellData] = ()
) -> tuple[AdaptiveComparison, ...]:
    """Each adaptive cell compared with the best fixed K, by confirmation runs if both have them."""
    adaptive = [cell for cell in explored if cell.key.draft.is_adaptive]
    if not adaptive:
        return ()
    by_key = {cell.key: cell for cell in explored}
    confirmed_by_key = {cell.key: cell for cell in confirmed}
    fixed = summarize(cell for cell in explored if cell.key.draft.is_fixed)
    comparisons = (
        _compare_with_fixed(cell, by_key[best], confirmed_by_key)
        for cell in adaptive
        if (best := best_fixed([c for c in fixed if is_comparable(c.key, cell.key)])) is not None
    )
    return tuple(comparison for comparison in comparisons if comparison is not None)


def best_fixed(cells: Sequence[CellSummary]) -> CellKey | None:
    """The fixed K with the highest decode speedup among the cells of one setting.

    K = 0 counts as a speedup of 1. A valid cell wins over an invalid one, and the smaller K wins a
    tie. None if no fixed K has a speedup.
    """
    ranked = [
        ((cell.valid, speedup, -cell.key.draft.k), cell.key)
        for cell in cells
        if cell.key.draft.is_fixed and (speedup := _speedup(cell)) is not None
    ]
    return max(ranked, key=itemgetter(0))[1] if ranked else None


def pooled(comparisons: Iterable[AdaptiveComparison]) -> PooledRatio | None:
    """The geometric mean of the estimates of valid, confirmed comparisons; None if there are none.

    The exploration phase is excluded: it favors the fixed K, which was chosen by the same figures.
    """
    estimates = [c.decode.estimate for c in comparisons if c.valid and c.is_confirmed]
    return PooledRatio(geometric_mean(estimates), len(estimates)) if estimates else None


def is_comparable(key: CellKey, adaptive: CellKey) -> bool:
    """Whether the cell is K = 0 or a K of the same drafter, in the adaptive cell's setting.

    A serving engine's own scheme is a variant, and its fixed K are those of the plain one.
    """
    key, adaptive = key.without("variant"), adaptive.without("variant")
    is_baseline = key.is_baseline and key.condition == adaptive.condition
    return is_baseline or key.question == adaptive.question


def _speedup(cell: CellSummary) -> float | None:
    if cell.key.is_baseline:
        return 1.0
    return cell.speedup.estimate if cell.speedup else None


def _compare_with_fixed(
    adaptive: CellData, best: CellData, confirmed: Mapping[CellKey, CellData]
) -> AdaptiveComparison | None:
    """The comparison; None if no unit finished on both sides."""
    is_confirmed = adaptive.key in confirmed and best.key in confirmed
    if is_confirmed:
        adaptive, best = confirmed[adaptive.key], confirmed[best.key]
    both = against(adaptive, best)
    ratio = log_speedup(both, paired_decode(both))
    if ratio is None:
        return None
    is_of_cycles = both.servers and both.key.condition.is_stream
    return AdaptiveComparison(
        adaptive=adaptive.key,
        best_fixed=best.key,
        decode=interval(ratio),
        minimum_detectable_effect=minimum_detectable_effect(ratio),
        end_to_end=_interval(both, paired_end_to_end(both)),
        mean_num_speculative_tokens=mean_num_speculative_tokens(adaptive),
        num_units=len({*both.cycles.values()}) if is_of_cycles else ratio.num_prompts,
        is_confirmed=is_confirmed,
        valid=not judge_cell(adaptive) and not judge_cell(best),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class BestOf:
    """Cost and gain of N outputs per prompt at one K; intervals over prompts."""

    key: Annotated[CellKey, Doc("the cell with several samples")]
    speedup: Annotated[
        Interval | None,
        Doc(
            "seconds per token until one is picked, without drafts / with drafts; absent at K = 0",
            "x",
            label="faster [95%]",
        ),
    ]
    cost: Annotated[
        Interval | None,
        Doc(
            "seconds until one sample is picked / seconds of a single output at the same K; "
            "absent if single outputs were not measured",
            "x",
            label="cost [95%]",
        ),
    ]
    gain: Annotated[
        Interval,
        Doc(
            "`picked_log_prob` - `first_log_prob`, an interval over prompts",
            "nats/token",
            label="gain [95%]",
        ),
    ]
    picked_log_prob: Annotated[
        float,
        Doc("`first_log_prob` of the picked sample", "nats/token", high=0, label="picked"),
    ]
    first_log_prob: Annotated[
        float,
        Doc(
            "mean log-probability per token of the first sample, mean over prompts",
            "nats/token",
            high=0,
            label="first",
        ),
    ]
    scoring_share: Annotated[
        float,
        Doc(
            "share of the seconds of `cost` that the log-probabilities took",
            "fraction",
            low=0,
            high=1,
            label="scoring",
        ),
    ]
    num_prompts: Annotated[int, Doc("prompts with samples", "prompts", low=1, label="prompts")]
    valid: Annotated[bool, Doc("`false`: this cell or the one with a single output is invalid")]


def compare_best_of(cells: Sequence[CellData]) -> tuple[BestOf, ...]:
    """One comparison per cell with several samples; with a cost if single outputs were measured."""
    by_key = {cell.key: cell for cell in cells}
    comparisons = (
        _compare_samples(
            cell,
            by_key.get(replace(cell.key, condition=replace(cell.key.condition, num_samples=1))),
        )
        for cell in cells
    )
    return tuple(comparison for comparison in comparisons if comparison is not None)


def _compare_samples(cell: CellData, single: CellData | None) -> BestOf | None:
    """The comparison; None for a cell with one sample, or if no sample was picked."""
    first, picked = first_log_prob(cell), picked_log_prob(cell)
    if first is None or picked is None:
        return None
    gains = by_prompt(cell, gain)
    total_s = sum(choice.seconds for choice in cell.choices)
    return BestOf(
        key=cell.key,
        speedup=_interval(cell, paired_end_to_end(cell)),
        cost=_cost(cell, single) if single else None,
        scoring_share=sum(choice.scoring_s for choice in cell.choices) / total_s,
        first_log_prob=first,
        picked_log_prob=picked,
        gain=mean_interval(gains),
        num_prompts=len(gains),
        valid=not judge_cell(cell) and (single is None or not judge_cell(single)),
    )


def _cost(cell: CellData, single: CellData) -> Interval | None:
    """The cost ratio; None if the cells have no common turn."""
    sums: dict[str, tuple[float, float]] = {}
    for prompt_id, samples_s, single_s in _paired_seconds(cell, single):
        samples_sum, single_sum = sums.get(prompt_id, (0.0, 0.0))
        sums[prompt_id] = samples_sum + samples_s, single_sum + single_s
    if not sums:
        return None
    samples_sums, single_sums = zip(*sums.values(), strict=True)
    return interval(
        log_ratio([samples_sums], [single_sums]).on(machine_noise(against(cell, single)))
    )


def _paired_seconds(cell: CellData, single: CellData) -> Iterator[tuple[str, float, float]]:
    """Prompt id, seconds of the samples and of the single output, for each turn that both have."""
    single_s_by_turn = {turn_of(r): r.total_s for r in single.finished if r.total_s}
    for choice in cell.choices:
        single_s = single_s_by_turn.get(turn_of(choice))
        if single_s is not None:
            yield choice.prompt_id, choice.seconds, single_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One measured cell of a curve."""

    at: Annotated[int, Doc("concurrent requests, or tokens of context", low=1)]
    speedup: Annotated[Interval | None, Doc("over K = 0 at the same point", "x")]
    kv_bytes: Annotated[float | None, Doc("KV cache; absent if unknown", "bytes")]
    valid: Annotated[bool, Doc("whether the cell is valid")]


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossover:
    """The batch size from which speculation no longer pays off."""

    key: Annotated[CellKey, Doc("the cell of the first point")]
    points: Annotated[tuple[Point, ...], Doc("by concurrent requests")]
    concurrency: Annotated[
        int | None,
        Doc(
            "lowest measured concurrency from which on no speedup is shown; absent: none",
            "requests",
            low=1,
        ),
    ]
    estimated: Annotated[
        float | None,
        Doc(
            "batch size at which the estimate crosses 1, on a straight line of log speedup "
            "over log batch size; absent: not between two points",
            "requests",
            low=1,
        ),
    ]

    @property
    def with_interval(self) -> tuple[int, ...]:
        """The concurrencies that have a valid speedup with an interval."""
        return tuple(at for at, speedup in _valid_speedups(self.points) if speedup.low is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextCurve:
    """Speedup and KV cache of one K against the length of the prompts."""

    key: Annotated[CellKey, Doc("the cell of the first point")]
    points: Annotated[tuple[Point, ...], Doc("by tokens of context")]
    break_even: Annotated[
        Interval | None,
        Doc(
            "context at which a straight line of log speedup over log context crosses 1, with "
            "its 95% interval; absent: not shown",
            "tokens",
            label="drops to 1 at [95%]",
        ),
    ]


def crossovers(cells: Sequence[CellSummary]) -> tuple[Crossover, ...]:
    """One crossover for each K > 0 that was measured at two or more concurrencies."""
    return tuple(
        Crossover(
            key=key,
            points=points,
            concurrency=_end_of_speedup(points),
            estimated=next(
                falls_below_1([(at, s.estimate) for at, s in _valid_speedups(points)]), None
            ),
        )
        for key, points in _curves(cells, "concurrency")
    )


def context_curves(cells: Sequence[CellSummary]) -> tuple[ContextCurve, ...]:
    """One curve for each K > 0 that was measured at two or more context lengths."""
    return tuple(
        ContextCurve(key=key, points=points, break_even=break_even(_valid_speedups(points)))
        for key, points in _curves(cells, "context")
    )


def _curves(cells: Sequence[CellSummary], axis: str) -> Iterator[tuple[CellKey, tuple[Point, ...]]]:
    """The points of each K > 0 at two or more values of an axis, with the key of the first."""
    groups: dict[CellKey, list[CellSummary]] = {}
    for cell in cells:
        if cell.key.draft.k > 0 and getattr(cell.key.condition, axis) is not None:
            groups.setdefault(cell.key.without(axis), []).append(cell)
    for group in groups.values():
        if len(group) > 1:
            ordered = sorted(group, key=lambda cell: cell.key.condition.order)
            yield (
                ordered[0].key,
                tuple(
                    Point(
                        at=getattr(cell.key.condition, axis),
                        speedup=cell.speedup,
                        kv_bytes=number_of(cell.metrics, "kv_bytes"),
                        valid=cell.valid,
                    )
                    for cell in ordered
                ),
            )


def _valid_speedups(points: Sequence[Point]) -> list[tuple[int, Interval]]:
    """The valid points that have a speedup, each as its position on the axis and its speedup."""
    return [(p.at, p.speedup) for p in points if p.valid and p.speedup]


def _end_of_speedup(points: Sequence[Point]) -> int | None:
    """The lowest concurrency from which on no speedup is shown, ignoring points without one."""
    known = [(at, judge(ratio)) for at, ratio in _valid_speedups(points) if ratio.low is not None]
    without_speedup = list(
        takewhile(lambda point: point[1] is not SpeedupVerdict.FASTER, reversed(known))
    )
    return without_speedup[-1][0] if without_speedup else None
