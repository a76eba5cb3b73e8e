"""The plan of a run, and fast checks of it, before torch is imported."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from specbench.errors import CompatibilityError, UsageError
from specbench.settings import BUILTIN, MachineSettings, RunSettings

if TYPE_CHECKING:
    from specbench.bench.plan import TargetPlan
    from specbench.bench.planning import RunPlan
    from specbench.fit.memory_plan import DeploymentSpec
    from specbench.inputs.pairing import Pairing


def preflight(
    settings: RunSettings,
    pairings: "Sequence[Pairing]",
    runs_dir: Path | None = None,
    *,
    skip_memory_check: bool = False,
) -> "RunPlan":
    """The checked plan. Raises UsageError or WorkloadError for an impossible device, folder,
    workload or plan, and for too little memory unless `skip_memory_check`; CompatibilityError.

    What may ask another process to build the models comes last.
    """
    require_device_and_out(settings, runs_dir)
    from specbench.bench.planning import plan_run

    plan = plan_run(settings, pairings)
    require_reachable(plan.targets, settings)
    require_memory(plan.targets, settings, skip=skip_memory_check)
    require_loadable(settings, pairings)
    return plan


def require_loadable(settings: RunSettings, pairings: "Sequence[Pairing]") -> None:
    """Raises CompatibilityError if no pairing can be loaded or served; warns if one cannot load.
    Dummy weights are not checked."""
    from specbench.fit.candidates import unsupported_reasons
    from specbench.fit.loaded_tensors import asking

    load = settings.load
    if settings.decoder.dummy_weights or not load.in_process:
        return
    ignored = () if BUILTIN in load.engines else ("attention",)
    drafts = settings.draft.adaptive or any(settings.draft.num_speculative_tokens or (1,))
    with asking(partial(typer.echo, err=True)):
        refused = unsupported_reasons(pairings, drafts=drafts, ignored=ignored)
    if refused and len(refused) == len(pairings) and not load.served:
        raise CompatibilityError("; ".join(dict.fromkeys(refused.values())))
    for reason in refused.values():
        typer.echo(f"warning: {reason}", err=True)


def require_device_and_out(settings: RunSettings, runs_dir: Path | None) -> None:
    """Raises UsageError for an impossible device, thread count or folder."""
    if settings.load.in_process:
        require_machine(settings.machine)
    if runs_dir is not None:
        require_writable(runs_dir)


def require_reachable(plans: "Sequence[TargetPlan]", settings: RunSettings) -> None:
    """Raises UsageError for a margin of error that the state of the machine alone exceeds in a run
    over all prompts."""
    wanted, device = settings.effort.precision, settings.machine.device
    if wanted is None or not settings.load.in_process:
        return
    from specbench.probes.gpu import has_gpu_driver
    from specbench.stats.machine_noise import MachineKind, least_margin

    is_cpu = device == "cpu" or (not device.startswith("cuda") and not has_gpu_driver())
    kind = MachineKind.QUIET_CPU if is_cpu else MachineKind.GPU
    cells = [cell for plan in plans for cell in plan.cell_plans()]
    num_requests = max(
        (c.num_prompts * c.num_repeats for c in cells if not c.key.condition.overlaps), default=0
    )
    least = least_margin(kind, num_requests)
    if num_requests and wanted < least:
        runs = ceil((least / wanted) ** 2)
        raise UsageError(
            f"--margin-of-error {100 * wanted:g}%: the state of a {kind} alone makes a margin of "
            f"{least:.1%} in one run of {num_requests} requests; use {ceil(100 * least)}% or more, "
            f"or compare {runs} runs at different times"
        )


def require_machine(machine: MachineSettings) -> None:
    """Raises UsageError for a GPU without a driver, or more threads than this process has cores."""
    from specbench.probes.gpu import has_gpu_driver
    from specbench.probes.host import num_cores

    if machine.device.startswith("cuda") and sys.platform == "linux" and not has_gpu_driver():
        raise UsageError(
            f"--device {machine.device}: this machine has no GPU driver, or CUDA_VISIBLE_DEVICES "
            "hides its GPUs; leave --device out for the CPU"
        )
    if machine.threads is not None and machine.threads > (most := num_cores()):
        raise UsageError(
            f"--threads {machine.threads}: this process has {most} CPU cores; allowed: 1 to {most}"
        )


def require_writable(folder: Path, option: str = "--runs-dir") -> None:
    """Raises UsageError if the folder is a file or is not writable."""
    parent = nearest_existing(folder)
    if not parent.is_dir():
        raise UsageError(f"{option} {folder}: {parent} is a file; name a folder")
    try:  # permissions do not show a full or a special file system
        with tempfile.TemporaryDirectory(prefix=".specbench-", dir=parent):
            pass
    except OSError as error:
        raise UsageError(
            f"{option} {folder}: {parent} is not writable ({error.strerror}); name another folder"
        ) from None


def nearest_existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def require_memory(plans: "Sequence[TargetPlan]", settings: RunSettings, *, skip: bool) -> None:
    """Raises UsageError, or warns, if a target and its drafters need more memory than is free."""
    missing = "; ".join(shortages(plans, settings))
    if missing and skip:
        typer.echo(f"warning: {missing}; started anyway (--skip-memory-check)", err=True)
    elif missing:
        raise UsageError(f"{missing}. --skip-memory-check starts it anyway")


def shortages(plans: "Sequence[TargetPlan]", settings: RunSettings) -> Iterator[str]:
    """A sentence per target that does not fit. ModelError for a config with impossible sizes."""
    from specbench.fit.demand import shortage

    for plan, setup in planned_setups(plans, settings):
        drafters = [pairing.drafter for pairing in plan.pairings]
        if missing := shortage(plan.target, drafters, setup):
            yield f"{plan.target.name} {missing}"


def planned_setups(
    plans: "Sequence[TargetPlan]", settings: RunSettings
) -> "Iterator[tuple[TargetPlan, DeploymentSpec]]":
    """Each plan that is decoded in this process, with its machine and sizes."""
    from specbench.cli.hardware import this_machine
    from specbench.fit.memory_plan import DeploymentSpec

    if not settings.load.in_process:
        return
    machine = this_machine(DeploymentSpec(device="cpu"), settings.machine.device).setup
    for plan in plans:
        setup = setup_of(plan, settings, machine)
        yield plan, replace(setup, temperature=max(settings.sampling.temperatures))


def setup_of(plan: "TargetPlan", settings: RunSettings, base: "DeploymentSpec") -> "DeploymentSpec":
    """The base setup with the number of requests, tokens and drafts of the plan."""
    from specbench.bench.planning import most_tokens

    return replace(
        base,
        dtype=settings.machine.dtype,
        concurrency=max(condition.batch_size for condition in plan.conditions),
        context=most_tokens(plan),
        num_speculative_tokens=max(map(plan.largest_k, plan.pairings), default=0) or 1,
    )
