"""What the machine did while a run was measured: clocks, CPU, the speed of K = 0, over time."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import fmean, median

from specbench.records import BlockRecord, CellKey, RequestRecord

_MOST_MOMENTS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """A short while of the run; None where no request of it tells."""

    at_s: float  # its middle, since the first block began
    sm_clock_mhz: int | None  # the lowest
    cpu_share: float | None  # CPU seconds of this process per second, the lowest
    baseline_speed: float | None  # mean of K = 0, over that cell's median
    invalid: tuple[str, ...]  # cells that were judged invalid and ran then


@dataclass(slots=True)
class _Seen:
    clocks: list[int] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    invalid: dict[str, None] = field(default_factory=dict)


def moments(
    blocks: Sequence[BlockRecord], keys: Iterable[CellKey], invalid: Collection[CellKey]
) -> tuple[Moment, ...]:
    """The run in order, a request at the start of its block and those before it in its block.

    Empty where all began at once, as where a run was imported.
    """
    if not blocks:
        return ()
    plain = {key.id for key in keys if key.draft.k == 0}
    labels = {key.id: f"{key.source} {key.draft.length.named}" for key in invalid}
    usual = _usual_speeds(blocks, plain)
    timed = [(at, r) for block in blocks for at, r in _timed(block)]
    first = min(at for at, _ in timed) if timed else 0.0
    last = max((at for at, _ in timed), default=0.0)
    if last <= first:
        return ()
    width = (last - first) / _MOST_MOMENTS * (1 + 1e-9)
    seen: dict[int, _Seen] = {}
    for at, request in timed:
        own = seen.setdefault(int((at - first) / width), _Seen())
        if request.device is not None and request.device.sm_clock_mhz is not None:
            own.clocks.append(request.device.sm_clock_mhz)
        if request.cpu_s is not None and request.total_s:
            own.shares.append(request.cpu_s / request.total_s)
        speed = _speed(request) if request.cell_id in plain else None
        if speed is not None:
            own.speeds.append(speed / usual[request.cell_id])
        if request.cell_id in labels:
            own.invalid[labels[request.cell_id]] = None
    return tuple(
        Moment(
            at_s=(place + 0.5) * width,
            sm_clock_mhz=min(own.clocks, default=None),
            cpu_share=min(own.shares, default=None),
            baseline_speed=fmean(own.speeds) if own.speeds else None,
            invalid=tuple(own.invalid),
        )
        for place, own in sorted(seen.items())
    )


def _timed(block: BlockRecord) -> Iterable[tuple[float, RequestRecord]]:
    """Requests with when they began, in seconds; of those together when they came in."""
    at = datetime.fromisoformat(block.started_at).timestamp()
    for request in block.requests:
        yield (at if request.arrived_s is None else at + request.arrived_s), request
        at += (request.total_s or 0.0) if request.arrived_s is None else 0.0


def _usual_speeds(blocks: Iterable[BlockRecord], plain: Collection[str]) -> Mapping[str, float]:
    speeds: dict[str, list[float]] = {}
    for request in (r for block in blocks for r in block.requests if r.cell_id in plain):
        speed = _speed(request)
        if speed is not None:
            speeds.setdefault(request.cell_id, []).append(speed)
    return {cell_id: median(own) for cell_id, own in speeds.items()}


def _speed(request: RequestRecord) -> float | None:
    if not request.decode_s or request.num_timed_tokens < 1:
        return None
    return request.num_timed_tokens / request.decode_s
