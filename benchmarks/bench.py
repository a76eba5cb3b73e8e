"""The built-in decoder beside transformers on the embedded pair, on this CPU.

    python -m benchmarks.bench [--prompts 30] [-k 0 4 8 20] [--samples 40] [--out FILE]

One interleaved run of the product (engines builtin and transformers, code, float32, one
thread), then fused and stock forwards in turns. Writes one JSON and prints its figures.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.forwards import compare_forwards
from benchmarks.run import name_of, provenance, run, write
from specbench.bench.limits import middle_context
from specbench.decide.comparisons import SideBySide, side_by_side
from specbench.inputs.config import load_pairings
from specbench.metrics.aggregate import aggregate_run
from specbench.metrics.cell import CellData
from specbench.metrics.summary import summarize
from specbench.records import ASSISTED_DEFAULT, CellSummary
from specbench.runs import StoredRun
from specbench.settings import (
    DraftSettings,
    EffortSettings,
    LoadSettings,
    MachineSettings,
    RunSettings,
    WorkloadSettings,
)
from specbench.shipped import shipped
from specbench.words.answers import text

PAIRING = "demo/draft"
DTYPE = "float32"
KS = (0, 4, 8, 20)  # 20 is what assisted_default may draft
SIZES = (1, 5, 9)  # tokens of a forward: a plain step, and checking 4 and 8 drafts
METRICS = (
    "decode_tokens_per_s",
    "overhead_ratio",
    "round_s_p50",
    "num_rounds",
    "acceptance_rate",
    "mean_acceptance_length",
)


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _parse(arguments)
    settings = _settings(asked.prompts, asked.repeats, asked.k)
    stored = run(settings, asked.runs)
    document = {**_results(stored), "forwards": _forwards(stored, asked.samples)}
    write({**provenance(stored), **document}, asked.out)
    print("\n".join(table(document)))


def table(document: dict[str, Any]) -> list[str]:
    """The document's figures, a line each."""
    lines = [f"{'decode':>22} {'CPU time':>22} {'texts':>6}  built-in decoder over transformers"]
    for pair in document["side_by_side"]:
        decode, cpu = _words(pair["decode"]), _words(pair["cpu"])
        better = ", the better of the two" if pair["is_better_assisted"] else ""
        equal = f"{pair['equal_text']:.0%}"
        name = f"{pair['cell']} over {pair['peer']}{better}"
        lines.append(f"{decode:>22} {cpu:>22} {equal:>6}  {name}")
    for cell in document["cells"]:
        if (ratio := cell.get("overhead_ratio")) is not None:
            count = f"{cell['num_rounds']:.0f} rounds, {cell['num_forward_samples']} forwards"
            lines.append(
                f"{ratio:.3f}x a round's model forwards: {cell['name']}, medians of {count}"
            )
    for one in document["forwards"]:
        wall, cpu = _words(one["wall"]), _words(one["cpu"])
        lines.append(f"{wall:>22} {cpu:>22}         fused over stock, T = {one['num_tokens']}")
    return lines


def _results(stored: StoredRun) -> dict[str, Any]:
    cells = aggregate_run(stored)
    pairs = side_by_side(cells)
    return {
        "side_by_side": [_pair(pair, pairs) for pair in pairs],
        "cells": [
            _cell(cell, summary) for cell, summary in zip(cells, summarize(cells), strict=True)
        ],
    }


def _pair(pair: SideBySide, pairs: Sequence[SideBySide]) -> dict[str, Any]:
    names = {"cell": name_of(pair.cell), "peer": name_of(pair.peer)}
    return {**asdict(pair), **names, "is_better_assisted": _is_better(pair, pairs)}


def _is_better(pair: SideBySide, pairs: Sequence[SideBySide]) -> bool:
    """Whether it is the faster of assisted generation at our K and at its own defaults."""
    rivals = [p for p in pairs if p.cell == pair.cell and p.peer.draft.k]
    methods = {rival.peer.draft.method for rival in rivals}
    if len(methods) < 2 or ASSISTED_DEFAULT not in methods:
        return False
    return pair is min(rivals, key=lambda rival: rival.decode.estimate)


def _cell(cell: CellData, summary: CellSummary) -> dict[str, Any]:
    """A cell's figures; what its engine cannot tell is absent."""
    known = {name: summary.metrics[name] for name in METRICS if name in summary.metrics}
    return {
        "name": name_of(cell.key),
        "valid": summary.valid,
        "invalid_reasons": [*map(text, summary.invalid_reasons)],
        "warnings": [*map(text, summary.warnings)],
        "num_prompts": summary.num_prompts,
        "num_requests": summary.num_requests,
        "num_forward_samples": _fewest_samples(cell),
        **known,
    }


def _fewest_samples(cell: CellData) -> int:
    """How often the model forward of a round was measured that was measured least often."""
    counts: dict[tuple[str, int], int] = {}
    for cost in cell.forwards:
        shape = (cost.role, cost.num_tokens)
        counts[shape] = counts.get(shape, 0) + cost.num_samples
    return min(counts.values(), default=0)


def _forwards(stored: StoredRun, num_samples: int) -> list[dict[str, Any]]:
    (pairing,) = load_pairings(shipped("pairings.yaml")).select([PAIRING])
    context = middle_context(stored.blocks[0])
    ratios = compare_forwards(
        pairing.target, DTYPE, sizes=SIZES, context=context, num_samples=num_samples
    )
    return [asdict(ratio) for ratio in ratios]


def _settings(num_prompts: int, num_repeats: int, ks: Sequence[int]) -> RunSettings:
    return RunSettings(
        command="run",
        workload=WorkloadSettings(pairings=(PAIRING,), workloads=("code",)),
        draft=DraftSettings(num_speculative_tokens=tuple(ks)),
        effort=EffortSettings(num_prompts=num_prompts, num_repeats=num_repeats),
        load=LoadSettings(engines=("builtin", "transformers")),
        machine=MachineSettings(device="cpu", dtype=DTYPE, threads=1),
    )


def _words(interval: dict[str, float | None] | None) -> str:
    """An estimate with its interval, such as 2x [1.9, 2.1]."""
    if interval is None:
        return "-"
    text = f"{interval['estimate']:.2f}x"
    if interval["low"] is None:
        return text
    return f"{text} [{interval['low']:.2f}, {interval['high']:.2f}]"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.bench", description=__doc__)
    parser.add_argument("--prompts", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("-k", type=int, nargs="+", default=KS, help="0 among them")
    parser.add_argument("--samples", type=int, default=40, help="of each forward")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/bench.json"))
    parser.add_argument("--runs", type=Path, default=Path("reports"), help="keeps the run itself")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
