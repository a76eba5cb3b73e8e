"""Runs of the bench on the fake engine: a real plan, a real store, no model."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from specbench.bench.benchmark import plan_warnings
from specbench.bench.budget import Deadline
from specbench.bench.limits import MemoryMeter
from specbench.bench.plan import TargetPlan
from specbench.bench.planning import plan_run
from specbench.bench.target import TargetRun
from specbench.bench.traces import Trace
from specbench.inputs.config import load_pairings
from specbench.inputs.pairing import Pairing
from specbench.probes.gpu import Probe
from specbench.records import (
    BlockRecord,
    EngineCost,
    Environment,
    LossyRule,
    RunRecord,
    TraceRecord,
)
from specbench.records.forecasts import Drafting
from specbench.runs import SCHEMA_VERSION, StoredRun, create_run, load_run, resume_run
from specbench.settings import RunSettings
from specbench.tracing.trace import TargetText
from tests.bench.fakes import FakeEngine, FakeProtocolEngine, RecordingWatch
from tests.forecast.traces import trace
from tests.settings.flat_settings import changed, settings_of

PAIRINGS = """\
targets:
  big:
    model: owner/big
    drafters:
      good: {method: ngram, num_speculative_tokens: 3}
      bad: {method: ngram}
"""
RUN_ID = "a-run"
NO_PROBE = Probe("no GPU")
TWO = ("Hello", "Bye")
SIX = [f"prompt {i}" for i in range(6)]
TWENTY = [f"prompt {i}" for i in range(20)]
TWELVE = [f"prompt {i}" for i in range(12)]
SETTINGS = settings_of(
    command="sweep-k",
    pairings=("big/good", "big/bad"),
    workloads=(),
    num_speculative_tokens=(0, 2, 4),
)
HALF = changed(SETTINGS, num_prompts=6)  # of TWELVE: winners are confirmed on the others
RULE = LossyRule(name="typical", parameters={"threshold": 0.09, "alpha": 0.3})
ENVIRONMENT = Environment(
    created_at="2026-11-21T01:02:03+00:00",
    command=("specbench", "sweep-k"),
    specbench_version="0.1.0",
    git_commit=None,
    python="3.11.7",
    packages={},
    platform="Linux",
    cpu="a CPU",
    num_cpu_cores=2,
    threads=1,
    device="cpu",
)


def write_prompts(path: Path, prompts: Sequence[str | list[str]]) -> str:
    """A workload file of prompts p0, p1 ..., each one text or a list of turns; its name."""
    rows: list[dict[str, Any]] = [
        {"id": f"p{i}", "turns": [turns] if isinstance(turns, str) else turns}
        for i, turns in enumerate(prompts)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def make_plan(
    folder: Path,
    settings: RunSettings,
    prompts: Sequence[str | list[str]] = TWO,
    depths: Mapping[str, int] = MappingProxyType({}),
    dtype: str = "float32",
) -> TargetPlan:
    """The plan of the target `big` with its drafters; `prompts` unless settings name files.

    `depths`: the deepest K of drafters, as if read from their files.
    """
    pairings_file = folder / "pairings.yaml"
    pairings_file.write_text(PAIRINGS)
    if not settings.workload.workloads:
        workload = write_prompts(folder / "own.jsonl", prompts)
        settings = changed(settings, workloads=(workload,))
    pairings: tuple[Pairing, ...] = load_pairings(pairings_file).select(settings.workload.pairings)
    (plan,) = plan_run(settings, pairings).targets
    return replace(plan, depths=depths, dtype=dtype)


def with_rule(plan: TargetPlan, drafter: str) -> TargetPlan:
    """The plan with a rule on one of its drafters."""
    pairings = tuple(
        replace(pairing, drafter=replace(pairing.drafter, lossy=RULE))
        if pairing.drafter.name == drafter
        else pairing
        for pairing in plan.pairings
    )
    return replace(plan, pairings=pairings)


def fake_trace(
    engine: Any,  # noqa: ARG001
    drafter: str,
    method: str,
    texts: Sequence[TargetText],
    ks: Iterable[int],
    drafting: Drafting = "own",
) -> tuple[TraceRecord, ...]:
    """Traces of the fake engine's drafters: `good` is always right, all others never."""
    return tuple(
        trace(
            text.prompt_id,
            [drafter == "good"] * text.num_starts,
            depth=max(ks),
            target="big",
            drafter=drafter,
            method=method,
            workload=text.workload,
            turn=text.turn,
            repeat=text.repeat,
            temperature=text.sampling.temperature,
            num_prompt_tokens=len(text.prompt_ids),
            output_ids=text.output_ids,
            context=text.context,
            drafting=drafting,
            seconds=0.25,
        )
        for ks in [tuple(ks)]
        for text in texts
    )


def run_record(plan: TargetPlan, **fields: Any) -> RunRecord:
    """The record of a run of the plan; `said`: what is otherwise."""
    usual: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "run_id": RUN_ID,
        "environment": ENVIRONMENT,
        "settings": plan.settings,
        "workload_sha256": {},
        "pairing_sha256": {pairing.name: pairing.sha256 for pairing in plan.pairings},
        "cells": plan.cell_plans(),
    }
    return RunRecord(**{**usual, **fields})


def measure(
    plan: TargetPlan,
    engine: FakeProtocolEngine,
    root: Path,
    watch: RecordingWatch | None = None,
    *,
    spent_s: float = 0.0,
    trace: Trace = fake_trace,
    costs: Sequence[EngineCost] = (),
    probe: Probe = NO_PROBE,
    device: str = "cpu",
) -> StoredRun:
    """Measure the plan, or the rest of it if the run exists; the stored run. `device` is the device
    in the run's environment.
    """
    if (root / RUN_ID).exists():
        writer = resume_run(root, RUN_ID)
    else:
        environment, warnings = replace(ENVIRONMENT, device=device), plan_warnings(plan)
        writer = create_run(root, run_record(plan, environment=environment, warnings=warnings))
    deadline = Deadline(plan.budget_s, engine.clock, spent_s=spent_s)
    meter = MemoryMeter(plan.target.name, "cpu", probe)
    with writer:
        for cost in costs:
            writer.append(cost)
        target_run = TargetRun(
            plan, writer, probe, meter, watch or RecordingWatch(), deadline, trace
        )
        target_run.measure({engine.name: engine}, None)
        writer.finish()
    return load_run(RUN_ID, root, also_empty=True)


def measured(
    folder: Path,
    settings: RunSettings = SETTINGS,
    prompts: Sequence[str | list[str]] = TWO,
    engine: FakeProtocolEngine | None = None,
    watch: RecordingWatch | None = None,
    **options: Any,
) -> StoredRun:
    """The run of a plan made in the folder."""
    plan = make_plan(folder, settings, prompts)
    return measure(plan, engine or FakeEngine(), folder, watch, **options)


def cells_of(block: BlockRecord) -> set[str]:
    return {request.cell_id for request in block.requests}


def ids_of(run: StoredRun) -> list[str]:
    return [block.block_id for block in run.blocks]


def explored(run: StoredRun) -> list[BlockRecord]:
    return [block for block in run.blocks if block.purpose == "explore"]


def confirmed(run: StoredRun) -> list[BlockRecord]:
    return [block for block in run.blocks if block.purpose == "confirm"]
