"""The plan of a run: its cells, and an estimate of its time and memory."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from specbench.bench.expected_time import (
    EarlierSession,
    ExpectedTime,
    SessionsEstimate,
    earlier_run,
    estimate_sessions,
    expected_time,
)
from specbench.bench.plan import TargetPlan
from specbench.cli.console import open_console, plain_table
from specbench.cli.hardware import this_machine
from specbench.cli.preflight import planned_setups, setup_of
from specbench.files.model import is_here
from specbench.fit.demand import demand, gib
from specbench.fit.memory_plan import DeploymentSpec
from specbench.records import CellPlan, Length, Reason, lengths
from specbench.records.keys import AXES
from specbench.settings import RunSettings
from specbench.words.answers import REASON, text
from specbench.words.table import text_table

# The first keys of a planned cell in JSON; the other axes follow.
_FIRST = (
    *("pairing", "workload", "method", "num_speculative_tokens", "temperature", "dtype", "engine"),
    *("concurrency", "context", "num_samples", "variant", "lossy", "adaptive"),
)


class _Column(NamedTuple):
    """A heading, and the sentence that replaces the column if all rows have the same value."""

    name: str
    once: str = ""
    is_always_shown: bool = False


# The axes that the first columns and K state; each of the rest has a column if rows differ in it.
_STATED = (
    *("pairing", "target", "drafter", "workload", "request_settings", "method", "lossy"),
    *("temperature", "concurrency", "num_samples", "context", "variant"),
    *("num_speculative_tokens", "adaptive"),
)
_REST = [name for name in AXES if name not in _STATED]
_COLUMNS = (
    _Column("pairing", is_always_shown=True),
    _Column("workload", is_always_shown=True),
    _Column("method", is_always_shown=True),
    _Column("T", "temperature {}"),
    _Column("batch", "batch {}"),
    _Column("context", "context {}"),
    _Column("variant", "variant {}"),
    *(_Column(name) for name in _REST),
    _Column("prompts", "prompts {}"),
    _Column("repeats", "repeats {}"),
    _Column("K", is_always_shown=True),
)


def plan_document(
    plans: Sequence[TargetPlan], earlier: Sequence[EarlierSession] = ()
) -> dict[str, Any]:
    """The JSON document of the planned cells and of those that are left out."""
    return {
        "cells": [
            {
                **cell.key.entries(*_FIRST, without=("target", "drafter", "request_rate")),
                "num_prompts": cell.num_prompts,
                "num_repeats": cell.num_repeats,
            }
            for plan in plans
            for cell in plan.cell_plans()
        ],
        "warnings": [*map(REASON.of, left_out(plans))],
        "sessions": [
            {
                "target": outlook.target,
                "engine": outlook.engine,
                "cycle": [session.configuration for session in outlook.sessions],
                "cycles": outlook.cycles,
                "seconds": outlook.seconds,
                "seconds_are_measured": outlook.is_measured,
                "detectable_effect": outlook.detectable,
            }
            for plan in plans
            for outlook in estimate_sessions(plan, earlier)
        ],
    }


def left_out(plans: Sequence[TargetPlan]) -> dict[Reason, None]:
    """Each warning about cells that are left out, once."""
    return dict.fromkeys(warning for plan in plans for warning in plan.left_out)


def print_plan(plans: Sequence[TargetPlan], earlier: Sequence[EarlierSession] = ()) -> None:
    """One row per pairing and workload; values that all rows share are below the table."""
    cells = [cell for plan in plans for cell in plan.cell_plans()]
    ks_of: dict[tuple[str, ...], list[Length]] = {}
    for cell in cells:
        ks_of.setdefault(_row(cell), []).append(cell.key.draft.length)
    rows = [(*row, lengths(ks)) for row, ks in ks_of.items()]
    values = list(map(set, zip(*rows, strict=True)))
    shown = [i for i, column in enumerate(_COLUMNS) if column.is_always_shown or len(values[i]) > 1]
    table = text_table(
        "",
        [_COLUMNS[i].name for i in shown],
        [[row[i] for i in shown] for row in rows],
        num_names=len(shown),
    )
    console = open_console()
    console.print(plain_table(table, num_keys=2))
    same = [
        column.once.format(*distinct)
        for column, distinct in zip(_COLUMNS, values, strict=True)
        if column.once and len(distinct) == 1 and distinct != {""}
    ]
    if same:
        console.print(f"all: {', '.join(same)}")
    for warning in left_out(plans):
        console.print(text(warning))
    for plan in plans:
        for outlook in estimate_sessions(plan, earlier):
            console.print(_sessions_text(outlook))
    open_ended = any(plan.settings.effort.is_open_ended for plan in plans)
    limit = " at most; --time-budget or --margin-of-error may end it earlier" if open_ended else ""
    console.print(f"{len(cells)} cells{limit}. Nothing was measured.")


def _row(cell: CellPlan) -> tuple[str, ...]:
    """The values of the columns except the last."""
    at, draft = cell.key.condition, cell.key.draft
    return (
        cell.key.pairing,
        at.workload_label,
        draft.marked(draft.method),
        f"{at.temperature:g}",
        str(at.batch_size),
        "" if at.context is None else f"{at.context:,}",
        at.variant or "",
        *("" if (value := AXES[name].of(cell.key)) is None else str(value) for name in _REST),
        str(cell.num_prompts),
        str(cell.num_repeats),
    )


def _sessions_text(outlook: SessionsEstimate) -> str:
    order = ", ".join(session.configuration for session in outlook.sessions)
    basis = (
        "as earlier sessions took" if outlook.is_measured else "a guess: nothing was measured yet"
    )
    each = "a start of the server" if outlook.are_starts else "on the running server"
    more = ", or more if these are noisy," if outlook.is_open_ended else ""
    extra = "; the winner is measured again, together with K=0" if outlook.num_confirming else ""
    lines = [
        f"{outlook.target} on {outlook.engine}: {outlook.cycles} cycles{more} of "
        f"{len(outlook.sessions)} sessions, each {each}: {order}",
        f"about {outlook.seconds / 60:,.0f} minutes ({basis}){extra}",
    ]
    if outlook.detectable is not None:
        lines.append(
            f"such a sweep can show a speedup of about {1 + outlook.detectable:.2f}x or more, if "
            "sessions differ as much as on a busy CPU; --restart-cycles N sets how many there are"
        )
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanOutlook(ExpectedTime):
    """The estimate of a target in this process or in one started server; None: unknown."""

    target: str
    server: str | None = None  # its engine
    dtype: str
    memory_bytes: int | None
    memory_unknown_because: str | None = None
    free_bytes: int | None


def plan_outlook(
    plans: Sequence[TargetPlan], settings: RunSettings, runs_dir: Path
) -> list[PlanOutlook]:
    """One estimate per target of this process, and one per engine that is started."""
    outlooks = [
        _outlook(plan, setup, expected_time(plan, setup, earlier_run(plan, setup, runs_dir)))
        for plan, setup in planned_setups(plans, settings)
    ]
    for plan in plans:
        for engine in plan.served if plan.running_ks is None else ():
            host = this_machine(DeploymentSpec(device="cpu"), settings.machine.device).setup
            # Servers use the dtype of the checkpoint, as a GPU does.
            setup = setup_of(plan, settings, replace(host, device="cuda"))
            outlooks.append(_outlook(plan, setup, ExpectedTime(), engine))
    return outlooks


def _outlook(
    plan: TargetPlan, setup: DeploymentSpec, time: ExpectedTime, server: str | None = None
) -> PlanOutlook:
    needed = demand(plan.target, [pairing.drafter for pairing in plan.pairings], setup)
    models = dict.fromkeys(model for pairing in plan.pairings for model in pairing.models)
    away = [model.source for model in models if not is_here(model)]
    because = f"not downloaded: {', '.join(away)}" if away else "the files do not state it"
    return PlanOutlook(
        **asdict(time),
        target=plan.target.name,
        server=server,
        dtype=needed.dtype,
        memory_bytes=None if needed.is_least else needed.total,
        memory_unknown_because=because if needed.is_least else None,
        free_bytes=setup.free_for(*models),
    )


def outlook_lines(estimates: Sequence[PlanOutlook]) -> Iterator[str]:
    """One sentence on memory per target."""
    for estimate in estimates:
        parts = [_time(estimate)]
        if estimate.memory_bytes is None:
            parts.append(f"memory unknown: {estimate.memory_unknown_because}")
        else:
            free = "" if estimate.free_bytes is None else f", of {gib(estimate.free_bytes)} free"
            parts.append(f"{gib(estimate.memory_bytes)} of memory in {estimate.dtype}{free}")
        label = estimate.target
        if estimate.server is not None:
            label = f"{estimate.target} on {estimate.server}, per server"
        yield f"{label}: {'; '.join(filter(None, parts))}"


def time_lines(estimates: Sequence[PlanOutlook], *, is_limited: bool = False) -> Iterator[str]:
    """One sentence per target of known time; `is_limited`: whether the run has a time budget."""
    limit = "" if is_limited else "; no time limit is set (--time-budget)"
    for estimate in estimates:
        if time := _time(estimate):
            yield f"{estimate.target}: {time}{limit}"


def _time(estimate: PlanOutlook) -> str:
    if estimate.seconds is None:
        return ""
    length = (
        f"{estimate.seconds:.0f} s"
        if estimate.seconds < 90
        else f"{estimate.seconds / 60:,.0f} minutes"
    )
    if estimate.is_ended_by_budget:
        sentence = f"about {length}: loading, then the time that --time-budget sets"
        if estimate.least_budget_s is not None:
            least = ceil(estimate.least_budget_s)
            at = "; ".join(filter(None, estimate.open_settings))
            sentence += f", probably too short for an interval{at and f' ({at})'}: "
            sentence += f"try --time-budget {least}s"
        return sentence
    if estimate.seconds_are_measured:
        return f"about {length}, by the tokens per second of an earlier run here"
    off = f"may be off by a factor of {estimate.tolerance}"
    return f"about {length} (estimated from model sizes; {off})"
