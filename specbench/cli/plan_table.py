"""The plan of a run, printed by --dry-run."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from specbench.bench.plan import TargetPlan
from specbench.bench.served.outlook import Outlook, outlooks
from specbench.cli.console import open_console
from specbench.records import Length, ServerRecord
from specbench.report.numbers import lengths

# What a planned cell begins with, for machines; every other axis follows.
_FIRST = (
    *("pairing", "workload", "method", "num_speculative_tokens", "temperature", "dtype", "engine"),
    *("concurrency", "context", "num_samples", "lossy", "adaptive"),
)


def plan_document(
    plans: Sequence[TargetPlan], earlier: Sequence[ServerRecord] = ()
) -> dict[str, Any]:
    """The cells that would be measured, and those that would not, for machines."""
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
        "warnings": list(_warnings(plans)),
        "sessions": [
            {
                "target": one.target,
                "engine": one.engine,
                "cycle": [session.draft.label for session in one.sessions],
                "cycles": one.cycles,
                "seconds": one.seconds,
                "seconds_are_measured": one.is_measured,
                "detectable_effect": one.detectable,
            }
            for plan in plans
            for one in outlooks(plan, earlier)
        ],
    }


def _warnings(plans: Sequence[TargetPlan]) -> dict[str, None]:
    """What is not measured, each said once: targets share workloads."""
    return dict.fromkeys(warning for plan in plans for warning in plan.left_out)


def print_plan(plans: Sequence[TargetPlan], earlier: Sequence[ServerRecord] = ()) -> None:
    """One row per pairing and workload; nothing is loaded for it."""
    columns = ("pairing", "workload", "method", "T", "batch", "context", "K", "prompts", "repeats")
    table = Table(box=None)
    for column in columns:
        table.add_column(column, overflow="fold")
    num_cells = 0
    for plan in plans:
        cells = plan.cell_plans()
        num_cells += len(cells)
        rows: dict[tuple[str, ...], list[Length]] = {}
        for cell in cells:
            at, draft = cell.key.condition, cell.key.draft
            row = (
                cell.key.pairing,
                at.workload,
                draft.marked(draft.method),
                f"{at.temperature:g}",
                str(at.concurrency * at.num_samples),
                "" if at.context is None else f"{at.context:,}",
                str(cell.num_prompts),
                str(cell.num_repeats),
            )
            rows.setdefault(row, []).append(draft.length)
        for (*place, prompts, repeats), found in rows.items():
            table.add_row(*place, lengths(found), prompts, repeats)
    console = open_console()
    console.print(table)
    for warning in _warnings(plans):
        console.print(warning)
    for plan in plans:
        for one in outlooks(plan, earlier):
            console.print(_sessions_text(one))
    open_ended = any(plan.settings.effort.is_open_ended for plan in plans)
    limit = " at most; --budget or --precision may end it earlier" if open_ended else ""
    console.print(f"{num_cells} cells{limit}. Nothing was measured.")


def _sessions_text(one: Outlook) -> str:
    order = ", ".join(session.draft.label for session in one.sessions)
    basis = "as earlier sessions took" if one.is_measured else "a guess: nothing was measured yet"
    each = "a start of the server" if one.are_starts else "on the running server"
    more = ", or more where these are noisy," if one.is_open_ended else ""
    again = "; what wins is measured again, with K = 0 beside it" if one.has_second_pass else ""
    lines = [
        f"{one.target} on {one.engine}: {one.cycles} cycles{more} of {len(one.sessions)} sessions, "
        f"each {each}: {order}",
        f"about {one.seconds / 60:,.0f} minutes ({basis}){again}",
    ]
    if one.detectable is not None:
        lines.append(
            f"such a sweep can show a speed-up of about {1 + one.detectable:.2f}x or more, if "
            "sessions differ as much as on a busy CPU; --cycles N sets how many there are"
        )
    return "\n".join(lines)
