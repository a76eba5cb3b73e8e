"""What a smaller K would do with a server's traffic, by the positions at which drafts are accepted.

The draft of a chain does not depend on how long it gets, if its method drafts token by token: K = k
then accepts what K accepts at the first k positions. Its rounds start at other places of the text,
so this is an estimate. A larger K, a tree of another size, and a block that is drafted at once for
its K (DFlash) are unknown; counters do not name the method.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from specbench.decide.recommend import near_best
from specbench.doc import Doc
from specbench.errors import UsageError
from specbench.forecast.cost_curve import CostCurve, curve_from
from specbench.records import EngineCost
from specbench.servers.metrics_page import Counters
from specbench.stats.intervals import interval, log_ratio, product
from specbench.stats.rounds import mean_length, rounds_counted
from specbench.stats.summaries import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class KForecast:
    """A K with the traffic that was watched."""

    num_speculative_tokens: Annotated[int, Doc("K", "tokens/round")]
    tokens_per_round: Annotated[float, Doc("emitted per round", "tokens/round", low=1)]
    speed: Annotated[
        Interval | None,
        Doc("its forecast speed over that of the server's K; absent: no step times", "x"),
    ]


def forecasts(batches: Sequence[Counters], k: int, curve: CostCurve | None) -> list[KForecast]:
    """K = 0 .. k with the traffic of a server at K = k; none where its drafts are no chains."""
    drafted = sum(batch.num_draft_tokens or 0 for batch in batches)
    rounds = sum(batch.num_rounds or 0 for batch in batches)
    at = [batch.num_accepted_at for batch in batches]
    if not batches or any(len(of) != k for of in at) or drafted > k * rounds:
        return []
    accepted = np.cumsum([(0.0, *of) for of in at], axis=1)
    emitted = accepted + np.array([[_num_rounds(batch)] for batch in batches])
    return [
        KForecast(
            num_speculative_tokens=j,
            tokens_per_round=mean_length(float(accepted[:, j].sum()), rounds),
            speed=_speed(emitted[:, j], emitted[:, k], curve, j, k),
        )
        for j in range(k + 1)
    ]


def _num_rounds(batch: Counters) -> float:
    """Also those that drafted nothing, as step times have them."""
    counted, accepted, tokens = batch.num_rounds or 0.0, batch.num_accepted, batch.num_tokens
    if batch.counts_all_rounds or accepted is None or tokens is None:
        return counted
    return rounds_counted(tokens - (batch.num_requests or 0.0), accepted, counted)


def _speed(
    emitted: np.ndarray, now: np.ndarray, curve: CostCurve | None, j: int, k: int
) -> Interval | None:
    if curve is None or not {j, k} <= curve.costs.keys():
        return None
    return interval(product(log_ratio([emitted], [now]), curve.speed(j, k)))


def best_of(choices: Sequence[KForecast]) -> KForecast | None:
    """The fastest by forecast, of those within 1% the smallest K; None without step times."""
    speeds = {each: each.speed.estimate for each in choices if each.speed is not None}
    if not speeds:
        return None
    return min(near_best(speeds, speeds.__getitem__), key=lambda c: c.num_speculative_tokens)


# What the costs of a server share, in the plural.
_ONE_EACH = {
    "target": "targets",
    "drafter": "drafters",
    "context": "contexts (0: prompts unchanged)",
    "num_samples": "numbers of samples",
}


def curve_near(
    costs: Sequence[EngineCost], engine: str, num_in_progress: float | None, k: int
) -> tuple[CostCurve, int]:
    """The costs with the number of concurrent requests that is nearest to that in progress, and
    that number.

    UsageError without K = 0 or K, for several targets, drafters, contexts or numbers of samples,
    for a run of another `engine` than that of the server, such as "vllm 0.32.0", and for several
    numbers of requests if the one in progress is unknown.
    """
    if foreign := sorted({c.engine for c in costs if c.target is not None} - {engine}):
        raise UsageError(
            f"--step-times: these are of {' and '.join(foreign)}, and the server is {engine}; give "
            "a run of this server"
        )
    for name, several in _ONE_EACH.items():
        if len(values := {getattr(c, name) for c in costs} - {None}) > 1:
            raise UsageError(
                f"--step-times: these are of several {several}, "
                f"{', '.join(map(str, sorted(values)))}; give those of the one that is served"
            )
    known, wanted = {cost.concurrency for cost in costs}, max(num_in_progress or 1.0, 1.0)
    if num_in_progress is None and len(known) > 1:
        raise UsageError(
            f"--step-times: these are of {', '.join(map(str, sorted(known)))} concurrent requests, "
            f"and {engine} does not report how many are in progress; give those of one number"
        )
    nearest = min(known, key=lambda n: abs(n - wanted))
    curve = curve_from(costs, concurrency=nearest, ks=range(k + 1))
    if k not in curve.costs:
        raise UsageError(
            f"--step-times: {curve.source} has no cost of K={k}, which the server runs; add it"
        )
    return curve, nearest
