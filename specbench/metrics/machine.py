"""The machine during a run: its kind, and how much its speed changed."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from statistics import fmean, median

import numpy as np

from specbench.metrics.cell import (
    CellData,
    Pass,
    finished,
    finished_baseline,
    once_a_baseline,
    once_a_cell,
)
from specbench.metrics.rounds import step_s
from specbench.metrics.stalls import seconds_per_round, stalls
from specbench.records import CellKey, Kind, Reason, RequestRecord
from specbench.stats.machine_noise import (
    SECONDS_PER_RATIO,
    MachineKind,
    MachineNoise,
    assumed_noise,
)
from specbench.stats.spread import MIN_UNITS

SERVER = "server"  # the device of servers that were running already or that another tool measured

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
    return _cpu_share(request for cell in _plain(cells) for request in cell.finished)


def _cpu_share(requests: Iterable[RequestRecord]) -> float | None:
    timed = [(r.cpu_s, r.total_s) for r in requests if r.cpu_s is not None and r.total_s]
    return sum(cpu for cpu, _ in timed) / sum(total for _, total in timed) if timed else None


UNSTEADY = 0.08  # standard deviation of the log seconds per token of K = 0 within a run


def machine_kind(cell: CellData) -> MachineKind:
    """What the machine was like, by its requests at K = 0: a CPU is shared if the process waited
    for it, and otherwise quiet if their speed hardly varied."""
    return _kind(cell, cell.finished) if _is_alone(cell) else _kind_by_baseline(cell)


def _is_alone(cell: CellData) -> bool:
    """Whether it is a K = 0 that is compared with nothing."""
    return cell.key.is_baseline and not cell.baseline


@once_a_baseline
def _kind_by_baseline(cell: CellData) -> MachineKind:
    return _kind(cell, finished_baseline(cell))


def _kind(cell: CellData, plain: Sequence[RequestRecord]) -> MachineKind:
    if cell.device == SERVER:
        return MachineKind.SERVER
    if not cell.device.startswith("cpu"):
        return MachineKind.GPU
    logs = np.log([s for r in plain if not math.isnan(s := seconds_per_round(r))])
    share = _cpu_share(plain)
    is_steady = len(logs) >= MIN_UNITS and logs.std(ddof=1) <= UNSTEADY
    if share is not None and share < WAITED:
        return MachineKind.SHARED_CPU
    return MachineKind.QUIET_CPU if is_steady else MachineKind.UNSTEADY_CPU


def machine_prior(cell: CellData) -> MachineNoise:
    """What is known about the machine's states before the run: assumed, and from earlier runs."""
    # Two loads in one process were measured to be alike, two starts of a server were not.
    prior = assumed_noise(machine_kind(cell), alike=cell.is_alike and not cell.servers)
    if cell.earlier is None or cell.is_alike:
        return prior
    noise = prior.pooled(cell.earlier.deviation**2, cell.earlier.num_runs - 1)
    return replace(noise, num_earlier=cell.earlier.num_runs)


@once_a_cell
def machine_noise(cell: CellData) -> MachineNoise:
    """The variance of the log speedup over the cell's baseline between states of the machine.

    It is pooled from `machine_prior` and from the parts of the run. Compared are seconds per round,
    in which prompts hardly differ, or the seconds of passes if requests overlap (per token at a
    request rate, which sets the seconds). At K = 0 it is that of a speedup over it, by its own
    rounds.
    """
    if _is_alone(cell) and not cell.key.condition.overlaps:
        costs = [math.log(seconds_per_round(r)) / SECONDS_PER_RATIO for r in cell.finished]
    elif cell.key.condition.overlaps:
        is_at_rate = cell.key.condition.request_rate is not None
        seconds = _token_s if is_at_rate else attrgetter("record.seconds")
        costs = [math.log(seconds(base) / seconds(spec)) for base, spec in cell.pass_pairs]
    else:
        out = stalls(cell).left_out
        pairs = (pair for i, pair in enumerate(cell.pairs) if i not in out)
        costs = [math.log(seconds_per_round(b) / seconds_per_round(s)) for b, s in pairs]
    return machine_prior(cell).with_run([cost for cost in costs if not math.isnan(cost)])


def _token_s(served: Pass) -> float:
    """Decode seconds per token of a pass; NaN without any."""
    return step_s(finished(served.requests)) or math.nan


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
