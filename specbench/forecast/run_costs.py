"""What rounds cost in an engine that a stored run has measured, and what they came to there."""

from collections.abc import Iterator
from pathlib import Path

from specbench.errors import UsageError
from specbench.metrics.gathering import gather_run
from specbench.metrics.registry import number_of
from specbench.metrics.summary import summarise
from specbench.records import EngineCost
from specbench.runs import StoredRun, load_run
from specbench.settings import SERVED


def read_run(folder: Path) -> list[EngineCost]:
    """Costs from the valid cells of a run's first pass, in closed loop.

    StoreError where the folder holds no run, UsageError where it has no such cell, or those of
    several engines.
    """
    found = list(_costs(load_run(folder.name, folder.parent)))
    engines = sorted({cost.engine for cost in found})
    if not found:
        raise UsageError(
            f"--step-times {folder}: this run has no valid cell of a serving engine; give one of "
            "`sweep-k --engine vllm` or the like, or a table of costs (docs/costs.md)"
        )
    if len(engines) > 1:
        raise UsageError(
            f"--step-times {folder}: this run measured {' and '.join(engines)}; give a run of one "
            "engine"
        )
    return found


def _costs(stored: StoredRun) -> Iterator[EngineCost]:
    versions = {server.engine: server.version for server in stored.servers if server.version}
    for cell in summarise(gather_run(stored)):
        at, draft = cell.key.condition, cell.key.draft
        cost = number_of(cell.metrics, "round_s")
        is_served = at.engine in SERVED and at.request_rate is None
        if is_served and cell.valid and cost is not None:
            yield EngineCost(
                source=stored.run.run_id,
                engine=f"{at.engine} {versions.get(at.engine, '')}".strip(),
                num_speculative_tokens=draft.k,
                concurrency=at.concurrency,
                cost=cost,
                is_relative=False,
                mean_acceptance_length=number_of(cell.metrics, "mean_acceptance_length"),
                speedup=cell.speedup.estimate if cell.speedup else None,
                target=at.target,
                drafter=draft.drafter if draft.k else None,
                workload=at.workload,
                temperature=at.temperature,
            )
