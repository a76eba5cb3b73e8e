"""Costs of a round, part by part, and its bounds: memory reads and the host.

Limits are measured next to a cell's blocks; each number is the median over them.
"""

from collections.abc import Iterable
from itertools import chain
from statistics import fmean, median

from specbench.metrics.cell import CellData, finished_baseline, once_a_baseline, once_a_cell
from specbench.metrics.registry import metric
from specbench.records import RequestRecord
from specbench.stats.rounds import RoundCounts, roofline_s
from specbench.stats.summaries import median_of, percentile

_STEADY = 0.95  # a round contains its forwards and a baseline step: a lower ratio is a fault


@metric(unit="rounds", better=None)
def num_rounds(cell: CellData) -> int | None:
    """Rounds of all finished requests; prefill is not a round."""
    if cell.rounds is not None:
        return len(cell.rounds)
    return None if cell.acceptance is None else int(cell.acceptance.num_rounds)


@metric(unit="s", better="lower", low=0, label="round ms")
@once_a_cell
def round_s(cell: CellData) -> float | None:
    """Mean seconds of a round: propose, verify, emit; at K = 0 one baseline step. A round
    verified together with the prompt has no seconds of its own. For a server: decode seconds / the
    rounds that it counted.
    """
    if cell.servers:
        return _served_round_s(cell.finished, cell.acceptance) if cell.k else step_s(cell.finished)
    timed_s = cell.rounds.timed_s if cell.rounds else ()
    return fmean(timed_s) if timed_s else None


@metric(unit="s", better="lower")
@once_a_cell
def round_s_p50(cell: CellData) -> float | None:
    """Median seconds of a round."""
    return median_of(cell.rounds.timed_s) if cell.rounds else None


@metric(unit="s", better="lower")
def round_s_p95(cell: CellData) -> float | None:
    """95th percentile of the seconds of a round; absent below 20 rounds."""
    return percentile(cell.rounds.timed_s, 95) if cell.rounds else None


@metric(unit="s", better="lower")
@once_a_cell
def draft_s(cell: CellData) -> float | None:
    """Mean seconds of a round spent on proposing."""
    rounds = cell.speculative_rounds
    return fmean(rounds.draft_s) if rounds and rounds.draft_s else None


@metric(unit="s", better="lower")
@once_a_cell
def verify_s(cell: CellData) -> float | None:
    """Mean seconds of a round spent on the target's forward and the acceptance test."""
    rounds = cell.speculative_rounds
    return fmean(rounds.verify_s) if rounds and rounds.verify_s else None


@metric(unit="s", better="lower")
def other_s(cell: CellData) -> float | None:
    """round_s - draft_s - verify_s: bookkeeping of the round."""
    whole, draft, verify = round_s(cell), draft_s(cell), verify_s(cell)
    if whole is None or draft is None or verify is None:
        return None
    return whole - draft - verify


@metric(unit="steps/token", better="lower", low=0)
def draft_cost_ratio(cell: CellData) -> float | None:
    """c = draft_s / (K * baseline step): the cost of one of the K draft tokens.

    Absent for an adaptive K and for p_min, whose rounds do not draft equally many tokens.
    """
    step, draft = _baseline_step_s(cell), draft_s(cell)
    if step is None or draft is None or cell.key.draft.stops_early:
        return None
    return draft / (cell.k * step)


@metric(unit="steps", better="lower", low=0)
def verify_cost_ratio(cell: CellData) -> float | None:
    """v = verify_s / baseline step: the cost of verifying K + 1 tokens in one pass."""
    step, verify = _baseline_step_s(cell), verify_s(cell)
    return None if step is None or verify is None else verify / step


@metric(unit="tokens/round", better="lower", low=_STEADY, label="break-even")
def break_even_length(cell: CellData) -> float | None:
    """Acceptance length above which speculation pays: K c + v + h = round_s / baseline step.

    Absent below 0.95: then the machine was not steady enough.
    """
    step, whole = _baseline_step_s(cell), round_s(cell)
    return None if step is None or whole is None or cell.k == 0 else whole / step


@metric(unit="x", better="lower", low=_STEADY, label="overhead")
def overhead_ratio(cell: CellData) -> float | None:
    """Seconds of a round / seconds of its model forwards, each measured separately in between.

    These are, for a draft model, K forwards over 1 token and the target's over K + 1; for a head,
    the parts of its work and the target's forward.
    Absent below 0.95: then the machine was not steady enough.
    """
    rounds = [cost.round_s for cost in cell.forwards if cost.round_s is not None]
    forwards_s = _model_forwards_s(cell)
    return median(rounds) / forwards_s if rounds and forwards_s else None


def _model_forwards_s(cell: CellData) -> float:
    """Sum over a round's forwards of their medians over the blocks."""
    seconds: dict[tuple[str, str, int, int], list[float]] = {}
    for cost in cell.forwards:
        shape = (cost.role, cost.part, cost.num_tokens, cost.num_per_round)
        seconds.setdefault(shape, []).append(cost.seconds)
    return sum(count * median(samples) for (*_, count), samples in seconds.items())


def _baseline_step_s(cell: CellData) -> float | None:
    return _served_baseline_step_s(cell) if cell.servers else _logged_baseline_step_s(cell)


@once_a_baseline
def _served_baseline_step_s(cell: CellData) -> float | None:
    return step_s(finished_baseline(cell))


@once_a_baseline
def _logged_baseline_step_s(cell: CellData) -> float | None:
    logs = [request.rounds.round_s for request in finished_baseline(cell) if request.rounds]
    return fmean([*chain.from_iterable(logs)]) if logs else None


def step_s(requests: Iterable[RequestRecord]) -> float | None:
    """Seconds per token without speculation."""
    timed = [request for request in requests if request.decode_s and request.num_timed_tokens > 0]
    tokens = sum(request.num_timed_tokens for request in timed)
    return sum(request.decode_s or 0.0 for request in timed) / tokens if tokens else None


def _served_round_s(requests: Iterable[RequestRecord], counts: RoundCounts | None) -> float | None:
    """Mean seconds of a round of a server, without the rounds of the first tokens.

    Those are not timed; their number follows from their share of the tokens. None if neither the
    requests nor the server's counters give rounds.
    """
    if counts is None or not counts.num_emitted:
        return None
    seconds, rounds = 0.0, 0.0
    for request in requests:
        later = request.num_output_tokens - 1
        if request.decode_s and later:
            whole = later * counts.num_rounds / counts.num_emitted
            if request.counts is not None:
                whole = request.counts.num_rounds
            seconds += request.decode_s
            rounds += whole * request.num_timed_tokens / later
    return seconds / rounds if rounds else None


@metric(unit="s", better="lower")
def roofline_round_s(cell: CellData) -> float | None:
    """Bytes that a round's forwards must read (weights, and keys and values in use) /
    measured copy bandwidth, in bytes read + written per second.

    Memory's side of the roofline; what fits a cache can be read faster.
    """
    return median_of(
        roofline_s(limit.bytes_per_round, limit.copy_bytes_per_s)
        for limit in cell.limits
        if limit.bytes_per_round is not None and limit.copy_bytes_per_s
    )


@metric(unit="x", better="lower")
def roofline_ratio(cell: CellData) -> float | None:
    """round_s_p50 / roofline_round_s: how far a round is from what memory allows."""
    typical, least = round_s_p50(cell), roofline_round_s(cell)
    return None if typical is None or not least else typical / least


@metric(unit="fraction", better="higher", label="bandwidth")
def bandwidth_utilization(cell: CellData) -> float | None:
    """Used share of the copy bandwidth: bytes that a round must read / (round_s_p50 * bytes
    copied per second, read + written); only on a GPU.
    """
    ratio = roofline_ratio(cell)
    return 1 / ratio if ratio and _is_on_gpu(cell) else None


@metric(unit="launches/round", better="lower")
def launches_per_round(cell: CellData) -> float | None:
    """Kernel and graph launches per round, from the profiler; a graph counts as one."""
    return median_of(limit.launches_per_round for limit in cell.limits)


@metric(unit="waits/round", better="lower")
def syncs_per_round(cell: CellData) -> float | None:
    """Number of times per round that the host waits for the device, by the profiler."""
    return median_of(limit.syncs_per_round for limit in cell.limits)


@metric(unit="s", better="lower", label="idle ms")
def device_idle_s(cell: CellData) -> float | None:
    """Seconds per round in which the GPU waits for the host: (decode_s - round_s of its rounds -
    predicted-output checks) / rounds, by the GPU's clock.

    Absent if requests overlap.
    """
    if cell.key.condition.overlaps or not _is_on_gpu(cell):
        return None
    timed = [
        (r, r.rounds, r.decode_s) for r in cell.finished if r.rounds and r.decode_s is not None
    ]
    num_rounds = sum(len(log) for _, log, _ in timed)
    if not num_rounds:
        return None
    checks_s = sum(r.answer_check.seconds for r, *_ in timed if r.answer_check)
    idle_s = sum(decode_s - sum(log.round_s) for _, log, decode_s in timed) - checks_s
    return max(idle_s, 0.0) / num_rounds


def _is_on_gpu(cell: CellData) -> bool:
    return any(limit.device.startswith("cuda") for limit in cell.limits)
