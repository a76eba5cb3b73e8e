"""How noisy the machine was while a run was measured, as its own figures show it.

K = 0 is looked at: it has the same work in every block, whatever is drafted beside it.
"""

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, median

from specbench.metrics.cell import CellData
from specbench.records import CellKey, RequestRecord

UNEVEN = 1.3  # mean round over the median one: hiccups, not text
DRIFTED = 1.25  # K = 0 on one prompt, the slower time over the faster one, in the middle prompt
WAITED = 0.85  # CPU seconds per second of one busy thread
FEWEST_ROUNDS = 30
FEWEST_PROMPTS = 3

_OPTION = "--threads"
LIMITED_CLOCKS = "CPU clocks are limited"  # begins a fact that is as true in every other run
_NOISY = "noisy machine: "
_SO = (
    ". Intervals get wider and small gains stay undecided: stop other programs, or measure later "
    "or elsewhere; more --repeats also narrow them"
)


def noise_warning(facts: Sequence[str]) -> str:
    """The one warning about noise: what shows it, what it does, and what to do."""
    return f"{_NOISY}{'; '.join(facts)}{_SO}"


def with_results(warnings: Sequence[str], signs: Sequence[str]) -> list[str]:
    """The warnings of a run's start, with what its results show added to the one about noise."""
    if not signs:
        return list(warnings)
    rest = (warning for warning in warnings if not is_noise(warning))
    return [noise_warning(noise_facts(warnings, signs)), *rest]


def noise_facts(warnings: Sequence[str], signs: Sequence[str]) -> tuple[str, ...]:
    """What showed that the machine was busy, at the start of a run and in its results."""
    said = (w.removeprefix(_NOISY).removesuffix(_SO) for w in warnings if is_noise(w))
    early = [fact for facts in said for fact in facts.split("; ")]
    if any(_OPTION in fact for fact in early):  # advice is given once
        signs = [sign for sign in signs if _OPTION not in sign]
    return (*early, *signs)


def is_noise(warning: str) -> bool:
    """Whether a warning is the one about noise."""
    return warning.startswith(_NOISY)


def noise_signs(
    cells: Sequence[CellData], *, device: str, threads: int | None = None
) -> tuple[str, ...]:
    """What shows, in both measurements of cells in this process, that the machine did not keep its
    speed, in words. `threads` of a CPU: fewer would help."""
    plain = _plain(cells)
    requests = [request for cell in plain for request in cell.finished]
    is_cpu = device.startswith("cpu")
    share = cpu_share(cells) if is_cpu else None  # on a GPU a process may wait for its kernels
    waited = () if share is None or share >= WAITED else (share_fact(share),)
    signs = (*_uneven(requests), *_drifted(plain), *waited)
    if signs and is_cpu and threads is not None and threads > 1:
        return (*signs, f"{threads} threads wait for the slowest of them, {_OPTION} 1 does not")
    return signs


def cpu_share(cells: Iterable[CellData]) -> float | None:
    """CPU seconds of this process per second of K = 0, near 1 on a quiet CPU; None if unknown."""
    requests = (request for cell in _plain(cells) for request in cell.finished)
    timed = [(r.cpu_s, r.total_s) for r in requests if r.cpu_s is not None and r.total_s]
    return sum(cpu for cpu, _ in timed) / sum(total for _, total in timed) if timed else None


def share_fact(share: float) -> str:
    return f"this process got the CPU for {share:.0%} of the time"


def _plain(cells: Iterable[CellData]) -> list[CellData]:
    return [
        c for c in cells if c.key.draft.k == 0 and not c.servers and not c.key.condition.overlaps
    ]


def _uneven(requests: Iterable[RequestRecord]) -> Iterator[str]:
    """Rounds of K = 0 all do the same: their mean is near their median on a quiet machine."""
    rounds = [second for r in requests if r.rounds is not None for second in r.rounds.round_s]
    if len(rounds) >= FEWEST_ROUNDS and fmean(rounds) > UNEVEN * median(rounds):
        yield (
            f"a round of K = 0 took {fmean(rounds) * 1e3:.3g} ms on average and "
            f"{median(rounds) * 1e3:.3g} ms at the median"
        )


def _drifted(cells: Iterable[CellData]) -> Iterator[str]:
    """The same prompt, decoded at K = 0 in several blocks, takes as long in each."""
    times: dict[tuple[CellKey, str, int], list[float]] = {}
    for cell in cells:
        for request in cell.finished:
            if request.decode_s and request.num_timed_tokens > 0:
                place = cell.key, request.prompt_id, request.turn
                times.setdefault(place, []).append(request.decode_s / request.num_timed_tokens)
    ratios = [max(some) / min(some) for some in times.values() if len(some) > 1]
    if len(ratios) >= FEWEST_PROMPTS and median(ratios) > DRIFTED:
        yield f"K = 0 drifted by a factor of {median(ratios):.2f} between blocks of one prompt"
