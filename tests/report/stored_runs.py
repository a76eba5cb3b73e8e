"""A small stored run, generated from a few probabilities and costs: same call, same numbers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from specbench.records import (
    BlockPurpose,
    BlockRecord,
    CellKey,
    CellPlan,
    FailureRecord,
    RunRecord,
)
from specbench.runs import SCHEMA_VERSION, StoredRun, create_run
from tests.cell_keys import BASE_KEY, with_axes
from tests.made_records import made_block
from tests.report.synthetic_records import environment, forwards, memory, model, request
from tests.settings.flat_settings import settings_of


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Contents of the synthetic run."""

    drafters: tuple[str, ...] = ("draft", "poor")
    workloads: tuple[str, ...] = ("chat", "code", "creative")
    ks: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7, 8)
    temperatures: tuple[float, ...] = (0.0,)
    num_prompts: int = 8
    target: str = "demo"
    device: Literal["cpu", "gpu"] = "cpu"
    is_complete: bool = True  # False: interrupted before any winner was measured again
    throttled_k: int | None = None  # the cells of this K are invalid (GPU only)

    @property
    def is_gpu(self) -> bool:
        return self.device == "gpu"


SMALL = Wish(ks=(0, 1, 2, 4), workloads=("code", "creative"), num_prompts=6)
BROKEN = FailureRecord(
    pairing="demo/broken", workload="", stage="load", reason="no such folder: models/broken"
)


def stored_run(wish: Wish) -> StoredRun:
    """A run as `load_run` returns it; every K of `draft` has a confirmation run."""
    blocks = list(_blocks(wish, "explore", wish.ks, first_repeat=0))
    if wish.is_complete and "draft" in wish.drafters:
        good = replace(wish, drafters=("draft",))
        blocks += _blocks(good, "confirm", wish.ks, first_repeat=9)
    return StoredRun(
        folder=Path("reports/20261121-010203-a1b2"),
        run=RunRecord(
            schema_version=1,
            run_id="20261121-010203-a1b2",
            environment=environment(is_gpu=wish.is_gpu),
            settings=settings_of(
                command="sweep-k",
                pairings=tuple(f"{wish.target}/{name}" for name in wish.drafters),
                workloads=wish.workloads,
                num_speculative_tokens=wish.ks,
                temperatures=wish.temperatures,
                seed=7,
            ),
            workload_sha256={name: "ef" * 32 for name in wish.workloads},
            workload_prompts={wish.target: dict.fromkeys(wish.workloads, 40)},
            cells=tuple(
                CellPlan(key=key, num_prompts=wish.num_prompts, num_repeats=1)
                for workload in wish.workloads
                for temperature in wish.temperatures
                for key in keys(wish, workload, temperature)
            ),
        ),
        is_complete=wish.is_complete,
        blocks=tuple(blocks),
        memory=tuple(memory(wish.target, wish.drafters, is_gpu=wish.is_gpu)),
        forwards=tuple(
            forward
            for workload in wish.workloads
            for key in keys(wish, workload, temperature=0.0)
            for forward in forwards(key)
        ),
        models=(model(wish.target), *(model(name) for name in wish.drafters)),
    )


def keep(root: Path, run_id: str, stored: StoredRun) -> Path:
    """Write a synthetic run to disk; its folder."""
    run = replace(stored.run, run_id=run_id, schema_version=SCHEMA_VERSION)
    with create_run(root, run) as writer:
        of_models = (*stored.models, *stored.engines, *stored.memory, *stored.forwards)
        for record in (*of_models, *stored.blocks, *stored.servers, *stored.failures):
            writer.append(record)
        if stored.is_complete:
            writer.finish()
    return root / run_id


def with_failure(stored: StoredRun, failure: FailureRecord) -> StoredRun:
    """The same run with a cell that could not be measured."""
    return replace(stored, failures=(*stored.failures, failure))


def renamed(stored: StoredRun, old: str, new: str) -> StoredRun:
    """The run with a name replaced in all cells, blocks and plans."""

    def rename(key: CellKey) -> CellKey:
        return with_axes(
            key,
            **{
                name: key.flat[name].replace(old, new) for name in ("target", "drafter", "workload")
            },
        )

    ids = {plan.key.id: rename(plan.key).id for plan in stored.run.cells}
    return replace(
        stored,
        run=replace(
            stored.run, cells=tuple(replace(p, key=rename(p.key)) for p in stored.run.cells)
        ),
        blocks=tuple(
            replace(
                block,
                requests=tuple(replace(r, cell_id=ids[r.cell_id]) for r in block.requests),
            )
            for block in stored.blocks
        ),
        memory=tuple(
            replace(m, target=m.target.replace(old, new), drafter=m.drafter.replace(old, new))
            for m in stored.memory
        ),
    )


def keys(wish: Wish, workload: str, temperature: float) -> Iterator[CellKey]:
    """K = 0 once, then every K of every drafter."""
    base = with_axes(
        BASE_KEY,
        pairing=wish.target,
        target=wish.target,
        workload=workload,
        temperature=temperature,
    )
    yield base
    for drafter in wish.drafters:
        for k in wish.ks:
            if k > 0:
                yield with_axes(
                    base,
                    pairing=f"{wish.target}/{drafter}",
                    drafter=drafter,
                    method="draft_model",
                    num_speculative_tokens=k,
                )


def _blocks(
    wish: Wish, purpose: BlockPurpose, ks: tuple[int, ...], first_repeat: int
) -> Iterator[BlockRecord]:
    for temperature in wish.temperatures:
        for repeat in range(first_repeat, first_repeat + (3 if temperature else 1)):
            for i in range(wish.num_prompts):
                for workload in wish.workloads:
                    prompt = f"{workload}-{i}"
                    requests = tuple(
                        request(
                            key,
                            prompt,
                            repeat,
                            is_gpu=wish.is_gpu,
                            is_throttled=key.draft.k == wish.throttled_k,
                        )
                        for key in keys(replace(wish, ks=ks), workload, temperature)
                    )
                    yield made_block(
                        prompt,
                        *requests,
                        purpose=purpose,
                        repeat=repeat,
                        block_id=f"{prompt}|{temperature:g}|{wish.drafters}|{purpose}|{repeat}",
                        workload=workload,
                    )
