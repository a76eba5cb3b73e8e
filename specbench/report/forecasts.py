"""Forecasts in words and tables, with the measurements that followed."""

from collections.abc import Sequence

from specbench.decide.explanation import range_text, speedup_text
from specbench.decide.recommend import SpeedupVerdict, judge
from specbench.forecast.forecast_check import CheckedForecast
from specbench.records import ForecastPoint, ForecastRecord, ranges
from specbench.report.document import Document
from specbench.report.grids import Grid, Legend
from specbench.report.numbers import interval_text, value_text
from specbench.report.sections import drafter_of, setting_name

_RULES = {"exact": "", "greedy_draft": "drafts greedily"}
_LEGEND = {  # meanings, by a word of the headers that need them
    "AL": "mean acceptance length",
    "forecast": "made before any K was measured, from traces of all prompts and step times",
    "measured": "in the exploration phase; in brackets 95% intervals over prompts",
    "off": "forecast / measured - 1, over the same prompts",
    "round costs": "in steps of K=0",
    "there": "measured by the engine of the step times",
}


def forecast_grid(document: Document) -> Grid | None:
    """Forecast against measured, one row per K; None without a forecast."""
    checks = document.forecasts
    if not checks:
        return None
    settings = [check.forecast.key.condition for check in checks]
    rows = [
        (check, point, _row(check, point, setting_name(setting, settings)))
        for setting, check in zip(settings, checks, strict=True)
        for point in check.forecast.points
        if point.num_speculative_tokens
    ]
    there = _there([point for _, point, _ in rows])
    origins = [text for check in checks if (text := origin_of_costs(check.forecast))]
    costs = f", with the step times of {'; '.join(dict.fromkeys(origins))}" if origins else ""
    return Grid(
        title=f"Forecast against measured{costs}",
        headers=(
            "",
            "drafter",
            "K",
            "AL forecast",
            "measured",
            "speedup forecast",
            "measured",
            "AL off",
            "speedup off",
            "round costs",
            *there,
            "",
        ),
        rows=tuple(
            (
                *cells,
                *(value_text(getattr(point, name), text) for name, text in there.values()),
                ("forecast's choice" if _is_best(check.forecast, point) else ""),
            )
            for check, point, cells in rows
        ),
        num_names=2,
        brief=range(7),
        marks=tuple("chosen" if _is_best(c.forecast, point) else "" for c, point, _ in rows),
    )


def _there(points: Sequence[ForecastPoint]) -> dict[str, tuple[str, str]]:
    """Field and format by header of the results of the engine that the step times come from."""
    fields = {
        "AL there": ("length_there", "{:.2f}"),
        "speedup there": ("speedup_there", "{:.2f}x"),
    }
    return {
        header: field
        for header, field in fields.items()
        if any(getattr(point, field[0]) is not None for point in points)
    }


def forecast_legend(document: Document) -> Legend | None:
    """The meaning of the columns of `forecast_grid`; None without a forecast."""
    grid = forecast_grid(document)
    if grid is None:
        return None
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
    text = f"forecast: {name}{_verdict_text(check.leader)}{about}"
    if record.costs_of is not None:
        return f"{text}, with the step times of {origin_of_costs(record)}"
    ks = [p.num_speculative_tokens for p in record.points if p.num_speculative_tokens]
    chosen, done = set(record.to_measure), set(check.measured)
    if not chosen:
        return f"{text}; skipped: the forecast of another drafter is higher"
    verb = (
        "measured" if done == chosen else "would measure" if done > chosen else "chose to measure"
    )
    return f"{text}; of K = {ranges(ks)} {verb} {ranges(sorted(chosen))}{_time_saved(record)}"


def _verdict_text(point: ForecastPoint) -> str:
    """The words of a measured answer."""
    at, speedup = f"K={point.num_speculative_tokens}", point.speedup
    verdict = judge(speedup)
    if speedup is None or verdict is SpeedupVerdict.UNDECIDED:
        return f"undecided: {range_text(speedup) if speedup else 'no interval'} at {at}"
    if verdict is SpeedupVerdict.NO_SPEEDUP:
        return f"no speedup: {at}, {speedup_text(speedup)}"
    return f"{at}, {speedup_text(speedup, ' faster')}"


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


def origin_of_costs(record: ForecastRecord) -> str:
    """A source such as `vllm 0.32.0 (costs.csv), which drafts greedily`; empty if measured here."""
    if record.costs_of is None:
        return ""
    rule = _RULES[record.acceptance_rule]
    return f"{record.costs_of}, which {rule}" if rule else record.costs_of


def _row(check: CheckedForecast, point: ForecastPoint, setting: str) -> tuple[str, ...]:
    k = point.num_speculative_tokens
    measured = check.measured.get(k)
    error = "" if point.cost_error is None else f" ±{point.cost_error:.1%}"
    return (
        setting,
        drafter_of(check.forecast.key.source),
        str(k),
        f"{point.mean_acceptance_length:.2f}",
        value_text(measured.mean_acceptance_length if measured else None, "{:.2f}"),
        interval_text(point.speedup),
        interval_text(measured.speedup if measured else None),
        value_text(measured.length_error if measured else None, "{:+.1%}"),
        value_text(measured.speedup_error if measured else None, "{:+.1%}"),
        f"{point.cost:.2f}{error}",
    )


def _is_best(record: ForecastRecord, point: ForecastPoint) -> bool:
    return point.num_speculative_tokens == record.best


def _low(point: ForecastPoint) -> float:
    """The lower bound of the speedup, or else its estimate; 1 for K = 0."""
    speedup = point.speedup
    return 1.0 if speedup is None else speedup.low or speedup.estimate
