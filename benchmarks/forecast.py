"""Forecast against measured on the embedded pair, on this CPU.

    python -m benchmarks.forecast [--pairings P..] [--temperatures T..] [--prompts N] [--out FILE]

Two runs of the product, one after the other: `sweep-k` at every K, and the same with
`--forecast`. What the second one forecast of every K is held against what the first one measured,
on the same prompts; its choice against the first one's fastest K, both as the first one measured
them; and its time against the first one's, as far as it is spent on rounds, traces and costs.
"""

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.run import cells_of, provenance, run, write
from specbench.bench.passes import block_seconds
from specbench.metrics.setting import is_baseline, setting_of
from specbench.pairing.forecast_check import CheckedForecast, check_forecasts
from specbench.records import CellKey, CellSummary, RunSettings
from specbench.report.document import build_document
from specbench.stats.summary import summarise
from specbench.store import StoredRun

PAIRINGS = ("demo/draft", "demo/ngram", "demo/medusa", "demo/eagle")
WORKLOADS = ("chat", "code", "creative", "qa", "edit")
MOST = 8


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _parse(arguments)
    settings = _settings(asked)
    sweep, sweep_s = _timed(settings, asked.runs)
    forecast, forecast_s = _timed(replace(settings, forecast=True), asked.runs)
    document = {
        "sweep": provenance(sweep),
        "forecast": provenance(forecast),
        **results(sweep, forecast),
        "sweep_wall_s": sweep_s,
        "forecast_wall_s": forecast_s,
    }
    write(document, asked.out)
    print("\n".join(table(document)))


def results(sweep: StoredRun, forecast: StoredRun) -> dict[str, Any]:
    """Every forecast beside the sweep's cells, and the time that both runs took."""
    cells = cells_of(sweep, "explore")
    summaries = summarise(cells)
    checked = check_forecasts(forecast.forecasts, forecast.traces, cells, summaries)
    spent = {"sweep_s": _blocks_s(sweep), "forecast_s": _blocks_s(forecast)}
    tracing_s = sum(f.trace_s + f.costs_s for f in forecast.forecasts)
    decided = {
        setting_of(d.leader)._replace(target=d.pairing): d.num_speculative_tokens
        for d in build_document(forecast).decisions
    }
    return {
        "forecasts": [
            row for one in checked if one.measured for row in [_row(one, summaries, decided)]
        ],
        "block_s": spent,
        "tracing_and_costs_s": tracing_s,
        # What reaching a choice took, and what measuring the few best brought it to.
        "share_to_choose": tracing_s / spent["sweep_s"],
        "share_of_time": (tracing_s + spent["forecast_s"]) / spent["sweep_s"],
    }


def table(document: dict[str, Any]) -> list[str]:
    lines = ["forecast / measured - 1, the K where it is worst; choice: tokens/s / the best K's"]
    for row in document["forecasts"]:
        length, speed = row["worst_length_error"], row["worst_speedup_error"]
        lines.append(
            f"{row['pairing']:<16} {row['workload']:<9} T={row['temperature']:g}  "
            f"AL {_share(length)}  speed-up {_share(speed)}  "
            f"choice K={row['choice']} of best K={row['fastest']}: {row['choice_ratio']:.3f}, "
            f"measured after it K={row['decided']}: {row['decided_ratio']:.3f}"
        )
    ratios = [row["choice_ratio"] for row in document["forecasts"]]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines.append(f"choices: worst {min(ratios):.3f}, geometric mean {mean:.3f}")
    lines.append(
        f"time: traces and costs {document['share_to_choose']:.1%} of the sweep's, with what was "
        f"measured after them {document['share_of_time']:.1%}"
    )
    return lines


def _row(
    one: CheckedForecast, summaries: Sequence[CellSummary], decided: dict[Any, int]
) -> dict[str, Any]:
    key = one.forecast.key
    speeds = dict(_speeds(key, summaries))
    fastest = max(speeds, key=speeds.__getitem__)
    chosen = decided.get(setting_of(key)._replace(target=key.pairing), 0)
    errors = one.measured.values()
    return {
        "pairing": key.pairing,
        "method": key.method,
        "workload": key.workload,
        "temperature": key.temperature,
        "is_exact": one.forecast.is_exact,
        "choice": one.forecast.best,
        "to_measure": one.forecast.to_measure,
        "decided": chosen,
        "fastest": fastest,
        "choice_ratio": speeds[one.forecast.best] / speeds[fastest],
        "decided_ratio": speeds[chosen] / speeds[fastest],
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
        own = (cell.key.pairing, cell.key.method) == (key.pairing, key.method)
        speed = cell.metrics.get("decode_tokens_per_s")
        is_of_question = setting_of(cell.key) == setting_of(key) and (own or is_baseline(cell.key))
        if is_of_question and isinstance(speed, float):
            yield cell.key.num_speculative_tokens, speed


def _worst(errors: Sequence[float | None]) -> float | None:
    return max((e for e in errors if e is not None), key=abs, default=None)


def _share(value: float | None) -> str:
    return "    -" if value is None else f"{value:+.1%}"


def _blocks_s(stored: StoredRun) -> float:
    return sum(sum(block_seconds(block).values()) for block in stored.blocks)


def _timed(settings: RunSettings, root: Path) -> tuple[StoredRun, float]:
    began_s = time.perf_counter()
    stored = run(settings, root)
    return stored, time.perf_counter() - began_s


def _settings(asked: argparse.Namespace) -> RunSettings:
    return RunSettings(
        command="sweep-k",
        pairings=asked.pairings,
        workloads=asked.workloads,
        num_speculative_tokens=tuple(range(asked.most + 1)),
        is_default_range=True,  # what a head cannot draft is left out
        temperatures=asked.temperatures,
        num_prompts=asked.prompts,
        num_repeats=asked.repeats,
        dtype="float32",
        threads=1,
        device="cpu",
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.forecast", description=__doc__)
    parser.add_argument("--pairings", nargs="+", default=PAIRINGS)
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS)
    parser.add_argument("--temperatures", type=float, nargs="+", default=(0.0,))
    parser.add_argument("--most", type=int, default=MOST, help="the deepest K")
    parser.add_argument("--prompts", type=int, help="a workload; else the product's own number")
    parser.add_argument("--repeats", type=int, help="likewise")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/forecast.json"))
    parser.add_argument("--runs", type=Path, default=Path("reports"), help="keeps the runs")
    asked = parser.parse_args(arguments)
    for name in ("pairings", "workloads", "temperatures"):
        setattr(asked, name, tuple(getattr(asked, name)))
    return asked


if __name__ == "__main__":
    main()
