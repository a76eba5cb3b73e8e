"""How an engine ran: what was chosen, and what the others gave that could have been."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """An implementation that could have run: its seconds, or why it did not take part."""

    name: str
    seconds: float | None = None  # of one turn, the median of several
    refusal: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelChoice:
    """What runs for one kind of work.

    `key` names all that the choice hangs on, hardware and versions included: where it is equal,
    a later run takes the choice as it is.
    """

    key: str
    subject: str  # "attention of MODEL, chain", "forward of MODEL"
    chosen: str
    contenders: tuple[Contender, ...] = ()  # in the order that decides among equals
    is_forced: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineRecord:
    """How an engine ran a target: what was chosen, and why where it was not as asked."""

    target: str
    engine: str
    forward: str | None = None  # "stock", "fused" or "fused, triton"
    graph: str | None = None  # "off", "step" or "round"
    attention: str | None = None  # what computes the target's
    num_captures: int | None = None  # graphs made so far; None: the device has none
    capture_s: float | None = None  # spent on them, failed ones included
    quantization: str | None = None
    notes: tuple[str, ...] = ()
    kernels: tuple[KernelChoice, ...] = ()  # of the target and its draft models
    # The deepest K of each drafter that has a limit.
    max_k: Mapping[str, int] = field(default_factory=dict)
    # CPU threads and why; None: on a GPU, with --threads and in runs of an earlier specbench.
    threads: KernelChoice | None = None


def chosen_threads(engines: Iterable[EngineRecord]) -> tuple[int, ...]:
    """The numbers of threads that trials chose; several if targets of a run differ."""
    return tuple(dict.fromkeys(int(one.threads.chosen) for one in engines if one.threads))
