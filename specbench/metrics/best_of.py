"""Several outputs per prompt, of which the likeliest is picked: its cost and gain.

The likelihood of an output is the target's: the mean natural log probability of its tokens at
temperature 1. Absent if a prompt has one output.
"""

from collections.abc import Callable
from statistics import fmean

from specbench.metrics.cell import CellData
from specbench.metrics.registry import metric
from specbench.records import SamplesRecord
from specbench.stats.summaries import median_of


@metric(unit="s", better="lower")
def best_of_s(cell: CellData) -> float | None:
    """Median over turns of the seconds from the prefill that all samples share until one of them
    is picked, scoring included.
    """
    return median_of(choice.seconds for choice in cell.choices)


@metric(unit="s", better="lower")
def scoring_s(cell: CellData) -> float | None:
    """Median seconds per turn spent scoring the samples to pick one."""
    return median_of(choice.scoring_s for choice in cell.choices)


@metric(unit="nats/token", better="higher")
def first_log_prob(cell: CellData) -> float | None:
    """Mean over prompts of the first sample's mean log-probability per token: that of a single
    output.
    """
    return _mean(by_prompt(cell, lambda samples: samples.log_probs[0]))


@metric(unit="nats/token", better="higher")
def picked_log_prob(cell: CellData) -> float | None:
    """Mean over prompts of the picked sample's mean log-probability per token."""
    return _mean(by_prompt(cell, lambda samples: samples.log_probs[samples.picked]))


@metric(unit="nats/token", better="higher")
def best_of_gain(cell: CellData) -> float | None:
    """picked_log_prob - first_log_prob; never below 0, because the pick maximizes it."""
    return _mean(by_prompt(cell, gain))


def gain(samples: SamplesRecord) -> float:
    """Mean log probability of the picked sample minus that of the first, in nats per token."""
    return samples.log_probs[samples.picked] - samples.log_probs[0]


def by_prompt(cell: CellData, value: Callable[[SamplesRecord], float]) -> tuple[float, ...]:
    """One value per prompt, the mean over its turns and repeats."""
    values: dict[str, list[float]] = {}
    for choice in cell.choices:
        values.setdefault(choice.prompt_id, []).append(value(choice))
    return tuple(map(fmean, values.values()))


def _mean(values: tuple[float, ...]) -> float | None:
    return fmean(values) if values else None
