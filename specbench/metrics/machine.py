"""The machine during a run: clocks and load over time, and how much its speed changed."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import fmean, median

import numpy as np

from specbench.metrics.cell import CellData, finished_baseline, once_a_baseline, once_a_cell
from specbench.metrics.stalls import seconds_per_round, stalls
from specbench.records import BlockRecord, CellKey, Kind, Reason, RequestRecord
from specbench.stats.machine_noise import MachineKind, MachineNoise, assumed_noise
from specbench.stats.spread import MIN_UNITS

SERVER = "server"  # the device of servers that were running already or that another tool measured
_MOST_MOMENTS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """A short interval of the run; a value is None if no request in it has one."""

    at_s: float  # its middle, since the first block began
    sm_clock_mhz: int | None  # the lowest
    cpu_share: float | None  # CPU seconds of this process per second, the lowest
    baseline_speed: float | None  # mean of K = 0, over that cell's median
    invalid: tuple[str, ...]  # cells that were judged invalid and ran then


def moments(
    blocks: Sequence[BlockRecord], keys: Iterable[CellKey], invalid: Collection[CellKey]
) -> tuple[Moment, ...]:
    """The moments of a run; a request starts when the earlier ones of its block have ended.

    Empty if all requests started at the same time, as in an imported run.
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
    by_moment: dict[int, list[RequestRecord]] = {}
    for at, request in timed:
        by_moment.setdefault(int((at - first) / width), []).append(request)
    return tuple(
        _moment((index + 0.5) * width, requests, usual, labels)
        for index, requests in sorted(by_moment.items())
    )


def _moment(
    at_s: float,
    requests: Sequence[RequestRecord],
    usual: Mapping[str, float],
    labels: Mapping[str, str],
) -> Moment:
    """The requests of a moment; `usual`: speeds of K = 0, `labels`: names of invalid cells."""
    clocks = (r.device.sm_clock_mhz for r in requests if r.device is not None)
    speeds = [
        speed / usual[r.cell_id]
        for r in requests
        if r.cell_id in usual and (speed := _speed(r)) is not None
    ]
    return Moment(
        at_s=at_s,
        sm_clock_mhz=min((clock for clock in clocks if clock is not None), default=None),
        cpu_share=min(
            (r.cpu_s / r.total_s for r in requests if r.cpu_s is not None and r.total_s),
            default=None,
        ),
        baseline_speed=fmean(speeds) if speeds else None,
        invalid=tuple(dict.fromkeys(labels[r.cell_id] for r in requests if r.cell_id in labels)),
    )


def _timed(block: BlockRecord) -> Iterable[tuple[float, RequestRecord]]:
    """Requests with their start in seconds; for overlapping requests, their arrival."""
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
    return {cell_id: median(values) for cell_id, values in speeds.items()}


def _speed(request: RequestRecord) -> float | None:
    if not request.decode_s or request.num_timed_tokens < 1:
        return None
    return request.num_timed_tokens / request.decode_s


UNEVEN = 1.3  # mean round / median round, which rises with interruptions and not with the text
DRIFTED = 1.25  # K = 0 on one prompt, the slower time over the faster one, in the middle prompt
WAITED = 0.85  # CPU seconds per second of one busy thread
FEWEST_ROUNDS = 30
FEWEST_PROMPTS = 3


def all_signs(early: Sequence[Reason], later: Sequence[Reason]) -> tuple[Reason, ...]:
    """Signs of noise at the start of a run and in its results; a number of threads once."""
    is_advised = any(sign.kind is Kind.THREADS_WAIT for sign in early)
    rest = (sign for sign in later if not (is_advised and sign.kind is Kind.THREADS_WAIT))
    return (*early, *rest)


def noise_signs(
    cells: Sequence[CellData], *, device: str, threads: int | None = None
) -> tuple[Reason, ...]:
    """Signs, in all cells of this process, that the machine's speed changed.

    `threads`: the threads on a CPU, of which fewer would help.
    """
    plain = _plain(cells)
    requests = [request for cell in plain for request in cell.finished]
    is_cpu = device.startswith("cpu")
    share = cpu_share(cells) if is_cpu else None  # on a GPU a process may wait for its kernels
    waited = () if share is None or share >= WAITED else (Kind.WAITED(share=share),)
    signs = (*_uneven(requests), *_drifted(plain), *waited)
    if signs and is_cpu and threads is not None and threads > 1:
        return (*signs, Kind.THREADS_WAIT(threads=threads, fewer=1))
    return signs


def cpu_share(cells: Iterable[CellData]) -> float | None:
    """CPU seconds of this process per second of K = 0, near 1 on a quiet CPU; None if unknown."""
    requests = (request for cell in _plain(cells) for request in cell.finished)
    timed = [(r.cpu_s, r.total_s) for r in requests if r.cpu_s is not None and r.total_s]
    return sum(cpu for cpu, _ in timed) / sum(total for _, total in timed) if timed else None


UNSTEADY = 0.08  # standard deviation of the log seconds per token of K = 0 within a run


@once_a_baseline
def machine_kind(cell: CellData) -> MachineKind:
    """What the machine was like, by its requests at K = 0: a CPU is shared if the process waited
    for it, and otherwise quiet if their speed hardly varied."""
    if cell.device == SERVER:
        return MachineKind.SERVER
    if not cell.device.startswith("cpu"):
        return MachineKind.GPU
    plain = finished_baseline(cell)
    logs = np.log([s for r in plain if not math.isnan(s := seconds_per_round(r))])
    timed = [(r.cpu_s, r.total_s) for r in plain if r.cpu_s is not None and r.total_s]
    share = sum(cpu for cpu, _ in timed) / sum(s for _, s in timed) if timed else 1.0
    is_steady = len(logs) >= MIN_UNITS and logs.std(ddof=1) <= UNSTEADY
    if share < WAITED:
        return MachineKind.SHARED_CPU
    return MachineKind.QUIET_CPU if is_steady else MachineKind.UNSTEADY_CPU


def machine_prior(cell: CellData) -> MachineNoise:
    """What is known about the machine's states before the run: assumed, and from earlier runs."""
    prior = assumed_noise(machine_kind(cell), alike=cell.is_alike)
    if cell.earlier is None or cell.is_alike:
        return prior
    noise = prior.pooled(cell.earlier.deviation**2, cell.earlier.num_runs - 1)
    return replace(noise, num_earlier=cell.earlier.num_runs)


@once_a_cell
def machine_noise(cell: CellData) -> MachineNoise:
    """The variance of the log speedup over the cell's baseline between states of the machine.

    It is pooled from `machine_prior` and from the parts of the run. Compared are seconds per round,
    in which prompts hardly differ, or the seconds of passes if requests overlap.
    """
    if cell.key.condition.overlaps:
        costs = [
            math.log(base.record.seconds / spec.record.seconds) for base, spec in cell.pass_pairs
        ]
    else:
        out = stalls(cell).left_out
        pairs = (pair for i, pair in enumerate(cell.pairs) if i not in out)
        costs = [math.log(seconds_per_round(b) / seconds_per_round(s)) for b, s in pairs]
    return machine_prior(cell).with_run([cost for cost in costs if not math.isnan(cost)])


def _plain(cells: Iterable[CellData]) -> list[CellData]:
    return [
        c for c in cells if c.key.draft.k == 0 and not c.servers and not c.key.condition.overlaps
    ]


def _uneven(requests: Iterable[RequestRecord]) -> Iterator[Reason]:
    """A sign if the mean round of K = 0 is far from the median: these rounds all do the same."""
    rounds = [second for r in requests if r.rounds is not None for second in r.rounds.round_s]
    if len(rounds) >= FEWEST_ROUNDS and fmean(rounds) > UNEVEN * median(rounds):
        yield Kind.UNEVEN_ROUNDS(mean_s=fmean(rounds), median_s=median(rounds))


def _drifted(cells: Iterable[CellData]) -> Iterator[Reason]:
    """A sign if a prompt at K = 0 takes longer in some blocks than in others."""
    times: dict[tuple[CellKey, str, int], list[float]] = {}
    for cell in cells:
        for request in cell.finished:
            if request.decode_s and request.num_timed_tokens > 0:
                prompt = cell.key, request.prompt_id, request.turn
                times.setdefault(prompt, []).append(request.decode_s / request.num_timed_tokens)
    ratios = [max(some) / min(some) for some in times.values() if len(some) > 1]
    if len(ratios) >= FEWEST_PROMPTS and median(ratios) > DRIFTED:
        yield Kind.DRIFTED(factor=median(ratios))
