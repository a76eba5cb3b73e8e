"""Whether a cell may be used: identities of a correct decoder, each reason why not, and
warnings.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from statistics import median

import numpy as np

from specbench.metrics.acceptance import (
    acceptance_histogram,
    acceptance_rate_per_position,
    mean_acceptance_length,
)
from specbench.metrics.cell import (
    CellData,
    Pass,
    finished,
    finished_baseline,
    have_same_text,
    num_server_drafts,
    once_a_baseline,
)
from specbench.metrics.pairs import paired_end_to_end, session_log_speeds
from specbench.metrics.registry import Value
from specbench.metrics.rounds import num_rounds
from specbench.metrics.server_facts import is_like_hardware, session_differences
from specbench.metrics.speed import saturation
from specbench.records import (
    DeviceSample,
    Kind,
    Reason,
    RequestRecord,
    RoundLog,
    RoundTimeline,
)
from specbench.stats.crossed import sessions_p_value
from specbench.stats.machine_noise import MachineKind

# Rules that hold for a correct decoder, by the kind that names a violation.
_ROUND_IDENTITIES: Mapping[Kind, Callable[[int, int, int, int], bool]] = {
    Kind.ACCEPTED_TOO_MANY: lambda drafted, accepted, _, k: 0 <= accepted <= min(drafted, k),
    Kind.EMITTED_OUTSIDE: (
        lambda _, accepted, emitted, __: emitted != 0 and accepted <= emitted <= accepted + 1
    ),
}
_REQUEST_IDENTITIES: Mapping[Kind, Callable[[RequestRecord, RoundLog], bool]] = {
    Kind.TOKENS_UNEXPLAINED: (
        lambda request, log: (
            request.num_output_tokens == 1 + request.num_checked_at_once + sum(log.num_emitted)
        )
    ),
    Kind.CHECK_IMPOSSIBLE: (
        lambda request, _: (
            (check := request.answer_check) is None
            or 0 <= check.num_accepted <= min(check.num_drafted, check.num_emitted)
        )
    ),
}
_PASS_IDENTITIES: Mapping[Kind, Callable[[Pass, RoundTimeline, int], bool]] = {
    Kind.ROUND_OVER_K: lambda _, rounds, k: all(0 <= n <= k for n in rounds.num_speculative_tokens),
    Kind.LIVE_OVER_ROWS: (
        lambda _, rounds, __: all(
            0 <= live <= rows for live, rows in zip(rounds.num_live, rounds.num_rows, strict=True)
        )
    ),
    Kind.TIME_LINE_DIFFERS: (
        lambda served, rounds, _: (
            sum(rounds.num_emitted)
            == sum(r.num_output_tokens - 1 - r.num_checked_at_once for r in served.requests)
        )
    ),
}


def broken_identities(requests: tuple[RequestRecord, ...], k: int) -> Iterator[Reason]:
    """Identities that requests break, with how many do; equal rounds are checked once."""
    logged = [(request, request.rounds) for request in requests if request.rounds is not None]
    kinds = set(chain.from_iterable(_counts(log) for _, log in logged))
    broken: list[tuple[Kind, list[RequestRecord]]] = []
    for identity, is_sound in _ROUND_IDENTITIES.items():
        wrong = {kind for kind in kinds if not is_sound(*kind, k)}
        broken.append(
            (identity, [r for r, log in logged if wrong and not wrong.isdisjoint(_counts(log))])
        )
    for identity, holds in _REQUEST_IDENTITIES.items():
        broken.append((identity, [request for request, log in logged if not holds(request, log)]))
    for identity, breaking in broken:
        if breaking:
            prompt = breaking[0].prompt_id
            yield identity(broken=len(breaking), requests=len(logged), prompt=prompt)


def broken_passes(passes: tuple[Pass, ...], k: int) -> Iterator[Reason]:
    """Identities that passes without a failed request break."""
    whole = [p for p in passes if len(finished(p.requests)) == len(p.requests)]
    logged = [(p, p.record.rounds) for p in whole if p.record.rounds is not None]
    for identity, holds in _PASS_IDENTITIES.items():
        broken = sum(not holds(served, rounds, k) for served, rounds in logged)
        if broken:
            yield identity(broken=broken, passes=len(logged))


def _counts(log: RoundLog) -> Iterator[tuple[int, int, int]]:
    return zip(log.num_drafted, log.num_accepted, log.num_emitted, strict=True)


MIN_ROUNDS = 30
MIN_CLOCK_SHARE = 0.75  # of the default SM clock
# Cards at their power limit (L4, A10, laptops) are always slowed: that is the speed they have.
POWER_CAP = "sw_power_cap"
MAX_CLOCK_GAP = 0.10  # between the SM clocks of a cell and its baseline, if either is capped
HALF_PRECISION = ("bfloat16", "float16")
MAX_TIME_GAP = 0.10  # rounds and decode seconds may differ by their bookkeeping
SUSPICIOUS_ACCEPTANCE = 0.995  # at position 1: repetitive or random prompts
MIN_SEEDS = 3  # per prompt at temperature > 0
DIFFERING_SESSIONS = 0.001  # how often sessions that differ by chance are called out, per cell
MAX_LENGTH_GAP = 0.10  # of mean output lengths at temperature > 0


def judge_cell(cell: CellData) -> tuple[Reason, ...]:
    """Why the cell must not be used for a recommendation; empty: it is valid.

    The device and the identities are judged over the cell and its baseline, since a speedup
    is made of both.
    """
    if not cell.finished:
        return (*_failed(cell.requests), Kind.NOTHING_FINISHED())
    base = finished_baseline(cell)
    return (
        *_failed(cell.requests),
        *_of_baseline(*_failed(cell.baseline)),
        *_too_few_rounds(cell),
        *filter(None, [cell.faulty_streams]),
        *_of_baseline(*filter(None, [cell.baseline_faulty_streams])),
        *filter(None, [cell.client_bound]),
        *_never_drafted(cell),
        *_differing_servers(cell, is_invalid=True),
        *_throttled_servers(cell),
        *_device_reasons((*cell.finished, *base)),
        *_different_clocks_at_cap(cell.finished, base),
        *broken_identities(cell.finished, cell.k),
        *broken_passes(cell.passes, cell.k),
        *_broken_times(cell.finished, overlapping=cell.key.condition.overlaps),
        *_of_baseline(*_broken_baseline(cell)),
        *_broken_totals(cell),
    )


def cell_warnings(cell: CellData) -> tuple[Reason, ...]:
    """Warnings about a cell that is still valid."""
    return (
        *_whole_requests(cell),
        *_differing_servers(cell, is_invalid=False),
        *_power_capped(cell),
        *suspicious_acceptance(acceptance_rate_per_position(cell)),
        *_differing_outputs(cell),
        *_differing_graphs(cell),
        *_few_seeds(cell),
        *_cycles_left_out(cell),
        *_differing_sessions(cell),
        *filter(None, [saturation(cell)]),
    )


def _of_baseline(*reasons: Reason) -> Iterator[Reason]:
    return (Kind.OF_BASELINE(because=(reason,)) for reason in reasons)


def _failed(requests: Sequence[RequestRecord]) -> Iterator[Reason]:
    failures = [request for request in requests if request.finish_reason == "failed"]
    if failures:
        yield Kind.REQUESTS_FAILED(
            failed=len(failures), requests=len(requests), error=failures[0].error
        )


def _too_few_rounds(cell: CellData) -> Iterator[Reason]:
    known = num_rounds(cell)
    if known is not None or any(request.rounds is not None for request in cell.finished):
        known = known or 0
        # The rounds that the tokens of a check would have taken at least.
        spared = sum(-(-r.num_checked_at_once // (cell.k + 1)) for r in cell.finished)
        if known + spared < MIN_ROUNDS:
            yield Kind.TOO_FEW_ROUNDS(needed=MIN_ROUNDS)


def _never_drafted(cell: CellData) -> Iterator[Reason]:
    """A server at K that counted no draft token; nothing if it does not count them."""
    if cell.servers and cell.k and num_server_drafts(cell) == 0:
        tokens = sum(request.num_output_tokens for request in cell.finished)
        yield Kind.NEVER_DRAFTED(k=cell.k, tokens=tokens, requests=len(cell.finished))


def _differing_servers(cell: CellData, *, is_invalid: bool) -> Iterator[Reason]:
    """The facts in which the server differs from that of K = 0: the cell is invalid if seconds
    depend on one of them, else speedups are compared, with a warning."""
    differences = session_differences(cell.baseline_servers, cell.servers)
    if differences and any(is_like_hardware(d.name) for d in differences) is is_invalid:
        kind = Kind.SERVERS_UNLIKE if is_invalid else Kind.SERVERS_DIFFER
        yield kind(facts=tuple(Kind.FACT_CHANGED(**d._asdict()) for d in differences))


def _throttled_servers(cell: CellData) -> Iterator[Reason]:
    servers = (*cell.servers, *cell.baseline_servers)
    names = {name for server in servers for name in server.throttle_reasons} - {POWER_CAP}
    if names:
        yield Kind.SERVER_THROTTLED(reasons=tuple(sorted(names)))


def _device_reasons(requests: tuple[RequestRecord, ...]) -> Iterator[Reason]:
    samples = [request.device for request in requests if request.device is not None]
    throttled = [set(sample.throttle_reasons) - {POWER_CAP} for sample in samples]
    if any(throttled):
        yield Kind.THROTTLED(
            throttled=sum(map(bool, throttled)),
            requests=len(requests),
            reasons=tuple(sorted(set().union(*throttled))),
        )
    uncapped = (sample for sample in samples if POWER_CAP not in sample.throttle_reasons)
    slow = [share for share in map(_clock_share, uncapped) if share < MIN_CLOCK_SHARE]
    if slow:
        yield Kind.SLOW_CLOCK(
            lowest=min(slow), least=MIN_CLOCK_SHARE, slow=len(slow), requests=len(requests)
        )
    shared = sum(bool(sample.num_other_processes) for sample in samples)
    if shared:
        yield Kind.GPU_SHARED(shared=shared, requests=len(requests))


def _different_clocks_at_cap(
    requests: Sequence[RequestRecord], baseline: Sequence[RequestRecord]
) -> Iterator[Reason]:
    """A power cap that gave K and K = 0 different clocks."""
    if not any(map(_is_capped, (*requests, *baseline))):
        return
    clocks = [
        [r.device.sm_clock_mhz for r in side if r.device and r.device.sm_clock_mhz]
        for side in (requests, baseline)
    ]
    if all(clocks):
        clock, plain = (median(side) for side in clocks)
        if abs(clock / plain - 1) > MAX_CLOCK_GAP:
            yield Kind.CLOCKS_DIFFER(clock=clock, baseline=plain, most=MAX_CLOCK_GAP)


def _whole_requests(cell: CellData) -> Iterator[Reason]:
    """What the times of whole requests show if those of their streams are wrong."""
    seconds = paired_end_to_end(cell)
    if seconds is not None and (cell.faulty_streams or cell.baseline_faulty_streams):
        yield Kind.WHOLE_REQUESTS(speedup=seconds.speedup)


def _power_capped(cell: CellData) -> Iterator[Reason]:
    if num_capped := sum(map(_is_capped, cell.finished)):
        yield Kind.POWER_CAPPED(capped=num_capped, requests=len(cell.finished))
    elif any(POWER_CAP in server.throttle_reasons for server in cell.servers):
        yield Kind.SERVER_POWER_CAPPED()


def _is_capped(request: RequestRecord) -> bool:
    return request.device is not None and POWER_CAP in request.device.throttle_reasons


def _clock_share(sample: DeviceSample) -> float:
    if sample.sm_clock_mhz is None or not sample.sm_clock_default_mhz:
        return 1.0
    return sample.sm_clock_mhz / sample.sm_clock_default_mhz


def _broken_times(requests: tuple[RequestRecord, ...], *, overlapping: bool) -> Iterator[Reason]:
    """Rounds, and a check before them, take all the time of decoding. If requests overlap, prefills
    of other requests take a part of it."""
    timed = [(r.rounds, r.decode_s) for r in requests if r.rounds is not None and r.decode_s]
    round_s = sum(sum(log.round_s) for log, _ in timed)
    round_s += sum(r.answer_check.seconds for r in requests if r.answer_check)
    decode_s = sum(seconds for _, seconds in timed)
    gap_s = round_s - decode_s if overlapping else abs(round_s - decode_s)
    if gap_s > MAX_TIME_GAP * decode_s:
        yield Kind.TIMES_DIFFER(round_s=round_s, decode_s=decode_s)


@once_a_baseline
def _broken_baseline(cell: CellData) -> tuple[Reason, ...]:
    base = finished_baseline(cell)
    return (
        *broken_identities(base, 0),
        *broken_passes(cell.baseline_passes, 0),
        *_broken_times(base, overlapping=cell.key.condition.overlaps),
    )


def _broken_totals(cell: CellData) -> Iterator[Reason]:
    histogram, rounds = acceptance_histogram(cell), num_rounds(cell)
    if histogram is not None and sum(histogram) != rounds:
        yield Kind.HISTOGRAM_DIFFERS(histogram=sum(histogram), rounds=rounds)
    if histogram is not None and min(histogram) < 0:
        yield Kind.HISTOGRAM_NEGATIVE()
    length = mean_acceptance_length(cell)
    if length is not None and length > cell.k + 1:
        yield Kind.LENGTH_OUTSIDE(metric="mean_acceptance_length", length=length)


def suspicious_acceptance(rates: Value | None) -> Iterator[Reason]:
    """Warnings about implausible acceptance rates per position."""
    if isinstance(rates, tuple) and rates and rates[0] > SUSPICIOUS_ACCEPTANCE:
        yield Kind.SUSPICIOUS_ACCEPTANCE(share=rates[0])


def _differing_outputs(cell: CellData) -> Iterator[Reason]:
    if not cell.pairs:
        return
    lossy = cell.key.draft.lossy
    if cell.key.condition.temperature == 0:
        differing = sum(not have_same_text(base, spec) for base, spec in cell.pairs)
        if differing:
            counts = {"differing": differing, "compared": len(cell.pairs)}
            if lossy is not None:
                yield Kind.OUTPUTS_MAY_DIFFER(**counts, rule=lossy)
            elif (dtype := cell.key.condition.dtype) in HALF_PRECISION:
                worst = max(
                    cell.differences,
                    key=lambda difference: difference.gap / difference.spacing,
                    default=None,
                )
                gap = worst and Kind.FIRST_DIFFERENCES(
                    outputs=len(cell.differences),
                    gap=worst.gap,
                    steps=worst.gap / worst.spacing,
                    dtype=dtype,
                )
                yield Kind.NEAR_TIES(**counts, dtype=dtype, worst=(gap,) if gap else ())
            else:
                yield Kind.OUTPUTS_DIFFER(**counts)
        if lossy is None:
            return
    base_tokens = sum(base.num_output_tokens for base, _ in cell.pairs) / len(cell.pairs)
    spec_tokens = sum(spec.num_output_tokens for _, spec in cell.pairs) / len(cell.pairs)
    if abs(spec_tokens - base_tokens) > MAX_LENGTH_GAP * base_tokens:
        yield Kind.OUTPUT_LENGTHS_DIFFER(tokens=spec_tokens, baseline=base_tokens)


def _differing_graphs(cell: CellData) -> Iterator[Reason]:
    """Requests whose rounds were started otherwise than those of K = 0."""
    differing = Counter((b.graph, s.graph) for b, s in cell.pairs if b.graph != s.graph)
    for (base, spec), count in differing.items():
        yield Kind.GRAPHS_DIFFER(
            graph=spec, baseline=base, differing=count, requests=len(cell.pairs)
        )


def _few_seeds(cell: CellData) -> Iterator[Reason]:
    if cell.key.condition.temperature == 0:
        return
    seeds: dict[str, set[tuple[int, int]]] = {}
    for request in cell.finished:
        seeds.setdefault(request.prompt_id, set()).add((request.repeat, request.sample))
    fewest = min(map(len, seeds.values()), default=MIN_SEEDS)
    if fewest < MIN_SEEDS:
        temperature = cell.key.condition.temperature
        yield Kind.FEW_SEEDS(needed=MIN_SEEDS, temperature=temperature, fewest=fewest)


def _cycles_left_out(cell: CellData) -> Iterator[Reason]:
    if cell.num_bound_cycles and not cell.client_bound:
        kept = len(set(cell.cycles.values()))
        num_bound = cell.num_bound_cycles
        yield Kind.CYCLES_LEFT_OUT(left_out=num_bound, cycles=num_bound + kept)


def _differing_sessions(cell: CellData) -> Iterator[Reason]:
    """Sessions with different speeds; not in open loop, whose sessions have different arrivals."""
    if not cell.sessions or cell.key.condition.request_rate is not None:
        return
    log_speeds = session_log_speeds(cell)
    is_started = any(server.command for server in cell.servers)
    kind = MachineKind.SHARED_CPU if is_started else MachineKind.SERVER
    p_value = sessions_p_value(log_speeds, kind.assumed)
    if p_value < DIFFERING_SESSIONS:
        means = log_speeds.mean(axis=1)
        low, high = np.exp([means.min(), means.max()] - np.median(means))
        yield Kind.SESSIONS_DIFFER(slowest=float(low), fastest=float(high))
