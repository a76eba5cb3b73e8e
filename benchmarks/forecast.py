"""Forecast against measured on the embedded pair, on this CPU.

    python -m benchmarks.forecast [--wide] [--pairings P..] [--prompts N] [--repeats N] [--out FILE]
    python -m benchmarks.forecast --stored RUN --runs FOLDER    # with the forecast as it is now

One exhaustive run of the product: traces, then every K measured, and between the measurements the
timing repetitions that give round costs, because the pace of a machine changes by more than the
forecast's error from one minute to the next. What was forecast of every K is held against what was
measured, on the same prompts; the forecast's choice against the fastest K; and the time of traces,
costs and the few K that a forecast has measured against the time of all of them.
"""

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.run import provenance, run, write
from benchmarks.widened import write_wide_pair
from specbench.bench.budget import block_seconds
from specbench.forecast.cost_curve import measured_here
from specbench.forecast.forecast import forecast, replayed
from specbench.forecast.forecast_check import CheckedForecast, check_forecasts, is_left_out
from specbench.metrics.aggregate import aggregate_run
from specbench.metrics.summary import summarize
from specbench.probes.environment import describe_environment
from specbench.probes.gpu import open_probe
from specbench.records import NO_DRAFTER, CellKey, CellSummary
from specbench.runs import StoredRun, load_run
from specbench.settings import (
    DraftSettings,
    EffortSettings,
    ForecastSettings,
    MachineSettings,
    RunSettings,
    SamplingSettings,
    WorkloadSettings,
)
from specbench.settings.groups import ENOUGH_PROMPTS

PAIRINGS = ("demo/draft", "demo/ngram", "demo/medusa", "demo/eagle")
WIDE_BYTES = 64_000_000  # twice the cache of the processor that this was written on
WORKLOADS = ("chat", "code", "creative", "qa", "edit")
BOUNDS = (0.05, 0.07)  # what is hoped for, and the aim
MOST = 8
REPEATS = 3  # one alone is good to 5% and more on a machine that others use, too


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _parse(arguments)
    if asked.stored is not None:
        stored = forecast_again(load_run(asked.stored, asked.runs))
    else:
        with TemporaryDirectory() as folder:
            file = write_wide_pair(Path(folder), WIDE_BYTES) if asked.wide else None
            stored = run(_settings(asked), asked.runs, file)
    by = describe_environment("cpu", None, sys.argv, open_probe("cpu")).git_commit
    document = {"run": provenance(stored), "forecast_by": by, **results(stored)}
    write(document, asked.out)
    print("\n".join(table(document)))


def forecast_again(stored: StoredRun) -> StoredRun:
    """The run with the forecasts that this code makes of its traces and round costs."""
    drafters = {plan.key.id: plan.key.draft.drafter for plan in stored.run.cells}
    made = []
    for old in stored.forecasts:
        ground = (old.key.draft.drafter, old.key.condition.workload, old.key.condition.temperature)
        traces = [t for t in stored.traces if (t.drafter, t.workload, t.temperature) == ground]
        costs = [
            cost
            for cost in stored.round_costs
            if {drafters[i] for i in cost.cell_ids} & {old.key.draft.drafter, NO_DRAFTER}
        ]
        rounds = {
            p.num_speculative_tokens: replayed(traces, p.num_speculative_tokens) for p in old.points
        }
        curve = measured_here(costs, {k: r.of_texts for k, r in rounds.items() if r is not None})
        assert curve is not None, "the run has costs of K = 0"
        new = forecast(old.key, traces, curve, rounds)
        made.append(replace(old, points=new.points, best=new.best, to_measure=new.to_measure))
    return replace(stored, forecasts=tuple(made))


def results(stored: StoredRun) -> dict[str, Any]:
    """Every forecast beside what was measured, and the time of both ways to a choice."""
    cells = aggregate_run(stored)
    summaries = summarize(cells)
    checked = check_forecasts(stored.forecasts, stored.traces, cells, summaries)
    told_s = sum(f.trace_s + f.costs_s for f in stored.forecasts)
    seconds = list(_cell_seconds(stored))
    sweep_s = sum(spent_s for spent_s, _ in seconds)
    few_s = sum(spent_s for spent_s, is_saved in seconds if not is_saved)
    errors = [p.speedup_error for one in checked for p in one.measured.values()]
    known = [abs(error) for error in errors if error is not None]
    return {
        "forecasts": [_row(one, summaries) for one in checked if one.measured],
        "num_speedups": len(known),
        "num_within": {f"{bound:g}": sum(error <= bound for error in known) for bound in BOUNDS},
        "sweep_s": sweep_s,
        "tracing_and_costs_s": told_s,
        "few_s": few_s,
        # What reaching a choice took, and what measuring the few best brought it to.
        "share_to_choose": told_s / sweep_s,
        "share_of_time": (told_s + few_s) / sweep_s,
    }


def _cell_seconds(stored: StoredRun) -> Iterator[tuple[float, bool]]:
    """Seconds of every cell in every block, and whether a run with a forecast saves them: a K not
    worth measuring, and prompts beyond those that are measured after a forecast."""
    keys = {plan.key.id: plan.key for plan in stored.run.cells}
    few = stored.run.settings.effort.num_prompts or ENOUGH_PROMPTS
    begun: dict[str, dict[str, None]] = defaultdict(dict)  # prompts of a workload, in order
    for block in stored.blocks:
        begun[block.workload].setdefault(block.prompt_id)
        is_beyond = list(begun[block.workload]).index(block.prompt_id) >= few
        for cell_id, spent_s in block_seconds(block).items():
            is_left = block.purpose == "explore" and is_left_out(keys[cell_id], stored.forecasts)
            yield spent_s, is_beyond or is_left


def table(document: dict[str, Any]) -> list[str]:
    lines = ["forecast / measured - 1, the K where it is worst; choice: tokens/s / the best K's"]
    for row in document["forecasts"]:
        length, speed = row["worst_length_error"], row["worst_speedup_error"]
        lines.append(
            f"{row['pairing']:<16} {row['workload']:<9} T={row['temperature']:g}  "
            f"AL {_share(length)}  speedup {_share(speed)}  "
            f"choice K={row['choice']} of best K={row['fastest']}: {row['choice_ratio']:.3f}, "
            f"measured after it K={row['decided']}: {row['decided_ratio']:.3f}"
        )
    ratios = [row["choice_ratio"] for row in document["forecasts"]]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines.append(f"choices: worst {min(ratios):.3f}, geometric mean {mean:.3f}")
    within = (f"{n} within {float(bound):.0%}" for bound, n in document["num_within"].items())
    lines.append(f"speedups: of {document['num_speedups']}, {', '.join(within)}")
    lines.append(
        f"time: traces and costs {document['share_to_choose']:.1%} of the sweep's, with what was "
        f"measured after them {document['share_of_time']:.1%}"
    )
    return lines


def _row(one: CheckedForecast, summaries: Sequence[CellSummary]) -> dict[str, Any]:
    key = one.forecast.key
    speeds = dict(_speeds(key, summaries))
    fastest = max(speeds, key=speeds.__getitem__)
    decided = max((0, *one.forecast.to_measure), key=speeds.__getitem__)
    errors = one.measured.values()
    return {
        "pairing": key.pairing,
        "method": key.draft.method,
        "workload": key.condition.workload,
        "temperature": key.condition.temperature,
        "is_exact": one.forecast.is_exact,
        "choice": one.forecast.best,
        "to_measure": one.forecast.to_measure,
        "decided": decided,  # the fastest of those that are measured after the forecast
        "fastest": fastest,
        "choice_ratio": speeds[one.forecast.best] / speeds[fastest],
        "decided_ratio": speeds[decided] / speeds[fastest],
        "worst_length_error": _worst([error.length_error for error in errors]),
        "worst_speedup_error": _worst([error.speedup_error for error in errors]),
        "points": [
            {**asdict(point), "measured": asdict(one.measured[point.num_speculative_tokens])}
            for point in one.forecast.points
            if point.num_speculative_tokens in one.measured
        ],
    }


def _speeds(key: CellKey, summaries: Sequence[CellSummary]) -> Iterator[tuple[int, float]]:
    """Tokens a second by K as the sweep measured them, K = 0 among them."""
    for cell in summaries:
        own = (cell.key.pairing, cell.key.draft.method) == (key.pairing, key.draft.method)
        speed = cell.metrics.get("decode_tokens_per_s")
        is_of_question = cell.key.condition == key.condition and (own or cell.key.is_baseline)
        if is_of_question and isinstance(speed, float):
            yield cell.key.draft.k, speed


def _worst(errors: Sequence[float | None]) -> float | None:
    return max((e for e in errors if e is not None), key=abs, default=None)


def _share(value: float | None) -> str:
    return "    -" if value is None else f"{value:+.1%}"


def _settings(asked: argparse.Namespace) -> RunSettings:
    return RunSettings(
        command="sweep-k",
        workload=WorkloadSettings(pairings=asked.pairings, workloads=asked.workloads),
        draft=DraftSettings(
            num_speculative_tokens=tuple(range(asked.most + 1)),
            is_default_range=True,  # what a head cannot draft is left out
        ),
        sampling=SamplingSettings(temperatures=asked.temperatures),
        effort=EffortSettings(num_prompts=asked.prompts, num_repeats=asked.repeats),
        forecasting=ForecastSettings(forecast=True, exhaustive=True),
        machine=MachineSettings(device="cpu", dtype="float32", threads=1),
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.forecast", description=__doc__)
    parser.add_argument("--wide", action="store_true", help="the target beyond any cache")
    parser.add_argument("--pairings", nargs="+")
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS)
    parser.add_argument("--temperatures", type=float, nargs="+", default=(0.0,))
    parser.add_argument("--most", type=int, default=MOST, help="the deepest K")
    parser.add_argument("--prompts", type=int, help="a workload; else the product's own number")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of the sweep")
    parser.add_argument("--stored", help="a run of --runs: forecast again, nothing is measured")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("reports"), help="keeps the runs")
    asked = parser.parse_args(arguments)
    if asked.pairings is None:
        wide = (f"wide/{name.partition('/')[2]}" for name in PAIRINGS)
        asked.pairings = wide if asked.wide else PAIRINGS
    if asked.out is None:
        asked.out = Path("benchmarks", "forecast_wide.json" if asked.wide else "forecast.json")
    for name in ("pairings", "workloads", "temperatures"):
        setattr(asked, name, tuple(getattr(asked, name)))
    return asked


if __name__ == "__main__":
    main()
