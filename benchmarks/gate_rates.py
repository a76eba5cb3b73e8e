"""How often the gate says what, over pairs of runs: real ones, and simulated ones."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
from scipy.stats import beta

from benchmarks.gate_noise import CellNoise, Change, Prompts, simulated_pair
from specbench.gate.baseline import Snapshot, pool
from specbench.gate.check import Gate, check
from specbench.gate.judging import GateVerdict, Judgment
from specbench.gate.tolerances import MetricKind, Tolerance
from specbench.stats.rounds import mean_length

SECONDS = (MetricKind.RATIO, MetricKind.TIME)


@dataclass(frozen=True)
class Rates:
    """Shares of gates, and of their verdicts on counts and on seconds."""

    num_gates: int
    alarms: float  # gates with a regression
    inconclusive_counts: float  # of the verdicts on counts, text among them
    inconclusive_seconds: float  # of the verdicts on seconds
    alarms_at_most: float  # 95%, by so many gates as are independent


def rates(gates: Iterable[Gate], num_independent: int | None = None) -> Rates:
    """Pairs that share runs are not independent: there are at most half as many as runs."""
    found = list(gates)
    alarms = [gate.verdict is GateVerdict.REGRESSION for gate in found]
    share = float(np.mean(alarms))
    n = num_independent or len(found)
    seen = round(share * n)
    judgments = [judgment for gate in found for judgment in gate.judgments]
    return Rates(
        num_gates=len(found),
        alarms=share,
        inconclusive_counts=_inconclusive(j for j in judgments if j.kind not in SECONDS),
        inconclusive_seconds=_inconclusive(j for j in judgments if j.kind in SECONDS),
        alarms_at_most=1.0 if seen == n else float(beta.ppf(0.95, seen + 1, n - seen)),
    )


def tolerances(shares: Mapping[str, float]) -> tuple[Tolerance, ...]:
    return tuple(Tolerance(metric=name, share=share) for name, share in shares.items())


def every_pair(runs: Sequence[Snapshot]) -> Iterator[Gate]:
    """Each run against each other one, both ways round, by the default tolerances."""
    for one, other in combinations(runs, 2):
        yield check(one, other)
        yield check(other, one)


def random_splits(
    runs: Sequence[Snapshot],
    asked: Sequence[Tolerance],
    num_baseline: int,
    num_candidate: int,
    num_splits: int = 400,
) -> Iterator[Gate]:
    """The recipe over again: some runs as baseline, others as candidate."""
    rng = np.random.default_rng(0)
    for _ in range(num_splits):
        order = rng.permutation(len(runs))[: num_baseline + num_candidate]
        chosen = [runs[i] for i in order]
        yield check(pool(chosen[:num_baseline]), pool(chosen[num_baseline:]), asked)


def simulated(
    noise: Sequence[CellNoise],
    asked: Sequence[Tolerance],
    change: Change | None = None,
    *,
    num_pairs: int = 2_000,
    runs: tuple[int, int] = (1, 1),
    seed: int = 0,
) -> Iterator[Gate]:
    rng = np.random.default_rng(seed)
    for _ in range(num_pairs):
        baseline, candidate = simulated_pair(noise, rng, change, runs=runs)
        yield check(baseline, candidate, asked)


@cache
def slower(share: float) -> Change:
    """A speedup, and tokens a second, that lose a share: 0.1 is 10%."""

    def change(drawn: Prompts) -> Prompts:
        return drawn._replace(spec_s=drawn.spec_s / (1 - share))

    return change


def fewer_kept(share: float) -> Change:
    """Drafts rejected so that mean acceptance length loses a share on every prompt."""

    def change(drawn: Prompts) -> Prompts:
        length = mean_length(drawn.accepted, drawn.rounds)
        return drawn._replace(accepted=(length * (1 - share) - 1) * drawn.rounds)

    return change


def losses(gates: Iterable[Gate], metric: str) -> dict[str, Any]:
    """What identical pairs measured of a metric: how far off, and how often beyond."""
    found = [
        j.change.estimate
        for gate in gates
        for j in gate.judgments
        if j.metric == metric and j.change is not None
    ]
    return {
        "deviation_of_a_pair": float(np.std(found)),
        "largest": float(np.max(np.abs(found))),
        "by_estimate_alone": {
            f"{share:.0%}": float(np.mean([-loss > share for loss in found]))
            for share in (0.02, 0.05, 0.10, 0.20)
        },
    }


def verdict_counts(judgments: Iterable[Judgment]) -> dict[str, int]:
    return dict(Counter(judgment.verdict.value for judgment in judgments))


def _inconclusive(judgments: Iterable[Judgment]) -> float:
    verdicts = [judgment.verdict is GateVerdict.INCONCLUSIVE for judgment in judgments]
    return float(np.mean(verdicts)) if verdicts else 0.0
