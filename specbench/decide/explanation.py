"""The reasons of a decision in short sentences: its bottleneck, its figures, and how many prompts
would decide it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from specbench.methods import METHODS
from specbench.metrics.registry import number_of
from specbench.records import CellSummary, Interval, Length, lengths
from specbench.stats.crossed import MIN_CYCLES
from specbench.stats.rounds import break_even_acceptance
from specbench.stats.spread import MIN_UNITS, UPPER, student_t

Bound = Literal["draft", "verify", "acceptance", "overhead"]

MISMATCHED = 0.5  # a drafter whose first draft is accepted less often is mismatched
TOO_SMALL = 0.3  # cost of a draft token in target steps, above which the target is too small
LARGEST_EFFECT = 1.0  # above this minimum detectable effect, more prompts do not help
_NOISE = "the noise hides any speedup"


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


def why(cell: CellSummary, *, is_synthetic: bool = False) -> Iterator[str]:
    """Sentences on the bottleneck of the cell, its break-even point and unsuitable models.

    `is_synthetic`: acceptance or weights are synthetic, so the match of the models is unknown.
    """
    k, metrics = cell.key.draft.k, cell.metrics
    parts, break_even = losses(metrics, k), number_of(metrics, "break_even_length")
    if parts is not None and not cell.key.draft.is_adaptive:
        yield _BOUND[max(parts, key=parts.__getitem__)]
    first = metrics.get("acceptance_rate_per_position")
    shows_match = _shows_match(cell) and not is_synthetic
    if isinstance(first, tuple) and first and first[0] < MISMATCHED and shows_match:
        yield f"mismatched drafter: only {first[0]:.0%} of its first tokens are accepted"
    cost = number_of(metrics, "draft_cost_ratio")
    method = METHODS.get(cell.key.draft.method)
    has_model = method is not None and method.model != "refused" and not method.is_head
    if cost is not None and cost > TOO_SMALL and has_model:
        yield (
            "the target is too small for a separate draft model of this size: a draft token "
            f"costs {cost:.2f} of its steps. A smaller draft model, a head or n-grams cost less"
        )
    if break_even is not None and not cell.key.draft.is_adaptive:
        needed, alpha = break_even_acceptance(k, break_even), number_of(metrics, "alpha")
        if needed is None:
            yield (
                f"round cost: {break_even:.2f} steps; K={k} loses even if every draft is accepted"
            )
        elif alpha is not None:
            yield f"acceptance per tested draft token: {alpha:.0%} (break-even: {needed:.0%})"
    states = number_of(metrics, "state_bytes_per_row")
    verify = number_of(metrics, "verify_cost_ratio")
    if states:
        checking = "" if verify is None else f"; verifying K + 1 tokens costs {verify:.2f} steps"
        yield (
            f"recurrent layers: {states / 2**20:,.1f} MiB of states per sequence are kept to roll "
            f"back rejected draft tokens{checking}"
        )


_BOUND: Mapping[Bound, str] = {
    "draft": "draft-bound: drafting takes most of the lost time; a cheaper drafter would help",
    "verify": "verify-bound: most of the loss is that a verification is longer than a target step",
    "acceptance": "acceptance-bound: most of the loss comes from rejected draft tokens",
    "overhead": "overhead-bound: most of the loss is between forwards",
}


def _shows_match(cell: CellSummary) -> bool:
    """Whether acceptance measures the match of the models, so that a perfect drafter has 100%.

    Above temperature 0 only sampled drafts show it: a greedy draft token is accepted with the
    target's probability for it.
    """
    method = METHODS.get(cell.key.draft.method)
    if method is None or method.model == "refused":
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
    def are_too_few(self) -> bool:
        """Whether an interval needs more prompts or passes."""
        return not self.are_cycles and self.count < MIN_UNITS

    def noun(self, count: int) -> str:
        return self.name if count == 1 else f"{self.name}{'es' if self.name == 'pass' else 's'}"


def units_of(cell: CellSummary) -> Units:
    """The units of a cell's interval."""
    cycles = number_of(cell.metrics, "num_cycles")
    if cycles is not None:
        return Units(count=round(cycles), name="cycle")
    if not cell.key.condition.is_stream:
        return Units(count=cell.num_prompts, name="prompt")
    passes = number_of(cell.metrics, "num_passes") or 0
    return Units(count=round(passes), name="pass")


def k_text(cell: CellSummary) -> str:
    """`K=5`, or `auto (mean K 3.1)` for an adaptive cell."""
    named = cell.key.draft.length.named
    mean_k = number_of(cell.metrics, "mean_num_speculative_tokens")
    return named if mean_k is None else f"{named} (mean K {mean_k:.1f})"


def reasons_for(
    cells: Sequence[CellSummary],
    leader: CellSummary | None,
    confirmed: CellSummary | None,
    *,
    standing: Sequence[str] = (),
    is_synthetic: bool = False,
) -> tuple[str, ...]:
    """Why the leader won or lost, its costs, its evidence and the invalid cells.

    `standing`: why it is the leader.
    """
    facts: list[str] = []
    if leader is not None:
        facts += _costs(confirmed or leader)
        facts += why(confirmed or leader, is_synthetic=is_synthetic)
        facts += standing
        facts += _evidence(leader, confirmed)
    excluded: dict[str, list[Length]] = {}
    for cell in cells:
        if not cell.valid:
            excluded.setdefault("; ".join(cell.invalid_reasons), []).append(cell.key.draft.length)
    facts += (f"excluded: K = {lengths(ks)}: {reason}" for reason, ks in excluded.items())
    return tuple(facts)


def speedup_text(speedup: Interval, word: str = "") -> str:
    """A speedup such as `1.90x faster [1.80, 2.00]`; without bounds only the estimate."""
    text = f"{speedup.estimate:.2f}x{word}"
    if speedup.low is None or speedup.high is None:
        return text
    return f"{text} [{speedup.low:.2f}, {speedup.high:.2f}]"


def range_text(speedup: Interval) -> str:
    """The range of an undecided speedup, such as `0.60x to 6.60x`."""
    if speedup.low is None or speedup.high is None:
        return "no interval"
    return f"{speedup.low:.2f}x to {speedup.high:.2f}x"


def _costs(cell: CellSummary) -> Iterator[str]:
    kept = number_of(cell.metrics, "slo_attainment")
    baseline_kept = number_of(cell.metrics, "slo_attainment_of_baseline")
    if cell.goodput is not None and kept is not None and baseline_kept is not None:
        shares = f"{kept:.0%} at {k_text(cell)}, {baseline_kept:.0%} at K=0"
        yield f"requests within {cell.goodput.limits}: {shares}"
    length = number_of(cell.metrics, "mean_acceptance_length")
    break_even = number_of(cell.metrics, "break_even_length")
    if length is not None and break_even is not None:
        shares = f"{length:.2f} tokens per round (break-even: {break_even:.2f})"
        yield f"acceptance length at {k_text(cell)}: {shares}"
    draft = number_of(cell.metrics, "draft_cost_ratio")
    verify = number_of(cell.metrics, "verify_cost_ratio")
    if draft is not None and verify is not None:
        yield f"time in target steps: {draft:.2f} per draft token, {verify:.2f} per verification"
    num_bytes = number_of(cell.metrics, "speculation_cost_bytes")
    tokens = number_of(cell.metrics, "speculation_cost_tokens")
    if num_bytes is not None and num_bytes > 0:
        cache = "" if tokens is None else f" (the KV cache of {tokens:,.0f} tokens)"
        mebibytes = num_bytes / 2**20
        yield f"drafter memory: {mebibytes:,.{0 if mebibytes >= 10 else 1}f} MiB{cache}"


def _evidence(leader: CellSummary, confirmed: CellSummary | None) -> Iterator[str]:
    if confirmed is not None and not confirmed.valid:
        yield f"confirmation run excluded: {'; '.join(confirmed.invalid_reasons)}"
    elif confirmed is not None and confirmed.speedup is not None:
        units = units_of(confirmed)
        yield (
            f"confirmation run: {speedup_text(confirmed.speedup)} "
            f"over {units.count} {units.noun(units.count)}"
        )
    effect = (confirmed or leader).minimum_detectable_effect
    if effect is not None:
        text = f"{effect:.1%}" if effect <= LARGEST_EFFECT else f"more than 100%: {_NOISE}"
        yield f"minimum detectable effect: {text}"


def what_would_narrow(
    cell: CellSummary, workload_prompts: int | None, *, is_cut_short: bool = False
) -> str:
    """The next thing to measure; empty if unknown.

    `workload_prompts`: the number of prompts that fit the target; `is_cut_short`: a time budget
    ended before the cell had all its prompts.
    """
    if cell.speedup is None:
        return ""
    units, prompts = units_of(cell), Units(count=cell.num_prompts, name="prompt")
    left = None if workload_prompts is None else max(0, workload_prompts - prompts.count)
    low, high = cell.speedup.low, cell.speedup.high
    if low is None or high is None:
        if is_cut_short:
            return "use a longer --time-budget"
        return _for_an_interval(units, prompts, left)
    option = "--restart-cycles" if units.are_cycles else "--repeats"
    quieter = f"a quieter machine or more {option}"
    if (cell.minimum_detectable_effect or 0.0) > LARGEST_EFFECT:
        return f"{_NOISE}: use {quieter}"
    if units.name == "pass" or (units.are_cycles and not _is_noise_of_prompts(cell, units.count)):
        return f"to narrow it: more {option}"
    if left is None:
        return ""
    if not left:
        return f"to narrow it: add prompts to the workload, or use {quieter}"
    option = "a longer --time-budget" if is_cut_short else f"--num-prompts {prompts.count + left}"
    text = f"to narrow it: {option} for all of the workload"
    if units.are_cycles:
        return text
    # Half the interval of the log over all prompts, if the others vary as the measured ones do.
    num, total = prompts.count, prompts.count + left
    narrower = math.sqrt(num / total) * student_t(total - 1, UPPER) / student_t(num - 1, UPPER)
    width = math.expm1(math.log(high / low) / 2 * narrower)
    return f"{text} (to about ±{float(f'{width:.1g}'):.0%})"


def _for_an_interval(units: Units, prompts: Units, left: int | None) -> str:
    missing, kind = MIN_UNITS - units.count, units
    if units.are_cycles:
        missing = MIN_CYCLES - units.count
        if missing <= 0:
            missing, kind = MIN_UNITS - prompts.count, prompts
    missing = max(1, missing)
    text = f"at least {missing} more {kind.noun(missing)} needed for an interval"
    if kind.are_prompts and left is not None and left < missing:
        return f"{text}, but the workload has {f'only {left}' if left else 'no'} more: add some"
    return f"{text}: --num-prompts {prompts.count + missing}" if kind.are_prompts else text


def _is_noise_of_prompts(cell: CellSummary, num_cycles: int) -> bool:
    """Whether prompts contribute more to a server's interval than cycles."""
    of_cycles = number_of(cell.metrics, "cycle_deviation")
    of_prompts = number_of(cell.metrics, "prompt_error")
    if of_cycles is None or of_prompts is None:
        return False
    return of_prompts > of_cycles / math.sqrt(num_cycles)
