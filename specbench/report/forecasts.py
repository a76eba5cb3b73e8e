"""Forecasts in words and tables, beside what was measured after them."""

from collections.abc import Sequence

from specbench.decide.explanation import speedup_text
from specbench.forecast.forecast_check import CheckedForecast
from specbench.records import Condition, ForecastPoint, ForecastRecord
from specbench.report.document import Document
from specbench.report.grids import Grid, Legend
from specbench.report.numbers import interval_text, ranges, value_text
from specbench.report.sections import drafter_of

_RULES = {"exact": "", "greedy_draft": "drafts greedily"}
_LEGEND = {  # by a word of the headers that need it
    "AL": "mean acceptance length",
    "forecast": "made before any K was measured, from traces of all prompts and round costs",
    "measured": "the first pass; in brackets 95% intervals over prompts",
    "off": "forecast / measured - 1, over the same prompts",
    "round costs": "in steps of K=0",
    "there": "in the engine whose costs these are",
}


def forecast_grid(document: Document) -> Grid | None:
    """Forecast against measured, a row a K; None without a forecast."""
    found = document.forecasts
    if not found:
        return None
    settings = [one.forecast.key.condition for one in found]
    rows = [
        (one, point, _row(one, point, _where(setting, settings)))
        for setting, one in zip(settings, found, strict=True)
        for point in one.forecast.points
        if point.num_speculative_tokens
    ]
    there = _there([point for _, point, _ in rows])
    costs = [text for one in found if (text := whose_costs(one.forecast))]
    whose = f", with the costs of {'; '.join(dict.fromkeys(costs))}" if costs else ""
    return Grid(
        title=f"Forecast against measured{whose}",
        headers=(
            "",
            "drafter",
            "K",
            "AL forecast",
            "measured",
            "speed-up forecast",
            "measured",
            "AL off",
            "speed-up off",
            "round costs",
            *there,
            "",
        ),
        rows=tuple(
            (
                *cells,
                *(value_text(getattr(point, name), text) for name, text in there.values()),
                ("forecast's choice" if _is_best(one.forecast, point) else ""),
            )
            for one, point, cells in rows
        ),
        num_names=2,
        brief=range(7),
        marks=tuple("chosen" if _is_best(one.forecast, point) else "" for one, point, _ in rows),
    )


def _there(points: Sequence[ForecastPoint]) -> dict[str, tuple[str, str]]:
    """Field and format by header, of what the engine of the costs came to itself."""
    fields = {
        "AL there": ("length_there", "{:.2f}"),
        "speed-up there": ("speedup_there", "{:.2f}x"),
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
    """The choice of each forecast and the time it saved, a sentence each."""
    settings = [one.forecast.key.condition for one in document.forecasts]
    return [
        f"{one.forecast.key.source} on {_where(setting, settings)}: {forecast_text(one)}"
        + document.mark
        for setting, one in zip(settings, document.forecasts, strict=True)
    ]


def forecast_text(one: CheckedForecast, *, names_pairing: bool = False) -> str:
    """A sentence such as `forecast K=4, 1.90x [1.80, 2.00]; of K=1..8 measured 4, about 70% of
    ...`.
    """
    record = one.forecast
    best = one.best
    name = f"{record.key.source}, " if names_pairing else ""
    what = f"{name}K={record.best}" if record.best else "do not speculate"
    speed = "" if best.speedup is None else f", {speedup_text(best.speedup)}"
    about = "" if record.is_exact else ", approximate here"
    said = f"forecast {what}{speed}{about}"
    if record.costs_of is not None:
        return f"{said}, with the costs of {whose_costs(record)}"
    ks = [p.num_speculative_tokens for p in record.points if p.num_speculative_tokens]
    few, got = set(record.to_measure), set(one.measured)
    if not few:
        return f"{said}; skipped: other drafters forecast higher"
    word = "measured" if got == few else "would measure" if got > few else "chose to measure"
    return f"{said}; of K = {ranges(ks)} {word} {ranges(sorted(few))}{_time(record)}"


def _time(record: ForecastRecord) -> str:
    """The forecast's own estimate of what it saves; empty where there is none."""
    saved = record.share_saved
    if saved is None:
        return ""
    share = f"{saved:.0%} of the sweep's time saved"
    if saved < 0:  # so short a sweep has little to save
        share = f"{-saved:.0%} more time than the sweep"
    return f", {share} by its own estimate"


def best_forecast(found: Sequence[CheckedForecast]) -> CheckedForecast | None:
    """The drafter whose choice has the highest lower bound; None without one."""
    return max(found, key=lambda one: _low(one.best), default=None)


def whose_costs(record: ForecastRecord) -> str:
    """A source such as `vllm 0.32.0 (costs.csv), which drafts greedily`; empty if measured here."""
    if record.costs_of is None:
        return ""
    rule = _RULES[record.acceptance_rule]
    return f"{record.costs_of}, which {rule}" if rule else record.costs_of


def _row(one: CheckedForecast, point: ForecastPoint, where: str) -> tuple[str, ...]:
    k = point.num_speculative_tokens
    measured = one.measured.get(k)
    error = "" if point.cost_error is None else f" ±{point.cost_error:.1%}"
    return (
        where,
        drafter_of(one.forecast.key.source),
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


def _where(setting: Condition, among: list[Condition]) -> str:
    return ", ".join(setting.distinct_parts(among, also="workload"))


def _low(point: ForecastPoint) -> float:
    """K = 0 is at 1; without a bound the estimate counts."""
    speedup = point.speedup
    return 1.0 if speedup is None else speedup.low or speedup.estimate
