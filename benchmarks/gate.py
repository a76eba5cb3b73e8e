"""How far the gate can be trusted on this machine, by docs/ci.md's own recipe.

    python -m benchmarks.gate [--runs 20] [--pairs 2000] [--faults] [--noise FILE] [--out FILE]

Identical runs, each a process of its own; then every pair of them judged, the recipe over
random splits of them, and simulated pairs with their noise. With --faults also a worse draft, a
slowed target and the sound ones as an improvement on them. Writes one JSON and prints it in short.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gate_noise import CellNoise, noise_of, write_noise
from benchmarks.gate_rates import (
    Rates,
    every_pair,
    fewer_kept,
    losses,
    random_splits,
    rates,
    simulated,
    slower,
    tolerances,
    verdict_counts,
)
from benchmarks.gate_runs import (
    BASELINE_RUNS,
    CANDIDATE_RUNS,
    RECIPE,
    TOLERANCES,
    record,
    record_fault,
)
from benchmarks.run import provenance, write
from specbench.cli.baseline import read_run
from specbench.gate.baseline import Snapshot, pool
from specbench.gate.check import check
from specbench.gate.tolerances import default_tolerances
from specbench.metrics.aggregate import aggregate_run
from specbench.metrics.cell import CellData
from specbench.runs import StoredRun, load_run

SAMPLED = ("-w", "chat,code", "--num-prompts", "12", "--temperature", "1", "--repeats", "12")
SPLIT = (BASELINE_RUNS, CANDIDATE_RUNS)


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _parse(arguments)
    ids = record(asked.folder / "same", asked.runs)
    stored = [load_run(name, asked.folder / "same") for name in ids]
    runs = [read_run(name, asked.folder / "same") for name in ids]
    noise = noise_of([aggregate_run(run) for run in stored])
    sampled = _sampled_noise(asked.folder / "sampled")
    if asked.noise:
        machine = stored[0].run.environment
        about = {"recipe": " ".join(RECIPE), "sampled": " ".join(SAMPLED), "cpu": machine.cpu}
        write_noise((*noise, *sampled), asked.noise, about)
    document = {
        "recipe": {"arguments": RECIPE, "tolerances": TOLERANCES, "runs": SPLIT},
        "seconds_a_run": _seconds_a_run(stored),
        "deviation_between_runs": deviations(runs),
        "real": real(runs),
        "simulated": dict(simulations(noise, sampled, asked.pairs)),
        "faults": dict(faults(asked.folder, runs)) if asked.faults else None,
    }
    write({**provenance(stored[0]), **document}, asked.out)
    print(json.dumps(document, indent=1))


def real(runs: Sequence[Snapshot]) -> dict[str, Any]:
    """Every pair of single runs by the default tolerances, and the recipe over random splits."""
    pairs = list(every_pair(runs))
    splits = list(random_splits(runs, tolerances(TOLERANCES), *SPLIT))
    return {
        "every_pair": asdict(rates(pairs, num_independent=len(runs) // 2)),
        "every_pair_verdicts": verdict_counts(j for gate in pairs for j in gate.judgments),
        "recipe": asdict(rates(splits, num_independent=max(1, len(runs) // sum(SPLIT)))),
        "decode_speedup": losses(pairs, "decode_speedup"),
        "decode_tokens_per_s": losses(pairs, "decode_tokens_per_s"),
    }


def simulations(
    noise: Sequence[CellNoise], sampled: Sequence[CellNoise], num_pairs: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Identical pairs, and pairs with a loss of twice the tolerance, for every tier."""
    single = {t.metric: t.share for t in default_tolerances("cpu")}
    single.pop("peak_allocated_bytes")  # its noise is not recorded
    speed, speedup = ({m: single[m]} for m in ("decode_tokens_per_s", "decode_speedup"))
    recipe = {"decode_speedup": TOLERANCES["decode_speedup"]}
    sampled_length = {"mean_acceptance_length": 0.15}
    for name, cells, asked, loss, runs in (
        ("single_runs_identical", noise, single, None, (1, 1)),
        ("single_runs_speedup_lost", noise, speedup, slower, (1, 1)),
        ("single_runs_speed_lost", noise, speed, slower, (1, 1)),
        ("recipe_identical", noise, TOLERANCES, None, SPLIT),
        ("recipe_speedup_lost", noise, recipe, slower, SPLIT),
        ("counts_lost", noise, {"mean_acceptance_length": 0.02}, fewer_kept, (1, 1)),
        ("sampled_counts_identical", sampled, sampled_length, None, (1, 1)),
        ("sampled_counts_lost", sampled, sampled_length, fewer_kept, (1, 1)),
    ):
        change = loss(2 * next(iter(asked.values()))) if loss else None
        gates = simulated(cells, tolerances(asked), change, num_pairs=num_pairs, runs=runs)
        found: Rates = rates(gates)
        yield name, {"tolerances": asked, **asdict(found)}


def deviations(runs: Sequence[Snapshot]) -> dict[str, dict[str, float]]:
    """What `specbench baseline` of all these runs stores, of cells that draft."""
    names = ("decode_speedup", "cpu_speedup", "decode_tokens_per_s", "mean_acceptance_length")
    return {
        cell.key.id: {
            name: cell.figures[name].deviation or 0.0 for name in names if name in cell.figures
        }
        for cell in pool(runs).cells
        if cell.key.draft.k
    }


def faults(folder: Path, runs: Sequence[Snapshot]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What one run of each fault is judged to be, against the sound run nearest in time."""
    sound = runs[-1]
    poor = record_fault(folder / "poor", draft="poor")
    slow = record_fault(folder / "slow", slow_target=True)
    for name, baseline, candidate in (
        ("worse_draft", sound, poor),
        ("slower_target", sound, slow),
        ("improvement", slow, sound),
    ):
        gate = check(baseline, candidate)
        yield (
            name,
            {
                "verdict": gate.verdict.value,
                "verdicts": verdict_counts(gate.judgments),
                "regressed": sorted({m for found in gate.attributions for m in found.metrics}),
                "causes": sorted({c.value for a in gate.attributions for c in a.causes}),
                "slower": sorted({s.name for a in gate.attributions for s in a.slower}),
            },
        )


def _seconds_a_run(stored: Sequence[StoredRun]) -> float | None:
    """From the start of one run to that of the next: they follow each other."""
    begun = [datetime.fromisoformat(one.run.environment.created_at) for one in stored]
    between = [(after - before).total_seconds() for before, after in pairwise(sorted(begun))]
    return median(between) if between else None


def _sampled_noise(folder: Path) -> tuple[CellNoise, ...]:
    """Temperature 1: every repeat of one run has seeds of its own, and stands for a run."""
    (run_id,) = record(folder, 1, SAMPLED)
    stored = load_run(run_id, folder)
    cells = aggregate_run(stored)
    repeats = sorted({request.repeat for cell in cells for request in cell.requests})
    return noise_of([[_of_repeat(cell, repeat) for cell in cells] for repeat in repeats])


def _of_repeat(cell: CellData, repeat: int) -> CellData:
    return replace(
        cell,
        requests=tuple(r for r in cell.requests if r.repeat == repeat),
        baseline=tuple(r for r in cell.baseline if r.repeat == repeat),
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.gate", description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=2_000, help="simulated ones, of each kind")
    parser.add_argument("--faults", action="store_true", help="three more runs")
    parser.add_argument("--noise", type=Path, help="keep the noise of these runs for the tests")
    parser.add_argument("--folder", type=Path, default=Path("reports/gate"), help="keeps the runs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/gate.json"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
