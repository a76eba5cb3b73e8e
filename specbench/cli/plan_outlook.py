"""What a plan will take on this machine: time and memory, for --dry-run."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.bench.expected_time import ExpectedTime, earlier_run, expected_time
from specbench.cli.hardware import this_machine
from specbench.cli.memory import place_of, placed
from specbench.fit.demand import demand, gib
from specbench.fit.memory_plan import DeploymentSpec
from specbench.settings import RunSettings

if TYPE_CHECKING:
    from specbench.bench.plan import TargetPlan

_UNKNOWN = "no estimate: its files are not here or cannot be read"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanOutlook(ExpectedTime):
    """A target in this process or in one started server, whose time is with its sessions; None:
    unknown."""

    target: str
    server: str | None = None  # its engine
    dtype: str
    memory_bytes: int | None
    free_bytes: int | None


def plan_outlook(
    plans: "Sequence[TargetPlan]", settings: RunSettings, out: Path
) -> list[PlanOutlook]:
    """One per target that is decoded in this process, and one for each engine that is started."""
    outlooks = [
        _outlook(plan, place, expected_time(plan, place, earlier_run(plan, place, out)))
        for plan, place in placed(plans, settings)
    ]
    for plan in plans:
        for engine in plan.served if plan.running_ks is None else ():
            here = this_machine(DeploymentSpec(device="cpu"), settings.machine.device).place
            # Servers take a checkpoint's dtype as it is, as a GPU does.
            here = DeploymentSpec(device="cuda", memory_bytes=here.memory_bytes)
            outlooks.append(_outlook(plan, place_of(plan, settings, here), ExpectedTime(), engine))
    return outlooks


def _outlook(
    plan: "TargetPlan", place: DeploymentSpec, time: ExpectedTime, server: str | None = None
) -> PlanOutlook:
    needed = demand(plan.target, [pairing.drafter for pairing in plan.pairings], place)
    return PlanOutlook(
        **asdict(time),
        target=plan.target.name,
        server=server,
        dtype=needed.dtype,
        memory_bytes=None if needed.is_least else needed.total,
        free_bytes=place.memory_bytes,
    )


def outlook_lines(found: Sequence[PlanOutlook]) -> Iterator[str]:
    """A sentence per target."""
    for one in found:
        parts = [_time(one)]
        if one.memory_bytes is not None:
            free = "" if one.free_bytes is None else f", of {gib(one.free_bytes)} free"
            parts.append(f"{gib(one.memory_bytes)} of memory in {one.dtype}{free}")
        who = one.target
        if one.server is not None:
            who = f"{one.target} on {one.server}, per server"
        yield f"{who}: {'; '.join(filter(None, parts)) or _UNKNOWN}"


def time_lines(found: Sequence[PlanOutlook]) -> Iterator[str]:
    """A sentence per target whose time is known: how long, and what limits it."""
    for one in found:
        if time := _time(one):
            limit = (
                ""
                if one.is_ended_by_budget
                else "; all prompts at every K: --time-budget limits it"
            )
            yield f"{one.target}: {time}{limit}"


def _time(one: PlanOutlook) -> str:
    if one.seconds is None:
        return ""
    length = f"{one.seconds:.0f} s" if one.seconds < 90 else f"{one.seconds / 60:,.0f} minutes"
    if one.is_ended_by_budget:
        return f"about {length}, loading and --time-budget"
    if one.seconds_are_measured:
        return f"about {length}, as an earlier run took here"
    return f"about {length} (a guess from the sizes of the models: it may be three times off)"
