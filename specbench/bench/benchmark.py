"""A whole run: provenance first, then target after target, then the mark that it is complete."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import zip_longest
from pathlib import Path

import psutil
import torch

from specbench.bench.deadline import Deadline
from specbench.bench.depth import any_shape
from specbench.bench.hub import look_for_hub
from specbench.bench.memory import MemoryMeter
from specbench.bench.passes import block_seconds
from specbench.bench.plan import TargetPlan, peers_of, plan_targets
from specbench.bench.served_costs import time_servers
from specbench.bench.target import TargetRun
from specbench.bench.watch import Watch
from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Engine
from specbench.engines.model_pool import ModelPool
from specbench.engines.transformers import TransformersEngine
from specbench.errors import ModelError, UsageError
from specbench.forecast.cost_curve import told
from specbench.forecast.engine_costs import is_address, read_file
from specbench.inputs.config import Pairing, Target
from specbench.inputs.model_spec import ModelSpec
from specbench.models.checkpoint import Checkpoint, read_checkpoint
from specbench.models.loading import ModelSource, planned_dtype
from specbench.probes.allocator import cuda_uuid
from specbench.probes.environment import describe_environment
from specbench.probes.nvml import open_probe
from specbench.records import EngineCost, Prompt, RunRecord
from specbench.runs import (
    SCHEMA_VERSION,
    Ledger,
    StoredRun,
    create_run,
    new_run_id,
    resume_run,
)
from specbench.settings import BUILTIN, TRANSFORMERS, RunSettings


def engine_costs(settings: RunSettings, plans: Sequence[TargetPlan]) -> list[EngineCost]:
    """What --costs says, servers asked with the run's own prompts; nothing without --costs.

    UsageError where it cannot be read, or says nothing of a concurrency that is planned.
    """
    concurrencies = settings.load.concurrency
    sources = settings.forecasting.costs
    if not sources:
        return []
    costs = [cost for s in sources if not is_address(s) for cost in read_file(Path(s))]
    if addresses := [source for source in sources if is_address(source)]:
        every = (plan.prompts(workload) for plan in plans[:1] for workload in plan.workloads)
        in_turns = (prompt for prompts in zip_longest(*every) for prompt in prompts if prompt)
        costs += time_servers(
            addresses,
            [_question_text(prompt) for prompt in in_turns],
            concurrencies=concurrencies,
            temperature=settings.sampling.temperatures[0],
        )
    for concurrency in concurrencies:
        told(costs, concurrency=concurrency, ks=())
    return costs


def _question_text(prompt: Prompt) -> str:
    """What a prompt's first turn says."""
    return "\n\n".join(message.content for message in prompt.turns[0])


def run_benchmark(
    settings: RunSettings,
    pairings: Sequence[Pairing],
    root: Path,
    watch: Watch,
    *,
    resume: str | None = None,
) -> StoredRun:
    """Measure everything asked for, or the rest of it; each block is stored when it is done.

    A target or drafter that cannot run is a stored failure. Raises UsageError, WorkloadError
    and StoreError before anything is measured.
    """
    if any_shape(pairings):
        settings = replace(settings, decoder=replace(settings.decoder, dummy_weights=True))
    device = find_device(settings.machine.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # events, streams and graphs are made on the current one
    threads = settings.machine.threads or default_threads(pairings)
    torch.set_num_threads(threads)
    look_for_hub(pairings, watch.warn)
    plans = plan_targets(
        settings, pairings, lambda t: _dtype(t, settings.machine.dtype, device), read_shapes
    )
    probe = open_probe(str(device), uuid=cuda_uuid(str(device)))
    environment = describe_environment(str(device), threads, sys.argv, probe)
    warnings = tuple(w for plan in plans for w in plan_warnings(plan))
    for warning in warnings:
        watch.warn(warning)
    told: Sequence[EngineCost] = ()
    if resume is None:
        told = engine_costs(settings, plans)
        run = RunRecord(
            schema_version=SCHEMA_VERSION,
            run_id=new_run_id(datetime.now(UTC)),
            environment=environment,
            settings=settings,
            workload_sha256={w.name: w.sha256 for plan in plans for w in plan.workloads},
            cells=tuple(cell for plan in plans for cell in plan.cell_plans()),
            warnings=warnings,
            pairing_sha256={pairing.name: pairing.sha256 for pairing in pairings},
            workload_prompts={w.name: len(w.prompts) for plan in plans for w in plan.workloads},
        )
        ledger = create_run(root, run)
    else:
        depths = {(p.target.name, d): k for p in plans for d, k in p.depths.items()}
        ledger = resume_run(root, resume, depths)
    with ledger:
        if resume is not None:
            require_same_work(ledger.run, plans)
            ledger.append(environment)
            told = () if ledger.stored.engine_costs else engine_costs(settings, plans)
        watch.run_id(ledger.run.run_id)
        for cost in told:
            ledger.append(cost)
        asked_s = settings.effort.budget_s
        budget_s = None if asked_s is None else asked_s / len(plans)
        for plan in plans:
            deadline = Deadline(budget_s, time.monotonic, spent_s=_spent_s(ledger, plan))
            meter = MemoryMeter(plan.target.name, str(device), probe)
            target_run = TargetRun(plan, ledger, probe, meter, watch, deadline)
            target_run.measure(partial(open_engines, plan.target, device, settings))
        ledger.finish()
        return ledger.stored


def open_engines(
    target: Target, device: torch.device, settings: RunSettings, pool: ModelPool | None = None
) -> dict[str, Engine]:
    """The engines of a run over one set of weights, those of `pool` if it is given; ModelError."""
    decoder = settings.decoder
    pool = pool or ModelPool(device, settings.machine.dtype, dummy=decoder.dummy_weights)
    make: dict[str, Callable[[], Engine]] = {
        BUILTIN: lambda: BuiltinEngine(target, pool, decoder),
        TRANSFORMERS: lambda: TransformersEngine(target, pool),
    }
    # Ours first, whatever order they were named in: it decodes the references.
    return {name: open_one() for name, open_one in make.items() if name in settings.load.engines}


def find_device(name: str) -> torch.device:
    """`auto` is the first GPU where there is one; UsageError for what is not there."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index or "0").isdigit():
        raise UsageError(f"--device {name!r}: allowed are auto, cpu, cuda and cuda:N")
    count = torch.cuda.device_count()
    if int(index or 0) >= count:
        raise UsageError(f"--device {name}: this machine has {count} CUDA devices; try cpu")
    return torch.device("cuda", int(index or 0))


def default_threads(pairings: Sequence[Pairing]) -> int:
    """1 for the embedded pair, whose small matrices gain nothing from more; else all cores."""
    if all(pairing.target.model.source.startswith("demo:") for pairing in pairings):
        return 1
    return psutil.cpu_count(logical=False) or 1


def plan_warnings(plan: TargetPlan) -> tuple[str, ...]:
    """What a reader of this plan's results should know before they are measured."""
    foreign = (
        f"{name}: outside what {plan.target.name} was trained on; its figures mean little"
        for name in foreign_workloads(plan)
    )
    return (*foreign, *peer_warnings(plan), *plan.left_out)


def foreign_workloads(plan: TargetPlan) -> tuple[str, ...]:
    """Workloads that are not the target's own, where it has some: text it was not made for."""
    own = plan.target.workloads
    return tuple(w.name for w in plan.workloads if own is not None and w.path.parent != own)


def peer_warnings(plan: TargetPlan) -> tuple[str, ...]:
    """Which drafters the engine beside ours leaves out."""
    left_out = [p.name for p in plan.pairings if not peers_of(p.drafter)]
    if TRANSFORMERS not in plan.settings.load.engines or not left_out:
        return ()
    rest = "only builtin measures them" if BUILTIN in plan.settings.load.engines else "add builtin"
    return (f"the engine transformers has no such method for {', '.join(left_out)}: {rest}",)


def _dtype(target: Target, dtype: str | None, device: torch.device) -> str:
    spec = target.model
    source = ModelSource(
        location=spec.location,
        revision=spec.revision,
        dtype=dtype or spec.dtype,
        trust_remote_code=spec.trust_remote_code,
    )
    try:
        return planned_dtype(source, device)
    except ModelError:
        return "unknown"  # loading will fail likewise, and that failure is recorded


def read_shapes(spec: ModelSpec) -> Checkpoint:
    """A head's config and the shapes of its tensors, downloaded where they are not here yet."""
    return read_checkpoint(spec.location, spec.revision, shapes_only=True)


def require_same_work(run: RunRecord, plans: Sequence[TargetPlan]) -> None:
    """UsageError where a resumed run would measure other things than those it has begun with."""
    now = {pairing.name: pairing.sha256 for plan in plans for pairing in plan.pairings}
    known = run.pairing_sha256  # empty in runs of an earlier specbench
    if others := [name for name, sha256 in now.items() if known.get(name, sha256) != sha256]:
        raise UsageError(
            f"run {run.run_id} cannot be resumed: {', '.join(others)} has changed in "
            "pairings.yaml since (model, method, parameters or lossy rule); undo the change or "
            "start a new run"
        )
    workloads = {w.name: w.sha256 for plan in plans for w in plan.workloads}
    if workloads != run.workload_sha256:
        changed = sorted(n for n in workloads if workloads[n] != run.workload_sha256.get(n))
        raise UsageError(
            f"run {run.run_id} cannot be resumed: its workload {', '.join(changed)} has changed "
            "since; start a new run"
        )
    if tuple(cell for plan in plans for cell in plan.cell_plans()) != run.cells:
        raise UsageError(
            f"run {run.run_id} cannot be resumed: with this device and these pairings the plan "
            "would differ; start a new run"
        )


def _spent_s(ledger: Ledger, plan: TargetPlan) -> float:
    """Seconds that earlier sessions of this run spent on this target's requests."""
    stored = ledger.stored
    ids = {key.id for key in stored.run.keys if key.condition.target == plan.target.name}
    spent = (seconds for block in stored.blocks for seconds in block_seconds(block).items())
    traces = (trace for trace in stored.traces if trace.target == plan.target.name)
    return sum(seconds for cell_id, seconds in spent if cell_id in ids) + sum(
        trace.seconds or 0.0 for trace in traces
    )
