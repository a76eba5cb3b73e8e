"""Forecasts in words and tables, with the measurements that followed."""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from specbench.decide.comparisons import judge, may_be_equal
from specbench.decide.recommend import finding
from specbench.doc import part_of
from specbench.forecast.forecast_check import CheckedForecast, MeasuredPoint
from specbench.records import ForecastPoint, ForecastRecord, Kind, Reason, SpeedupVerdict
from specbench.report.document import Document
from specbench.report.grids import setting_column
from specbench.report.sections import drafter_of, setting_name
from specbench.words.answers import answer_text, joined
from specbench.words.table import Legend, Table, column, with_values

_LEGEND = {  # meanings, by a word of the headers that need them
    "AL": "mean acceptance length",
    "forecast": "made before any K was measured, from traces of all prompts and step times",
    "measured": "in the exploration phase; in brackets 95% intervals over prompts",
    "off": "forecast / measured - 1, over the same prompts",
    "round costs": "in steps of K=0",
    "there": "measured by the engine of the step times",
}


class _ForecastRow(NamedTuple):
    """One K of a forecast, with its measurement if there is one."""

    check: CheckedForecast
    point: ForecastPoint
    measured: MeasuredPoint | None

    @property
    def is_chosen(self) -> bool:
        return self.point.num_speculative_tokens == self.check.forecast.best


def forecast_grid(checks: Sequence[CheckedForecast]) -> Table:
    """Forecast against measured, one row per K."""
    rows = [
        _ForecastRow(check, point, check.measured.get(point.num_speculative_tokens))
        for check in checks
        for point in check.forecast.points
        if point.num_speculative_tokens
    ]
    measured = attrgetter("measured")
    there = (
        column("AL there", attrgetter("point.length_there"), "{:.2f}"),
        column("speedup there", attrgetter("point.speedup_there"), "{:.2f}x"),
    )
    return Table(
        title=f"Forecast against measured{_with_costs(checks)}",
        columns=[
            setting_column(rows, attrgetter("check.forecast.key.condition")),
            column("drafter", lambda row: drafter_of(row.check.forecast.key.source)),
            column("K", attrgetter("point.num_speculative_tokens")),
            column("AL forecast", attrgetter("point.mean_acceptance_length"), "{:.2f}"),
            column("measured", part_of(measured, "mean_acceptance_length"), "{:.2f}"),
            column("speedup forecast", attrgetter("point.speedup")),
            column("measured", part_of(measured, "speedup")),
            column("AL off", part_of(measured, "length_error"), "{:+.1%}"),
            column("speedup off", part_of(measured, "speedup_error"), "{:+.1%}"),
            column("round costs", lambda row: _cost(row.point)),
            *with_values(there, rows),
            column("", lambda row: "forecast's choice" if row.is_chosen else ""),
        ],
        records=rows,
        num_names=2,
        brief=range(7),
        mark=lambda row: "chosen" if row.is_chosen else "",
    )


def _cost(point: ForecastPoint) -> str:
    error = "" if point.cost_error is None else f" ±{point.cost_error:.1%}"
    return f"{point.cost:.2f}{error}"


def forecast_legend(document: Document) -> Legend | None:
    """The meaning of the columns of `forecast_grid`; None without a forecast."""
    if not document.forecasts:
        return None
    grid = forecast_grid(document.forecasts)
    headers, brief = " ".join(grid.headers), " ".join(grid.headers[i] for i in grid.brief_columns)
    entries = [entry for entry in _LEGEND.items() if entry[0] in headers]
    return Legend(entries, frozenset(word for word in _LEGEND if word in brief))


def forecast_lines(document: Document) -> list[str]:
    """One sentence per forecast: its choice and the time it saved."""
    settings = [check.forecast.key.condition for check in document.forecasts]
    return [
        f"{check.forecast.key.source} on {setting_name(setting, settings)}: {forecast_text(check)}"
        + document.mark
        for setting, check in zip(settings, document.forecasts, strict=True)
    ]


def forecast_text(check: CheckedForecast, *, names_pairing: bool = False) -> str:
    """The verdict of a forecast, such as `forecast: K=4, 1.90x faster [1.80, 2.00]; of K=1..8
    measured 4; 70% of ...`.
    """
    name = f"{check.forecast.key.source}, " if names_pairing else ""
    return f"forecast: {name}{answer_text(forecast_verdict(check), forecast_reasons(check))}"


def forecast_verdict(check: CheckedForecast) -> SpeedupVerdict:
    """What the interval of the forecast speedup supports."""
    return judge(check.forecast.leader.speedup)


def forecast_reasons(check: CheckedForecast) -> Iterator[Reason]:
    """What was forecast and how, what was measured after it, and the time that this saved."""
    record, leader = check.forecast, check.forecast.leader
    yield finding(leader.speedup, leader.num_speculative_tokens)
    if not record.is_exact:
        yield Kind.APPROXIMATE()
    yield from _adaptive(check)
    if record.costs_of is not None:
        yield _step_times(record)
        return
    ks = tuple(p.num_speculative_tokens for p in record.points if p.num_speculative_tokens)
    chosen, done = set(record.to_measure), set(check.measured)
    if not chosen:
        yield Kind.FORECAST_LOWER()
        return
    kind = Kind.WOULD_MEASURE if done > chosen else Kind.CHOSE_TO_MEASURE
    yield (Kind.MEASURED_CHOSEN if done == chosen else kind)(ks=ks, chosen=tuple(sorted(chosen)))
    if (saved := record.share_saved) is not None:  # by its own estimate; less in short sweeps
        yield Kind.TIME_LOST(share=-saved) if saved < 0 else Kind.TIME_SAVED(share=saved)


def _adaptive(check: CheckedForecast) -> Iterator[Reason]:
    """What an adaptive K could gain over the K that the forecast chose, and what K = auto does."""
    record, bound, auto = check.forecast, check.forecast.adaptive, check.auto
    if bound is not None:
        ks = tuple(point.num_speculative_tokens for point in record.points)
        yield Kind.ADAPTIVE_BOUND(ks=ks, hindsight=bound.hindsight, k=record.best)
        yield Kind.ADAPTIVE_PAST(past=bound.past)
        if bound.is_small:
            yield Kind.KEEP_K(k=record.best)
    elif not record.is_exact:
        yield Kind.ADAPTIVE_UNKNOWN(because=(Kind.DRAFTS_BY_ROUNDS(),))
    elif not record.num_prompts:
        yield Kind.ADAPTIVE_UNKNOWN(because=(Kind.NO_TRACES(),))
    is_shown = auto is not None and auto.valid and not may_be_equal(auto.decode)
    if auto and bound and is_shown and auto.best_fixed.draft.k == record.best:
        gains = auto.decode.estimate - 1, bound.hindsight.estimate - 1
        if min(gains) > 0:
            yield Kind.AUTO_REACHES(share=gains[0] / gains[1])


def _step_times(record: ForecastRecord) -> Reason:
    is_greedy = record.acceptance_rule == "greedy_draft"
    kind = Kind.STEP_TIMES_OF_GREEDY if is_greedy else Kind.STEP_TIMES_OF
    return kind(origin=record.costs_of)


def best_forecast(checks: Sequence[CheckedForecast]) -> CheckedForecast | None:
    """The drafter whose choice has the highest lower bound; None without one."""
    return max(checks, key=lambda check: _low(check.best), default=None)


def _with_costs(checks: Sequence[CheckedForecast]) -> str:
    """The sources of their step times, to append to a text; empty if all were measured here."""
    records = (check.forecast for check in checks)
    origins = dict.fromkeys(_step_times(r) for r in records if r.costs_of is not None)
    return f", {joined(origins)}" if origins else ""


def _low(point: ForecastPoint) -> float:
    """The lower bound of the speedup, or else its estimate; 1 for K = 0."""
    speedup = point.speedup
    return 1.0 if speedup is None else speedup.low or speedup.estimate
