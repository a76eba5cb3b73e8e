"""Checks that take a second, before torch is imported; all are repeated at their place of use."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from specbench.cli.hardware import has_gpu_driver
from specbench.errors import CompatibilityError, UsageError
from specbench.settings import BUILTIN, SERVED, MachineSettings, RunSettings

if TYPE_CHECKING:
    from specbench.bench.plan import TargetPlan
    from specbench.fit.memory_plan import DeploymentSpec
    from specbench.inputs.pairing import Pairing


def look_first(
    settings: RunSettings,
    pairings: "Sequence[Pairing]",
    out: Path | None = None,
    *,
    force: bool = False,
) -> "tuple[TargetPlan, ...]":
    """The plans; none with --base-url. UsageError or WorkloadError for a device, folder, workload
    or plan that cannot be, and for a lack of memory unless `force`."""
    from specbench.inputs.workloads import load_workloads

    require_place(settings, out)
    workload = settings.workload
    for folder in {pairing.target.workloads for pairing in pairings}:
        load_workloads(workload.workloads, folder=folder, field=workload.prompt_field)

    from specbench.bench.planning import plan_targets

    if settings.servers.base_urls:
        return ()
    plans = plan_targets(settings, pairings, lambda t: settings.machine.dtype or t.model.dtype)
    require_room(plans, settings, force=force)
    return tuple(plans)


def require_loadable(settings: RunSettings, pairings: "Sequence[Pairing]") -> None:
    """CompatibilityError if loading would refuse all pairings, warnings if some or if servers
    measure them as well; not for dummy weights."""
    from specbench.fit.candidates import refusals

    engines = settings.load.engines
    if settings.decoder.dummy_weights or set(engines) <= set(SERVED):
        return
    ignored = () if BUILTIN in engines else ("attention",)
    drafts = settings.draft.adaptive or any(settings.draft.num_speculative_tokens or (1,))
    refused = refusals(pairings, drafts=drafts, ignored=ignored)
    if refused and len(refused) == len(pairings) and not set(engines) & set(SERVED):
        raise CompatibilityError("; ".join(dict.fromkeys(refused.values())))
    for reason in refused.values():
        typer.echo(f"warning: {reason}", err=True)


def require_place(settings: RunSettings, out: Path | None) -> None:
    """UsageError for a device or threads that are not here, or a folder that cannot be written."""
    if not set(settings.load.engines) <= set(SERVED):
        require_machine(settings.machine)
    if out is not None:
        require_writable(out)


def require_machine(machine: MachineSettings) -> None:
    """UsageError for a GPU without a driver, and for more threads than this process has cores."""
    from specbench.probes.load import num_cores

    if machine.device.startswith("cuda") and sys.platform == "linux" and not has_gpu_driver():
        raise UsageError(
            f"--device {machine.device}: this machine has no GPU driver; leave --device out for "
            "the CPU"
        )
    if machine.threads is not None and machine.threads > (most := num_cores()):
        raise UsageError(
            f"--threads {machine.threads}: this process has {most} CPU cores; allowed: 1 to {most}"
        )


def require_writable(out: Path, option: str = "--runs-dir") -> None:
    """UsageError for a folder that is a file, or that is not writable."""
    place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not place.is_dir():
        raise UsageError(f"{option} {out}: {place} is a file; name a folder")
    try:  # what a folder allows is not always what it takes: a full or special file system
        with tempfile.TemporaryDirectory(prefix=".specbench-", dir=place):
            pass
    except OSError as error:
        raise UsageError(
            f"{option} {out}: {place} is not writable ({error.strerror}); name another folder"
        ) from None


def require_room(plans: "Sequence[TargetPlan]", settings: RunSettings, *, force: bool) -> None:
    """UsageError, with `force` a warning, if a target and its drafters need more than is free
    here."""
    missing = "; ".join(shortages(plans, settings))
    if missing and force:
        typer.echo(f"warning: {missing}; started all the same (--skip-memory-check)", err=True)
    elif missing:
        raise UsageError(f"{missing}. --skip-memory-check starts it all the same")


def shortages(plans: "Sequence[TargetPlan]", settings: RunSettings) -> Iterator[str]:
    """A sentence per target that does not fit. ModelError for a config with impossible sizes."""
    from specbench.fit.demand import shortage

    for plan, place in placed(plans, settings):
        drafters = [pairing.drafter for pairing in plan.pairings]
        if missing := shortage(plan.target, drafters, place):
            yield f"{plan.target.name} {missing}"


def placed(
    plans: "Sequence[TargetPlan]", settings: RunSettings
) -> "Iterator[tuple[TargetPlan, DeploymentSpec]]":
    """Each plan that is decoded in this process, with its machine and sizes."""
    from specbench.cli.hardware import this_machine
    from specbench.fit.memory_plan import DeploymentSpec

    if set(settings.load.engines) <= set(SERVED):
        return
    here = this_machine(DeploymentSpec(device="cpu"), settings.machine.device).place
    for plan in plans:
        place = place_of(plan, settings, here)
        yield plan, replace(place, temperature=max(settings.sampling.temperatures))


def place_of(plan: "TargetPlan", settings: RunSettings, here: "DeploymentSpec") -> "DeploymentSpec":
    """This machine with as many requests, tokens and drafts as the plan has."""
    from specbench.bench.planning import most_tokens

    return replace(
        here,
        dtype=settings.machine.dtype,
        concurrency=max(condition.batch_size for condition in plan.conditions),
        context=most_tokens(plan),
        num_speculative_tokens=max(map(plan.largest_k, plan.pairings), default=0) or 1,
    )
