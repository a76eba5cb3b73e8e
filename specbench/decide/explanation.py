"""The reasons of a decision: its bottleneck, its figures, and what would decide it."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from specbench.methods import METHODS
from specbench.metrics.registry import number_of
from specbench.records import CellSummary, Fixed, Kind, Length, Reason
from specbench.stats.crossed import MIN_CYCLES
from specbench.stats.intervals import LARGEST_EFFECT
from specbench.stats.rounds import break_even_acceptance
from specbench.stats.spread import MIN_UNITS, UPPER, student_t

Bound = Literal["draft", "verify", "acceptance", "overhead"]

MISMATCHED = 0.5  # a drafter whose first draft is accepted less often is mismatched
TOO_SMALL = 0.3  # cost of a draft token in target steps, above which the target is too small


def losses(metrics: Mapping[str, float | tuple[float, ...]], k: int) -> dict[Bound, float] | None:
    """log(K + 1) - log(speedup) by cause; the largest part is the bottleneck.

    K + 1 is the speedup of a free and perfect draft. None if a metric is missing.

    Overhead is computed from overhead_ratio, or else as the time of a round that is neither
    drafting nor verifying. A verification that is cheaper than a step has a loss of 0.
    """
    length = number_of(metrics, "mean_acceptance_length")
    break_even = number_of(metrics, "break_even_length")
    draft, verify = number_of(metrics, "draft_cost_ratio"), number_of(metrics, "verify_cost_ratio")
    if length is None or break_even is None or draft is None or verify is None or k < 1:
        return None
    ratio = number_of(metrics, "overhead_ratio")
    if ratio is None:
        drafting, verifying = k * draft, verify
    else:
        forwards = break_even / max(ratio, 1.0) / (k * draft + verify)
        drafting, verifying = forwards * k * draft, forwards * verify
    parts: dict[Bound, float] = {
        "draft": drafting,
        "verify": max(verifying - 1, 0.0),
        "overhead": max(break_even - drafting - verifying, 0.0),
    }
    total, above = sum(parts.values()), math.log(max(break_even, 1.0))
    shares = {name: above * part / total if total else 0.0 for name, part in parts.items()}
    return {"acceptance": math.log((k + 1) / length), **shares}


def why(cell: CellSummary, *, is_synthetic: bool = False) -> Iterator[Reason]:
    """The bottleneck of the cell, its break-even point and unsuitable models.

    `is_synthetic`: acceptance or weights are synthetic, so the match of the models is unknown.
    """
    k, metrics = cell.key.draft.k, cell.metrics
    parts, break_even = losses(metrics, k), number_of(metrics, "break_even_length")
    if parts is not None and not cell.key.draft.stops_early:
        yield _BOUND[max(parts, key=parts.__getitem__)]()
    first = metrics.get("acceptance_rate_per_position")
    shows_match = _shows_match(cell) and not is_synthetic
    if isinstance(first, tuple) and first and first[0] < MISMATCHED and shows_match:
        yield Kind.MISMATCHED(first=first[0])
    cost = number_of(metrics, "draft_cost_ratio")
    method = METHODS.get(cell.key.draft.method)
    has_model = method is not None and method.model != "refused" and not method.is_head
    if cost is not None and cost > TOO_SMALL and has_model:
        yield Kind.TARGET_TOO_SMALL(draft=cost)
    if break_even is not None and not cell.key.draft.stops_early:
        # What a round costs in addition to a step is paid by the rounds that draft.
        paid = 1 + (break_even - 1) / _share_drafting(metrics)
        needed, alpha = break_even_acceptance(k, paid), number_of(metrics, "alpha")
        if needed is None:
            yield Kind.NEVER_PAYS(k=k, break_even=break_even)
        elif alpha:
            yield Kind.ACCEPTANCE_PER_TOKEN(alpha=alpha, needed=needed)
    states = number_of(metrics, "state_bytes_per_row")
    if states:
        yield Kind.RECURRENT_STATES(states=states)


def _share_drafting(metrics: Mapping[str, float | tuple[float, ...]]) -> float:
    """The share of rounds that draft, which a lookup does not always; 1 if it is unknown, as
    without an accepted token."""
    length = number_of(metrics, "mean_acceptance_length") or 1.0
    drafted = number_of(metrics, "mean_acceptance_length_when_drafted") or length
    return (length - 1) / (drafted - 1) if length > 1 else 1.0


_BOUND: Mapping[Bound, Kind] = {
    "draft": Kind.DRAFT_BOUND,
    "verify": Kind.VERIFY_BOUND,
    "acceptance": Kind.ACCEPTANCE_BOUND,
    "overhead": Kind.OVERHEAD_BOUND,
}


def _shows_match(cell: CellSummary) -> bool:
    """Whether acceptance measures the match of the models, so that a perfect drafter has 100%.

    Above temperature 0 only sampled drafts show it: a greedy draft token is accepted with the
    target's probability for it. With p_min a round without a draft accepts none.
    """
    draft = cell.key.draft
    method = METHODS.get(draft.method)
    if method is None or method.model == "refused" or len(method.parts) > 1:
        return False
    if draft.p_min is not None:
        return False
    return cell.key.condition.temperature == 0 or method.draws_with({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Units:
    """The repeated units of an interval: prompts, passes over them, or cycles of a server's
    sessions.
    """

    count: int
    name: Literal["prompt", "pass", "cycle"]

    @property
    def are_prompts(self) -> bool:
        return self.name == "prompt"

    @property
    def are_cycles(self) -> bool:
        return self.name == "cycle"

    @property
    def needed(self) -> tuple[int, str]:
        """How many an interval needs."""
        return MIN_CYCLES if self.are_cycles else MIN_UNITS, self.name

    @property
    def are_too_few(self) -> bool:
        """Whether an interval needs more of them."""
        return self.count < self.needed[0]

    @property
    def amount(self) -> tuple[int, str]:
        return self.count, self.name


def units_of(cell: CellSummary) -> Units:
    """The units of a cell's interval."""
    cycles = number_of(cell.metrics, "num_cycles")
    if cycles is not None:
        return Units(count=round(cycles), name="cycle")
    if not cell.key.condition.is_stream:
        return Units(count=cell.num_prompts, name="prompt")
    passes = number_of(cell.metrics, "num_passes") or 0
    return Units(count=round(passes), name="pass")


class NamedK(TypedDict):
    """The K of a cell as figures of a reason; for `auto` with its mean."""

    k: int | str
    mean_k: float | None


def k_of(length: Length) -> int | str:
    """K, or `auto`."""
    return length.most if isinstance(length, Fixed) else length.label


def named_k(cell: CellSummary) -> NamedK:
    return {
        "k": k_of(cell.key.draft.length),
        "mean_k": number_of(cell.metrics, "mean_num_speculative_tokens"),
    }


def ks_of(cells: Iterable[CellSummary]) -> tuple[int | str, ...]:
    """The K of cells, each once, by K."""
    lengths = sorted({cell.key.draft.length for cell in cells}, key=lambda length: length.order)
    return tuple(map(k_of, lengths))


def reasons_for(
    cells: Sequence[CellSummary],
    leader: CellSummary | None,
    confirmed: CellSummary | None,
    *,
    is_synthetic: bool = False,
) -> Iterator[Reason]:
    """Why the leader won or lost, its costs, its evidence and the invalid cells."""
    if (evidence := confirmed or leader) is not None:
        yield from _costs(evidence)
        yield from why(evidence, is_synthetic=is_synthetic)
        if (effect := evidence.minimum_detectable_effect) is not None:
            yield Kind.DETECTABLE_EFFECT(effect=effect)
        yield from _width(evidence)
    excluded: dict[tuple[Reason, ...], list[CellSummary]] = {}
    for cell in cells:
        if not cell.valid:
            excluded.setdefault(cell.invalid_reasons, []).append(cell)
    for because, some in excluded.items():
        yield Kind.EXCLUDED(ks=ks_of(some), because=because)


def _costs(cell: CellSummary) -> Iterator[Reason]:
    kept = number_of(cell.metrics, "slo_attainment")
    baseline_kept = number_of(cell.metrics, "slo_attainment_of_baseline")
    if cell.goodput is not None and kept is not None and baseline_kept is not None:
        yield Kind.ATTAINMENT(
            limits=cell.goodput.limits,
            k=k_of(cell.key.draft.length),
            kept=kept,
            baseline=baseline_kept,
        )
    length = number_of(cell.metrics, "mean_acceptance_length")
    break_even = number_of(cell.metrics, "break_even_length")
    if length is not None and break_even is not None:
        yield Kind.ACCEPTANCE_LENGTH(**named_k(cell), length=length, break_even=break_even)
    draft = number_of(cell.metrics, "draft_cost_ratio")
    verify = number_of(cell.metrics, "verify_cost_ratio")
    if draft is not None and verify is not None:
        yield Kind.STEP_COSTS(draft=draft, verify=verify)
    num_bytes = number_of(cell.metrics, "speculation_cost_bytes")
    tokens = number_of(cell.metrics, "speculation_cost_tokens")
    if num_bytes is not None and num_bytes > 0:
        yield Kind.DRAFTER_MEMORY(bytes=num_bytes, cache_tokens=tokens)


ONE_PROMPT = 0.25  # of the variance over prompts
EQUAL_PROMPTS = 5.0  # over their number: the share that one of few equal prompts has by chance


def _width(cell: CellSummary) -> Iterator[Reason]:
    """What makes the interval as wide as it is, and what was left out of it."""
    margin, speedup, out = cell.margin, cell.speedup, cell.screening
    if margin is not None and speedup is not None and speedup.high is not None:
        yield Kind.MARGIN(
            total=speedup.high / speedup.estimate - 1,
            prompts=margin.prompts,
            machine=margin.machine,
            basis=(margin.machine_kind, margin.num_parts, margin.num_earlier),
        )
        share, by_chance = margin.largest_prompt or 0.0, EQUAL_PROMPTS / max(cell.num_prompts, 1)
        if share > max(ONE_PROMPT, by_chance) and not cell.key.condition.is_stream:
            yield Kind.ONE_PROMPT(share=share)
    if out is not None and out.num_baseline + out.num_draft:
        count = (out.num_baseline + out.num_draft, "request")
        yield Kind.STALLED(count=count, baseline=out.num_baseline, speedup=out.with_all)


def what_would_narrow(
    cell: CellSummary, workload_prompts: int | None, *, is_cut_short: bool = False
) -> Iterator[Reason]:
    """What to measure next; empty if unknown.

    `workload_prompts`: the number of prompts that fit the target; `is_cut_short`: a time budget
    ended before the cell had all its prompts, or a server the most cycles.
    """
    if cell.speedup is None:
        return
    units, prompts = units_of(cell), Units(count=cell.num_prompts, name="prompt")
    left = None if workload_prompts is None else max(0, workload_prompts - prompts.count)
    low, high = cell.speedup.low, cell.speedup.high
    if low is None or high is None:
        yield from _for_an_interval(units, prompts, left, is_cut_short=is_cut_short)
        return
    option = "--restart-cycles" if units.are_cycles else "--repeats"
    if units.are_cycles and is_cut_short:
        option = "--time-budget"
    effect = cell.minimum_detectable_effect
    if effect is not None and effect > LARGEST_EFFECT:
        yield Kind.TOO_NOISY(effect=effect, option=option)
    elif (
        cell.margin is not None
        and not units.are_cycles
        and cell.margin.machine > cell.margin.prompts
    ):
        yield Kind.MACHINE_VARIES(machine=cell.margin.machine, prompts=cell.margin.prompts)
    elif units.name == "pass" or (units.are_cycles and not _is_noise_of_prompts(cell, units.count)):
        yield Kind.MORE_OF(option=option)
    elif left == 0:
        yield Kind.ADD_PROMPTS()
    elif left is not None:
        num, total, width = prompts.count, prompts.count + left, None
        if not units.are_cycles:
            # Half the interval of the log over all prompts, if the others vary as the measured do.
            narrower = math.sqrt(num / total) * student_t(total - 1, UPPER)
            narrower /= student_t(num - 1, UPPER)
            width = math.expm1(math.log(high / low) / 2 * narrower)
            if cell.margin is not None:  # other prompts do not change the machine's part
                width = math.hypot(cell.margin.prompts * narrower, cell.margin.machine)
        if is_cut_short:
            yield Kind.BUDGET_FOR_ALL(width=width)
        else:
            yield Kind.ALL_PROMPTS(prompts=total, width=width)


def _for_an_interval(
    units: Units, prompts: Units, left: int | None, *, is_cut_short: bool
) -> Iterator[Reason]:
    lacks_prompts = units.are_cycles and not units.are_too_few  # more time does not add any
    if is_cut_short and not lacks_prompts:
        yield Kind.LONGER_BUDGET()
        return
    missing, kind = MIN_UNITS - units.count, units
    if lacks_prompts:
        missing, kind = MIN_UNITS - prompts.count, prompts
    elif units.are_cycles:
        missing = MIN_CYCLES - units.count
    missing = max(1, missing)
    is_enough = not kind.are_prompts or left is None or left >= missing
    num_prompts = prompts.count + missing if kind.are_prompts and is_enough else None
    yield Kind.NEEDS_MORE(missing=(missing, kind.name), num_prompts=num_prompts)
    if not is_enough:
        yield Kind.NOT_ENOUGH_LEFT(left=left)


def _is_noise_of_prompts(cell: CellSummary, num_cycles: int) -> bool:
    """Whether prompts contribute more to a server's interval than cycles."""
    of_cycles = number_of(cell.metrics, "cycle_deviation")
    of_prompts = number_of(cell.metrics, "prompt_error")
    if of_cycles is None or of_prompts is None:
        return False
    return of_prompts > of_cycles / math.sqrt(num_cycles)
