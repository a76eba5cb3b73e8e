"""K = auto against the best fixed K on the embedded pair, on this CPU.

    python -m benchmarks.auto [--prompts N] [--repeats N] [--out FILE]

One run of the product over four workloads at 1, 4 and 16 rows, with every K of the
controller's own set. Of each of the twelve settings the fixed K that was fastest in the first
pass is measured again, in turns with auto, and the ratio is that of the fresh repeats.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.run import name_of, provenance, run, write
from specbench.decide.comparisons import AdaptiveComparison, compare_adaptive, pooled
from specbench.decode.adaptive_k import default_ks
from specbench.metrics.aggregate import aggregate_run
from specbench.runs import StoredRun
from specbench.settings import (
    DraftSettings,
    EffortSettings,
    LoadSettings,
    MachineSettings,
    RunSettings,
    WorkloadSettings,
)

PAIRING = "demo/draft"
WORKLOADS = ("chat", "code", "creative", "mixed")
CONCURRENCY = (1, 4, 16)
MOST = 8


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _parse(arguments)
    stored = run(_settings(asked.prompts, asked.repeats, asked.concurrency), asked.runs)
    document = results(stored)
    write({**provenance(stored), **document}, asked.out)
    print("\n".join(table(document)))


def results(stored: StoredRun) -> dict[str, Any]:
    found = compare_adaptive(aggregate_run(stored), aggregate_run(stored, "confirm"))
    together = pooled(found)
    return {
        "comparisons": [_row(one) for one in found],
        "pooled": together.ratio if together else None,
        "num_pooled": together.num_settings if together else 0,
    }


def table(document: dict[str, Any]) -> list[str]:
    lines = ["auto over the best fixed K, decode"]
    for row in document["comparisons"]:
        ratio = row["decode"]
        ends = "" if ratio["low"] is None else f" [{ratio['low']:.3f}, {ratio['high']:.3f}]"
        effect = row["minimum_detectable_effect"]
        seen = "" if effect is None else f" detects {effect:.1%}"
        flaws = "" if row["is_confirmed"] else ", not measured again"
        flaws += "" if row["valid"] else ", invalid"
        where = f"{row['workload']}, {row['concurrency']} rows, best {row['best_fixed']}"
        lines.append(f"{ratio['estimate']:.3f}{ends}{seen}  {where}{flaws}")
    pooled_text = "-" if document["pooled"] is None else f"{document['pooled']:.3f}"
    of_all = f"{document['num_pooled']} of {len(document['comparisons'])} settings"
    lines.append(f"{pooled_text}  pooled over {of_all}, measured again and valid")
    return lines


def _row(one: AdaptiveComparison) -> dict[str, Any]:
    return {
        **asdict(one),
        "workload": one.adaptive.condition.workload,
        "concurrency": one.adaptive.condition.concurrency,
        "adaptive": name_of(one.adaptive),
        "best_fixed": name_of(one.best_fixed),
    }


def _settings(
    num_prompts: int | None, num_repeats: int | None, concurrency: tuple[int, ...]
) -> RunSettings:
    return RunSettings(
        command="sweep-k",
        workload=WorkloadSettings(pairings=(PAIRING,), workloads=WORKLOADS),
        draft=DraftSettings(num_speculative_tokens=default_ks(MOST), adaptive=True),
        effort=EffortSettings(num_prompts=num_prompts, num_repeats=num_repeats),
        load=LoadSettings(concurrency=concurrency),
        machine=MachineSettings(device="cpu", dtype="float32", threads=1),
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.auto", description=__doc__)
    parser.add_argument("--prompts", type=int, help="a pass; else the product's own number")
    parser.add_argument("--repeats", type=int, help="likewise")
    parser.add_argument("--concurrency", type=int, nargs="+", default=CONCURRENCY)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/auto.json"))
    parser.add_argument("--runs", type=Path, default=Path("reports"), help="keeps the run itself")
    asked = parser.parse_args(arguments)
    asked.concurrency = tuple(asked.concurrency)
    return asked


if __name__ == "__main__":
    main()
