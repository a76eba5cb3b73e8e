"""How an engine ran: what was chosen, and what the others gave that could have been."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from specbench.records.doc import Doc


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """An implementation that could have run: its seconds, or why it did not take part."""

    name: Annotated[str, Doc("the candidate")]
    seconds: Annotated[
        float | None, Doc("median time of the same work; absent if it was not timed", "s")
    ] = None
    refusal: Annotated[str | None, Doc("why it was not timed; absent if it was")] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelChoice:
    """What runs for one kind of work.

    `key` names all that the choice hangs on, hardware and versions included: where it is equal,
    a later run takes the choice as it is.
    """

    key: Annotated[str, Doc("everything the choice depends on, hardware and versions included")]
    subject: Annotated[str, Doc("the work, such as `attention of MODEL, chain`")]
    chosen: Annotated[str, Doc("the candidate that runs")]
    contenders: Annotated[
        tuple[Contender, ...], Doc("all candidates, in the order that decides between equal ones")
    ] = ()
    is_forced: Annotated[bool, Doc("the user chose it; nothing was timed")] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineRecord:
    """How an engine ran a target: what was chosen, and why where it was not as asked."""

    target: Annotated[str, Doc("name of the target")]
    engine: Annotated[str, Doc("what decoded")]
    forward: Annotated[
        str | None,
        Doc(
            "`fused`, `fused, triton` (with our kernels) or `stock`; absent if the engine "
            "does not report it"
        ),
    ] = None
    graph: Annotated[
        str | None, Doc("`off`, `step` or `round`, at K = 0; exceptions are in `notes`")
    ] = None
    attention: Annotated[str | None, Doc("what computes the target's attention")] = None
    num_captures: Annotated[
        int | None, Doc("graphs captured so far; absent if the device has none", "graphs")
    ] = None
    capture_s: Annotated[float | None, Doc("spent on captures, failed ones included", "s")] = None
    quantization: Annotated[str | None, Doc("of the target's weights; absent: none")] = None
    notes: Annotated[tuple[str, ...], Doc("what differs from what was requested, and why")] = ()
    kernels: Annotated[
        tuple[KernelChoice, ...], Doc("what autotuning chose for the target and its draft models")
    ] = ()
    max_k: Annotated[
        Mapping[str, int], Doc("largest K that each drafter can draft, of those that have a limit")
    ] = field(default_factory=dict)
    threads: Annotated[
        KernelChoice | None,
        Doc(
            "number of CPU threads that was chosen; absent on a GPU, with `--threads` and in "
            "older runs"
        ),
    ] = None


def chosen_threads(engines: Iterable[EngineRecord]) -> tuple[int, ...]:
    """The numbers of threads that trials chose; several if targets of a run differ."""
    return tuple(dict.fromkeys(int(one.threads.chosen) for one in engines if one.threads))
