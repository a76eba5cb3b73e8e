"""Forecasts in words and tables, with the measurements that followed."""

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from specbench.decide.recommend import finding, judge
from specbench.doc import part_of
from specbench.forecast.forecast_check import CheckedForecast, MeasuredPoint
from specbench.records import ForecastPoint, ForecastRecord, ranges
from specbench.report.document import Document
from specbench.report.grids import setting_column
from specbench.report.sections import drafter_of, setting_name
from specbench.words.answers import answer_text
from specbench.words.table import Legend, Table, column, with_values

FORECAST_TITLE = "Forecast against measured"
_RULES = {"exact": "", "greedy_draft": ", which drafts greedily"}
_LEGEND = {  # meanings, by a word of the headers that need them
    "AL": "mean acceptance length",
    "forecast": "made before any K was measured, from traces of all prompts and step times",
    "measured": "in the exploration phase; in brackets 95% intervals over prompts",
    "off": "forecast / measured - 1, over the same prompts",
    "round costs": "in steps of K=0",
    "there": "measured by the engine of the step times",
}


class _Point(NamedTuple):
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
        _Point(check, point, check.measured.get(point.num_speculative_tokens))
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
        title=f"{FORECAST_TITLE}{with_costs(checks)}",
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
    """The verdict of a forecast, such as `forecast: K=4, 1.90x faster [1.80, 2.00]; of K = 1..8
    measured 4, about 70% of ...`.
    """
    record = check.forecast
    name = f"{record.key.source}, " if names_pairing else ""
    about = "" if record.is_exact else ", approximate here"
    leader = check.leader
    verdict = answer_text(
        judge(leader.speedup), [finding(leader.speedup, leader.num_speculative_tokens)]
    )
    text = f"forecast: {name}{verdict}{about}"
    if record.costs_of is not None:
        return f"{text}{with_costs([check])}"
    ks = [p.num_speculative_tokens for p in record.points if p.num_speculative_tokens]
    chosen, done = set(record.to_measure), set(check.measured)
    if not chosen:
        return f"{text}; skipped: the forecast of another drafter is higher"
    verb = (
        "measured" if done == chosen else "would measure" if done > chosen else "chose to measure"
    )
    return f"{text}; of K = {ranges(ks)} {verb} {ranges(sorted(chosen))}{_time_saved(record)}"


def _time_saved(record: ForecastRecord) -> str:
    """The time that the forecast saves by its own estimate; empty without one."""
    saved = record.share_saved
    if saved is None:
        return ""
    share = f"{saved:.0%} of the sweep's time saved"
    if saved < 0:  # as in short sweeps
        share = f"{-saved:.0%} more time than the sweep"
    return f", {share} by its own estimate"


def best_forecast(checks: Sequence[CheckedForecast]) -> CheckedForecast | None:
    """The drafter whose choice has the highest lower bound; None without one."""
    return max(checks, key=lambda check: _low(check.best), default=None)


def with_costs(checks: Sequence[CheckedForecast]) -> str:
    """The sources of their step times, to append to a text; empty if all were measured here."""
    origins = dict.fromkeys(
        f"{record.costs_of}{_RULES[record.acceptance_rule]}"
        for record in (check.forecast for check in checks)
        if record.costs_of is not None
    )
    return f", with the step times of {'; '.join(origins)}" if origins else ""


def _low(point: ForecastPoint) -> float:
    """The lower bound of the speedup, or else its estimate; 1 for K = 0."""
    speedup = point.speedup
    return 1.0 if speedup is None else speedup.low or speedup.estimate
