"""A history as sentences, charts and a table."""

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from specbench.doc import JsonObject, Key, Several, docs_of, keys_of
from specbench.gate.history import ExcludedRun, History, Series
from specbench.records import Kind, Reason
from specbench.report.blocks import Charts, Lines, ReportPart
from specbench.report.gate import DIFFERENCE
from specbench.stats.change_points import MIN_RUNS, SIGNIFICANCE, ChangePoint
from specbench.words.answers import REASON, text
from specbench.words.numbers import measured
from specbench.words.table import Table, column, labeled

_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 24


def history_report(history: History) -> ReportPart:
    """The changes, the charts, a table, and what the runs allow to find."""
    answers = list(map(text, changes(history))) or [text(Kind.NOTHING_FOUND())]
    notes = [*left_out_lines(history), history.false_alarms]
    if not history.num_judged:
        answers = [notes.pop()]
    return ReportPart(
        "specbench history",
        [
            Lines(answers, is_answer=True),
            Charts("history"),
            *history_grids(history),
            Lines(notes),
        ],
    )


def history_grids(history: History) -> Iterator[Table]:
    """A table per cell with one row per metric."""
    for key, group in groupby(history.series, key=lambda series: series.key):
        yield Table(title=key.label, columns=_COLUMNS, records=[*group], num_remarks=1)


def _finding(series: Series) -> str:
    no_finding = "steady" if len(series.points) >= MIN_RUNS else f"fewer than {MIN_RUNS} runs"
    return ", ".join(brief(series)) or no_finding


_COLUMNS = (
    *labeled(keys_of(Series)),
    column("runs", lambda series: len(series.points)),
    column("newest", lambda series: measured(series.values[-1], series.unit)),
    column("course", lambda series: sparkline(series.values)),
    column("finding", _finding),
)


def changes(history: History) -> Iterator[Reason]:
    """The steps and trends."""
    for series in history.series:
        name = {"metric": series.metric, "cell": series.key.label}
        for step in series.steps:
            yield Kind.STEPPED(
                **name,
                change=step.change,
                run_id=series.points[step.run_index].run_id,
                before=(step.before, series.unit),
                after=(step.after, series.unit),
                p_value=step.p_value,
                judged=_judged(series, step),
            )
        if series.trend is not None:
            yield Kind.TREND(
                **name,
                slope=series.trend.slope,
                unit=series.unit,
                runs=len(series.points),
                p_value=series.trend.p_value,
            )


class _StepOf(NamedTuple):
    """A change point with the series that has it."""

    series: Series
    step: ChangePoint


_STEP = JsonObject(
    "Step",
    "A change point.",
    {
        **keys_of(ChangePoint, attrgetter("step")),
        "change": Key(
            float | None,
            "(after - before) / size of before; absent: that is 0",
            attrgetter("step.change"),
        ),
        "run_id": Key(
            str,
            "id of the first run of the new level",
            lambda of: of.series.points[of.step.run_index].run_id,
        ),
    },
)
_SERIES = JsonObject(
    "Series",
    "One metric of one cell.",
    {
        **keys_of(Series),
        "steps": Key(
            Several(_STEP),
            docs_of(Series)["steps"],
            lambda series: [_StepOf(series, step) for step in series.steps],
        ),
    },
)
_LEFT_OUT = JsonObject(
    "ExcludedRun",
    "A run that is left out.",
    keys_of(ExcludedRun, objects={"differences": Several(DIFFERENCE)}),
)
DOCUMENT = JsonObject(
    "History",
    "The output of `specbench history --json`.",
    {
        "schema_version": Key(Literal[1], "version of this document", lambda _: 1),
        "significance": Key(
            float, "largest p-value of a change point or trend", lambda _: SIGNIFICANCE
        ),
        "min_runs": Key(int, "least runs for a change point or trend", lambda _: MIN_RUNS),
        "reasons": Key(Several(REASON), "the steps and trends in words", changes),
        "series": Key(Several(_SERIES), "one metric of one cell each"),
        "left_out": Key(
            Several(_LEFT_OUT),
            "runs that are not comparable with the newest complete one, or were interrupted",
        ),
    },
)


def history_json(history: History) -> dict[str, Any]:
    """The history as a JSON document; new keys do not change its version."""
    return DOCUMENT.of(history)


def left_out_lines(history: History) -> list[str]:
    """One line per run that is left out, with the reason."""
    return [
        f"{run.run_id} left out: "
        + "; ".join(f"{d.name}: {d.candidate}, here {d.baseline}" for d in run.differences)
        for run in history.left_out
    ]


def brief(series: Series) -> list[str]:
    """The steps or the trend of a series, such as `+5.1% at run 9`."""
    steps = [f"{_size(step)} at run {step.run_index + 1}" for step in series.steps]
    if series.trend is None:
        return steps
    return [f"trend {series.trend.slope:+.2g} {series.unit} per run"]


def sparkline(values: tuple[float, ...]) -> str:
    """The newest values as bars from the lowest to the highest."""
    shown = values[-_MOST_BARS:]
    low, high = min(shown), max(shown)
    if high == low:
        return _BARS[0] * len(shown)
    return "".join(_BARS[round((v - low) / (high - low) * (len(_BARS) - 1))] for v in shown)


def _judged(series: Series, step: ChangePoint) -> str | None:
    """`better` or `worse`; None if neither direction is."""
    if series.better is None:
        return None
    return "better" if (step.after > step.before) == (series.better == "higher") else "worse"


def _size(step: ChangePoint) -> str:
    return "a step" if step.change is None else f"{step.change:+.1%}"
