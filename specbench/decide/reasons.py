"""The facts behind a decision, in short plain sentences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from specbench.decide.why import why
from specbench.metrics.registry import number_of
from specbench.records import CellSummary, Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Units:
    """What was repeated to see how far a speed-up may be off: prompts, passes over them, or of a
    server cycles of sessions."""

    count: int
    name: Literal["prompt", "pass", "cycle"]

    @property
    def are_prompts(self) -> bool:
        return self.name == "prompt"

    @property
    def are_cycles(self) -> bool:
        return self.name == "cycle"

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
    """`K=5`, or `auto (mean K 3.1)` of an adaptive cell."""
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
    """Why the leader won or lost, what it costs, how it was measured, what was left out.

    `standing`: why it is the one to speak of.
    """
    facts: list[str] = []
    if leader is not None:
        facts += _costs(confirmed or leader)
        facts += why(confirmed or leader, is_synthetic=is_synthetic)
        facts += standing
        facts += _evidence(leader, confirmed)
    facts += (
        f"{k_text(cell)} excluded: {'; '.join(cell.invalid_reasons)}"
        for cell in cells
        if not cell.valid
    )
    return tuple(facts)


def speedup_text(speedup: Interval, word: str = "") -> str:
    """Such as `1.90x faster [1.80, 2.00]`; without bounds the estimate alone."""
    text = f"{speedup.estimate:.2f}x{word}"
    if speedup.low is None or speedup.high is None:
        return text
    return f"{text} [{speedup.low:.2f}, {speedup.high:.2f}]"


def range_text(speedup: Interval) -> str:
    """Such as `0.60x to 6.60x`: what is known of an undecided speedup, without its estimate."""
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
        yield f"acceptance length {length:.2f} at {k_text(cell)}, break-even {break_even:.2f}"
    draft, verify = (
        number_of(cell.metrics, "draft_cost_ratio"),
        number_of(cell.metrics, "verify_cost_ratio"),
    )
    if draft is not None and verify is not None:
        yield f"a draft token costs {draft:.2f} baseline steps, verification {verify:.2f}"
    num_bytes = number_of(cell.metrics, "speculation_cost_bytes")
    tokens = number_of(cell.metrics, "speculation_cost_tokens")
    if num_bytes is not None and num_bytes > 0:
        room = "" if tokens is None else f", room for {tokens:,.0f} tokens of context"
        yield f"the drafter takes {num_bytes / 2**20:,.0f} MiB{room}"


def _evidence(leader: CellSummary, confirmed: CellSummary | None) -> Iterator[str]:
    if confirmed is not None and not confirmed.valid:
        yield f"second measurement excluded: {'; '.join(confirmed.invalid_reasons)}"
    elif confirmed is not None and confirmed.speedup is not None:
        units = units_of(confirmed)
        yield (
            f"measured again on fresh repeats: {speedup_text(confirmed.speedup)} "
            f"over {units.count} {units.noun(units.count)}"
        )
    effect = (confirmed or leader).minimum_detectable_effect
    if effect is not None:
        # Beyond a doubling its size says nothing more.
        text = f"{effect:.1%}" if effect <= 1 else "more than 100%: the noise hides any speed-up"
        yield f"minimum detectable effect: {text}"
