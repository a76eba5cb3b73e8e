"""Memory is asked for before it is taken: what a run needs against what this machine has free."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from specbench.errors import UsageError
from specbench.settings import SERVED, RunSettings

if TYPE_CHECKING:
    from specbench.bench.plan import TargetPlan
    from specbench.fit.memory_plan import DeploymentSpec


def require_room(plans: "Sequence[TargetPlan]", settings: RunSettings, *, force: bool) -> None:
    """UsageError, with `force` a warning, if a target and its drafters need more than is free
    here."""
    told = "; ".join(shortages(plans, settings))
    if told and force:
        typer.echo(f"warning: {told}; started all the same (--skip-memory-check)", err=True)
    elif told:
        raise UsageError(f"{told}. --skip-memory-check starts it all the same")


def shortages(plans: "Sequence[TargetPlan]", settings: RunSettings) -> Iterator[str]:
    """What is missing, target by target. ModelError for a config with sizes that no model has."""
    from specbench.fit.demand import shortage

    for plan, place in placed(plans, settings):
        drafters = [pairing.drafter for pairing in plan.pairings]
        if told := shortage(plan.target, drafters, place):
            yield f"{plan.target.name} {told}"


def placed(
    plans: "Sequence[TargetPlan]", settings: RunSettings
) -> "Iterator[tuple[TargetPlan, DeploymentSpec]]":
    """Each plan that is decoded in this process, with where and how large."""
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
        concurrency=max(settings.load.concurrency) * settings.load.num_samples,
        context=most_tokens(plan),
        num_speculative_tokens=max(map(plan.largest_k, plan.pairings), default=0) or 1,
    )
