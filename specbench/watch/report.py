"""A window of watching and the summary of all, as JSON and as lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Literal

from specbench.doc import Doc, JsonObject, Key, Several, keys_of
from specbench.forecast.cost_curve import CostCurve
from specbench.records import Kind, Reason
from specbench.servers.metrics_page import Counters
from specbench.stats.summaries import Interval
from specbench.watch.k_forecast import KForecast, best_of, forecasts
from specbench.watch.traffic import FAULTS, WatchedTraffic, Window, length_of, rates
from specbench.words.answers import REASON
from specbench.words.numbers import measured, plural

_COUNTS = {
    "num_rounds": ("rounds with drafts; with SGLang all", "rounds"),
    "num_draft_tokens": ("drafted", "tokens"),
    "num_accepted": ("drafted and accepted", "tokens"),
    "num_tokens": ("emitted, for all clients", "tokens"),
    "num_requests": ("finished", "requests"),
    "num_in_progress": ("that run or wait at its end", "requests"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """What was seen in a window, or in all of them."""

    part: Literal["window", "summary"]
    began_at: Annotated[str, Doc("when it began, in UTC")]
    seconds: Annotated[float, Doc("its length", "s")]
    counters: Counters
    length: Annotated[
        Interval | None,
        Doc("mean acceptance length; its bounds only in the summary", "tokens/round", low=1),
    ]
    rates: Annotated[
        tuple[Interval, ...],
        Doc("acceptance rate at position 1, 2 .. K; bounds only in the summary", low=0, high=1),
    ]
    reasons: tuple[Reason, ...] = ()
    forecasts: tuple[KForecast, ...] = ()


DOCUMENT = JsonObject(
    "Watch",
    "A line of `specbench watch --json`: a window, or in the last line all of them.",
    {
        "part": Key(Literal["window", "summary"], "what the line is about"),
        **keys_of(Watched, only=("began_at", "seconds")),
        **{
            name: Key(
                float | None,
                Doc(f"{meaning}; absent: not counted", unit),
                attrgetter(f"counters.{name}"),
            )
            for name, (meaning, unit) in _COUNTS.items()
        },
        "mean_acceptance_length": keys_of(Watched, only=("length",))["length"],
        "acceptance_rate_per_position": keys_of(Watched, only=("rates",))["rates"],
        "reasons": Key(Several(REASON), "changes, faults, and what another K would do"),
        "forecasts": Key(
            Several(JsonObject("KForecast", "A K with this traffic.", keys_of(KForecast))),
            "K = 0 up to that of the server; only in the summary",
        ),
    },
)


def of_window(window: Window, reasons: Sequence[Reason]) -> Watched:
    """A window with what it shows."""
    length = length_of(window.counters)
    return Watched(
        part="window",
        began_at=window.began_at,
        seconds=window.seconds,
        counters=window.counters,
        length=None if length is None else _exact(length),
        rates=tuple(map(_exact, rates(window.counters))),
        reasons=tuple(reasons),
    )


def summary_of(
    traffic: WatchedTraffic,
    found: Sequence[Reason],
    k: int | None,
    curve: CostCurve | None = None,
    concurrency: int = 1,
) -> Watched:
    """All of it. `found`: by the windows; `k`: of the server, None: unknown; `curve`: the costs of
    rounds with `concurrency` requests."""
    total, choices = traffic.total, forecasts(traffic.batches, k or 0, curve)
    seconds = sum(window.seconds for window in traffic.windows)
    at = plural(concurrency, "concurrent request")
    costs = "" if curve is None else f"the step times of {curve.source} at {at}"
    return Watched(
        part="summary",
        began_at=traffic.windows[0].began_at if traffic.windows else "",
        seconds=seconds,
        counters=total,
        length=traffic.length,
        rates=traffic.rates,
        reasons=(*found, *_answers(traffic, seconds, choices, k, costs)),
        forecasts=tuple(choices),
    )


def has_fault(reasons: Sequence[Reason]) -> bool:
    """Whether acceptance has collapsed, or none or all drafts are accepted."""
    return any(reason.kind in FAULTS for reason in reasons)


def _answers(
    traffic: WatchedTraffic,
    seconds: float,
    choices: Sequence[KForecast],
    k: int | None,
    costs: str,
) -> Iterator[Reason]:
    total, length = traffic.total, traffic.length
    if not traffic.windows:
        yield Kind.NOTHING_READ()
        return
    if not total.num_tokens and not total.num_rounds:
        yield Kind.NO_TRAFFIC(seconds=seconds)
        return
    if length is None and total.num_draft_tokens:
        yield Kind.ROUNDS_NOT_COUNTED(
            accepted=total.num_accepted or 0.0, drafted=total.num_draft_tokens
        )
        return
    if length is None and total.num_rounds:
        requests = total.num_requests or 0.0
        yield Kind.LENGTH_NOT_KNOWN(
            rounds=total.num_rounds,
            tokens=(total.num_tokens or 0.0) - requests,
            requests=requests,
        )
        return
    if length is None:
        yield Kind.NO_DRAFTS(tokens=total.num_tokens or 0.0)
        return
    yield Kind.LENGTH_WATCHED(length=length, rates=rates(total))
    if not choices or k is None:
        return
    best, now = best_of(choices), choices[k]
    is_full = total.num_draft_tokens == k * (total.num_rounds or 0)
    if best is None:
        fewest = next(c for c in choices if c.tokens_per_round >= 0.9 * now.tokens_per_round)
        if fewest is not now:
            yield _smaller(fewest, now, is_full=is_full)
        yield Kind.NEEDS_STEP_TIMES(k=k)
    elif best is now:
        known = [c for c in choices if c.speed is not None and c is not now]
        ks = tuple(c.num_speculative_tokens for c in known)
        yield Kind.NO_SMALLER_K(k=k, ks=ks, costs=costs)
    else:
        yield _smaller(best, now, is_full=is_full)
        yield Kind.K_FORECAST(k=best.num_speculative_tokens, now_k=k, speed=best.speed, costs=costs)


def _smaller(choice: KForecast, now: KForecast, *, is_full: bool) -> Reason:
    """`is_full`: every round drafts K tokens, so that the share of drafts saved is known."""
    k, now_k = choice.num_speculative_tokens, now.num_speculative_tokens
    return Kind.SMALLER_K(
        k=k,
        tokens=choice.tokens_per_round,
        now=now.tokens_per_round,
        fewer=1 - k / now_k if is_full else None,
    )


def line_of(watched: Watched) -> str:
    """A window on one line: when, requests, tokens, rounds, acceptance."""
    counted, seconds = watched.counters, watched.seconds
    parts = [watched.began_at[11:19]]
    if counted.num_in_progress is not None:
        parts.append(f"{counted.num_in_progress:.0f} in progress")
    if counted.num_tokens is not None:
        parts.append(measured(counted.num_tokens / seconds, "tokens/s"))
    if counted.num_rounds is not None:
        parts.append(f"{counted.num_rounds / seconds:.3g} rounds/s")
    if watched.length is not None:
        parts.append(f"length {watched.length.estimate:.2f}")
    parts += [" ".join(f"{rate.estimate:.0%}" for rate in watched.rates)]
    return "  ".join(filter(None, parts))


def _exact(value: float) -> Interval:
    return Interval(estimate=value, low=None, high=None)
