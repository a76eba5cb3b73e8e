"""The best of several answers: its cost over one answer alone, its speed-up, its gain."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specbench.metrics.best_of import by_prompt, first_log_prob, gain, picked_log_prob
from specbench.metrics.cell import CellData, turn_of
from specbench.metrics.pairs import paired_end_to_end
from specbench.metrics.validity import judge_cell
from specbench.records import CellKey, Interval
from specbench.stats.intervals import interval, log_ratio, mean_interval, speedup_interval


@dataclass(frozen=True, kw_only=True, slots=True)
class BestOf:
    """What N answers to each prompt cost and gain at one K; intervals over prompts."""

    key: CellKey  # of the cell with N samples
    speedup: Interval | None  # seconds until one is picked without drafts / with; None at K = 0
    cost: Interval | None  # those seconds / the seconds of one answer alone at the same K
    scoring_share: float  # of those seconds, spent on the log-probabilities
    first_log_prob: float  # mean log-probability per token of the first sample, nats
    picked_log_prob: float  # of the picked one
    gain: Interval  # picked - first
    num_prompts: int
    valid: bool


def compare_best_of(cells: Sequence[CellData]) -> tuple[BestOf, ...]:
    """One for each cell with several samples; the cost where one sample alone was measured."""
    by_key = {cell.key: cell for cell in cells}
    found = (_compare(cell, by_key.get(_alone(cell.key))) for cell in cells)
    return tuple(one for one in found if one is not None)


def _alone(key: CellKey) -> CellKey:
    return replace(key, condition=replace(key.condition, num_samples=1))


def _compare(cell: CellData, alone: CellData | None) -> BestOf | None:
    """None for one sample, and where none was picked."""
    first, picked = first_log_prob(cell), picked_log_prob(cell)
    if first is None or picked is None:
        return None
    seconds = paired_end_to_end(cell)
    gains = by_prompt(cell, gain)
    whole_s = sum(samples.record.seconds for samples in cell.samples)
    return BestOf(
        key=cell.key,
        speedup=speedup_interval(*seconds) if seconds else None,
        cost=_cost(cell, alone) if alone else None,
        scoring_share=sum(samples.record.scoring_s for samples in cell.samples) / whole_s,
        first_log_prob=first,
        picked_log_prob=picked,
        gain=mean_interval(gains),
        num_prompts=len(gains),
        valid=not judge_cell(cell) and (alone is None or not judge_cell(alone)),
    )


def _cost(cell: CellData, alone: CellData) -> Interval | None:
    """None where the two have no turn in common."""
    sums: dict[str, tuple[float, float]] = {}
    for prompt_id, many_s, one_s in _seconds(cell, alone):
        many_sum, one_sum = sums.get(prompt_id, (0.0, 0.0))
        sums[prompt_id] = many_sum + many_s, one_sum + one_s
    if not sums:
        return None
    many, one = zip(*sums.values(), strict=True)
    return interval(log_ratio([many], [one]))


def _seconds(cell: CellData, alone: CellData) -> Iterator[tuple[str, float, float]]:
    """Prompt, seconds of all samples, seconds of one; the same turns and repeats."""
    known = {turn_of(r): r.total_s for r in alone.finished if r.total_s}
    for samples in cell.samples:
        one_s = known.get(turn_of(samples.record))
        if one_s is not None:
            yield samples.record.prompt_id, samples.record.seconds, one_s
