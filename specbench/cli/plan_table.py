"""The plan of a run, printed by --dry-run."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from specbench.bench.plan import TargetPlan
from specbench.cli.console import open_console
from specbench.metrics.setting import marked


def plan_document(plans: Sequence[TargetPlan]) -> dict[str, Any]:
    """The cells that would be measured, and those that would not, for machines."""
    return {
        "cells": [
            {
                "pairing": cell.key.pairing,
                "workload": cell.key.workload,
                "method": cell.key.method,
                "num_speculative_tokens": cell.key.num_speculative_tokens,
                "temperature": cell.key.temperature,
                "dtype": cell.key.dtype,
                "engine": cell.key.engine,
                "concurrency": cell.key.concurrency,
                "context": cell.key.context,
                "num_samples": cell.key.num_samples,
                "lossy": cell.key.lossy,
                "adaptive": cell.key.adaptive,
                "num_prompts": cell.num_prompts,
                "num_repeats": cell.num_repeats,
            }
            for plan in plans
            for cell in plan.cell_plans()
        ],
        "warnings": [warning for plan in plans for warning in plan.left_out],
    }


def print_plan(plans: Sequence[TargetPlan]) -> None:
    """One row a pairing and workload; nothing is loaded for it."""
    columns = ("pairing", "workload", "method", "T", "rows", "context", "K", "prompts", "repeats")
    table = Table(*columns, box=None)
    num_cells = 0
    for plan in plans:
        cells = plan.cell_plans()
        num_cells += len(cells)
        rows: dict[tuple[str, ...], list[str]] = {}
        for cell in cells:
            key = cell.key
            context = "" if key.context is None else f"{key.context:,}"
            rows_used = key.concurrency * key.num_samples
            setting = (f"{key.temperature:g}", str(rows_used), context)
            row = (key.pairing, key.workload, marked(key.method, key), *setting)
            k = "auto" if key.adaptive else str(key.num_speculative_tokens)
            rows.setdefault((*row, str(cell.num_prompts), str(cell.num_repeats)), []).append(k)
        for (*place, prompts, repeats), ks in rows.items():
            table.add_row(*place, _ks(ks), prompts, repeats)
    console = open_console()
    console.print(table)
    for warning in (warning for plan in plans for warning in plan.left_out):
        console.print(warning)
    open_ended = any(plan.is_open_ended for plan in plans)
    limit = " at most; --budget or --precision may end it earlier" if open_ended else ""
    console.print(f"{num_cells} cells{limit}. Nothing was measured.")


def _ks(ks: Sequence[str]) -> str:
    numbers = [int(k) for k in ks if k != "auto"]
    others = [k for k in ks if k == "auto"]
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return ", ".join((f"{numbers[0]}..{numbers[-1]}", *others))
    return ", ".join(ks)
