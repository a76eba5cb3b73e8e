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
    once_a_baseline,
)
from specbench.metrics.pairs import paired_end_to_end, session_log_speeds
from specbench.metrics.registry import Value
from specbench.metrics.rounds import num_rounds
from specbench.metrics.speed import saturation
from specbench.records import (
    DeviceSample,
    RequestRecord,
    RoundLog,
    RoundTimeline,
)
from specbench.stats.crossed import CYCLE_SD, RUNNING_SD, sessions_p_value

# Rules that hold for a correct decoder, by the text that names a violation.
_ROUND_IDENTITIES: Mapping[str, Callable[[int, int, int, int], bool]] = {
    "num_accepted > num_drafted or num_accepted > K": (
        lambda drafted, accepted, _, k: 0 <= accepted <= min(drafted, k)
    ),
    "num_emitted outside num_accepted .. num_accepted + 1, or 0": (
        lambda _, accepted, emitted, __: emitted != 0 and accepted <= emitted <= accepted + 1
    ),
}
_REQUEST_IDENTITIES: Mapping[str, Callable[[RequestRecord, RoundLog], bool]] = {
    "output tokens are not 1 + predicted-output tokens + sum of num_emitted": (
        lambda request, log: (
            request.num_output_tokens == 1 + request.num_checked_at_once + sum(log.num_emitted)
        )
    ),
    "the check of a predicted output accepts more than it drafts or emits": (
        lambda request, _: (
            (check := request.answer_check) is None
            or 0 <= check.num_accepted <= min(check.num_drafted, check.num_emitted)
        )
    ),
}
_PASS_IDENTITIES: Mapping[str, Callable[[Pass, RoundTimeline, int], bool]] = {
    "a round exceeds the cell's K": (
        lambda _, rounds, k: all(0 <= n <= k for n in rounds.num_speculative_tokens)
    ),
    "num_live > num_rows": (
        lambda _, rounds, __: all(
            0 <= live <= rows for live, rows in zip(rounds.num_live, rounds.num_rows, strict=True)
        )
    ),
    "tokens on the time line do not match its requests": (
        lambda served, rounds, _: (
            sum(rounds.num_emitted)
            == sum(r.num_output_tokens - 1 - r.num_checked_at_once for r in served.requests)
        )
    ),
}


def broken_identities(requests: tuple[RequestRecord, ...], k: int) -> Iterator[str]:
    """Identities that requests break, with how many do; equal rounds are checked once."""
    logged = [(request, request.rounds) for request in requests if request.rounds is not None]
    kinds = set(chain.from_iterable(_counts(log) for _, log in logged))
    broken: list[tuple[str, list[RequestRecord]]] = []
    for text, is_sound in _ROUND_IDENTITIES.items():
        wrong = {kind for kind in kinds if not is_sound(*kind, k)}
        broken.append(
            (text, [r for r, log in logged if wrong and not wrong.isdisjoint(_counts(log))])
        )
    for text, holds in _REQUEST_IDENTITIES.items():
        broken.append((text, [request for request, log in logged if not holds(request, log)]))
    for text, breaking in broken:
        if breaking:
            count = f"{len(breaking)} of {len(logged)} requests"
            yield f"identity broken: {text} ({count}, first {breaking[0].prompt_id})"


def broken_passes(passes: tuple[Pass, ...], k: int) -> Iterator[str]:
    """Identities that passes without a failed request break."""
    whole = [p for p in passes if len(finished(p.requests)) == len(p.requests)]
    logged = [(p, p.record.rounds) for p in whole if p.record.rounds is not None]
    for text, holds in _PASS_IDENTITIES.items():
        broken = sum(not holds(served, rounds, k) for served, rounds in logged)
        if broken:
            yield f"identity broken: {text} ({broken} of {len(logged)} passes)"


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


def judge_cell(cell: CellData) -> tuple[str, ...]:
    """Why the cell must not be used for a recommendation; empty: it is valid.

    The device and the identities are judged over the cell and its baseline, since a speedup
    is made of both.
    """
    if not cell.finished:
        return (*_failed(cell), "no request finished")
    base = finished_baseline(cell)
    return (
        *_failed(cell),
        *_too_few_rounds(cell),
        *_faulty_streams(cell),
        *filter(None, [cell.client_bound]),
        *_throttled_servers(cell),
        *_device_reasons((*cell.finished, *base)),
        *_different_clocks_at_cap(cell.finished, base),
        *broken_identities(cell.finished, cell.k),
        *broken_passes(cell.passes, cell.k),
        *_broken_times(cell.finished, overlapping=cell.key.condition.overlaps),
        *_broken_baseline(cell),
        *_broken_totals(cell),
    )


def cell_warnings(cell: CellData) -> tuple[str, ...]:
    """Warnings about a cell that is still valid."""
    return (
        *_whole_requests(cell),
        *_power_capped(cell),
        *suspicious_acceptance(acceptance_rate_per_position(cell)),
        *_differing_outputs(cell),
        *_differing_graphs(cell),
        *_few_seeds(cell),
        *_cycles_left_out(cell),
        *_differing_sessions(cell),
        *filter(None, [saturation(cell)]),
    )


def _failed(cell: CellData) -> Iterator[str]:
    failures = [request for request in cell.requests if request.finish_reason == "failed"]
    if failures:
        yield f"{len(failures)} of {len(cell.requests)} requests failed: {failures[0].error}"


def _too_few_rounds(cell: CellData) -> Iterator[str]:
    known = num_rounds(cell)
    if known is not None or any(request.rounds is not None for request in cell.finished):
        known = known or 0
        # The rounds that the tokens of a check would have taken at least.
        spared = sum(-(-r.num_checked_at_once // (cell.k + 1)) for r in cell.finished)
        if known + spared < MIN_ROUNDS:
            yield f"fewer than {MIN_ROUNDS} rounds"


def _faulty_streams(cell: CellData) -> Iterator[str]:
    if cell.faulty_streams:
        yield str(cell.faulty_streams)
    if cell.baseline_faulty_streams:
        yield f"baseline: {cell.baseline_faulty_streams}"


def _throttled_servers(cell: CellData) -> Iterator[str]:
    servers = (*cell.servers, *cell.baseline_servers)
    names = {name for server in servers for name in server.throttle_reasons} - {POWER_CAP}
    if names:
        yield f"a GPU throttled: {', '.join(sorted(names))}"


def _device_reasons(requests: tuple[RequestRecord, ...]) -> Iterator[str]:
    samples = [request.device for request in requests if request.device is not None]
    throttled = [set(sample.throttle_reasons) - {POWER_CAP} for sample in samples]
    if any(throttled):
        names = ", ".join(sorted(set().union(*throttled)))
        yield f"throttled in {sum(map(bool, throttled))} of {len(requests)} requests: {names}"
    uncapped = (sample for sample in samples if POWER_CAP not in sample.throttle_reasons)
    slow = [share for share in map(_clock_share, uncapped) if share < MIN_CLOCK_SHARE]
    if slow:
        yield (
            f"SM clock down to {min(slow):.0%} of default, "
            f"under {MIN_CLOCK_SHARE:.0%} in {len(slow)} of {len(requests)} requests"
        )
    shared = sum(bool(sample.num_other_processes) for sample in samples)
    if shared:
        yield f"another process on the GPU in {shared} of {len(requests)} requests"


def _different_clocks_at_cap(
    requests: Sequence[RequestRecord], baseline: Sequence[RequestRecord]
) -> Iterator[str]:
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
            yield (
                f"at the power cap the SM clock was {clock:.0f} MHz, and {plain:.0f} MHz at K=0: "
                f"more than {MAX_CLOCK_GAP:.0%} apart; set one for both (nvidia-smi -lgc)"
            )


def _whole_requests(cell: CellData) -> Iterator[str]:
    """What the times of whole requests show if those of their streams are wrong."""
    seconds = paired_end_to_end(cell)
    if seconds is not None and (cell.faulty_streams or cell.baseline_faulty_streams):
        yield (
            f"whole requests, from sending to the last token, are {seconds.speedup:.2f}x as fast "
            "as at K=0: no decode speed, but right without the times within the streams"
        )


def _power_capped(cell: CellData) -> Iterator[str]:
    if num_capped := sum(map(_is_capped, cell.finished)):
        yield f"the GPU was at its power cap in {num_capped} of {len(cell.finished)} requests"
    elif any(POWER_CAP in server.throttle_reasons for server in cell.servers):
        yield "a GPU was at its power cap"


def _is_capped(request: RequestRecord) -> bool:
    return request.device is not None and POWER_CAP in request.device.throttle_reasons


def _clock_share(sample: DeviceSample) -> float:
    if sample.sm_clock_mhz is None or not sample.sm_clock_default_mhz:
        return 1.0
    return sample.sm_clock_mhz / sample.sm_clock_default_mhz


def _broken_times(requests: tuple[RequestRecord, ...], *, overlapping: bool) -> Iterator[str]:
    """Rounds, and a check before them, take all the time of decoding. If requests overlap, prefills
    of other requests take a part of it."""
    timed = [(r.rounds, r.decode_s) for r in requests if r.rounds is not None and r.decode_s]
    round_s = sum(sum(log.round_s) for log, _ in timed)
    round_s += sum(r.answer_check.seconds for r in requests if r.answer_check)
    decode_s = sum(seconds for _, seconds in timed)
    gap_s = round_s - decode_s if overlapping else abs(round_s - decode_s)
    if gap_s > MAX_TIME_GAP * decode_s:
        yield f"identity broken: rounds take {round_s:.3g} s, decoding {decode_s:.3g} s"


@once_a_baseline
def _broken_baseline(cell: CellData) -> tuple[str, ...]:
    base = finished_baseline(cell)
    reasons = (
        *broken_identities(base, 0),
        *broken_passes(cell.baseline_passes, 0),
        *_broken_times(base, overlapping=cell.key.condition.overlaps),
    )
    return tuple(f"baseline: {reason}" for reason in reasons)


def _broken_totals(cell: CellData) -> Iterator[str]:
    histogram, rounds = acceptance_histogram(cell), num_rounds(cell)
    if histogram is not None and sum(histogram) != rounds:
        yield f"identity broken: histogram sums to {sum(histogram):g}, not {rounds} rounds"
    if histogram is not None and min(histogram) < 0:
        yield "identity broken: more rounds accept drafts than there are"
    length = mean_acceptance_length(cell)
    if length is not None and length > cell.k + 1:
        yield f"identity broken: mean acceptance length {length:.2f} > K + 1"


def suspicious_acceptance(rates: Value | None) -> Iterator[str]:
    """Warnings about implausible acceptance rates per position."""
    if isinstance(rates, tuple) and rates and rates[0] > SUSPICIOUS_ACCEPTANCE:
        yield (
            f"position 1 is accepted in {rates[0]:.1%} of rounds: "
            "prompts may be repetitive or random; expect less speedup on other text"
        )


def _differing_outputs(cell: CellData) -> Iterator[str]:
    if not cell.pairs:
        return
    lossy = cell.key.draft.lossy
    if cell.key.condition.temperature == 0:
        differing = sum(not have_same_text(base, spec) for base, spec in cell.pairs)
        if differing:
            text = f"{differing} of {len(cell.pairs)} outputs differ from K=0 at temperature 0"
            if lossy is not None:
                text += f", as the rule {lossy} allows"
            elif (dtype := cell.key.condition.dtype) in HALF_PRECISION:
                text += f": {dtype} rounds near-ties differently for other numbers of tokens"
                if cell.differences:
                    worst = max(
                        cell.differences, key=lambda difference: difference.gap / difference.spacing
                    )
                    text += (
                        f" (at the first difference of {len(cell.differences)} outputs, the logits "
                        f"of the two tokens are at most {worst.gap:.3g} apart, "
                        f"{worst.gap / worst.spacing:.3g} x the spacing of {dtype} there)"
                    )
                text += "; `specbench verify` distinguishes them from faults"
            yield text
        if lossy is None:
            return
    base_tokens = sum(base.num_output_tokens for base, _ in cell.pairs) / len(cell.pairs)
    spec_tokens = sum(spec.num_output_tokens for _, spec in cell.pairs) / len(cell.pairs)
    if abs(spec_tokens - base_tokens) > MAX_LENGTH_GAP * base_tokens:
        yield f"mean output is {spec_tokens:.0f} tokens, {base_tokens:.0f} at K=0"


def _differing_graphs(cell: CellData) -> Iterator[str]:
    """Requests whose rounds were started otherwise than those of K = 0."""
    known = ((b.graph, s.graph) for b, s in cell.pairs if b.graph and s.graph)
    differing = Counter((base, spec) for base, spec in known if base != spec)
    for (base, spec), count in differing.items():
        yield (
            f"graph {spec} against {base} at K=0 in {count} of {len(cell.pairs)} requests: part "
            "of the difference is how rounds are started"
        )


def _few_seeds(cell: CellData) -> Iterator[str]:
    if cell.key.condition.temperature == 0:
        return
    seeds: dict[str, set[tuple[int, int]]] = {}
    for request in cell.finished:
        seeds.setdefault(request.prompt_id, set()).add((request.repeat, request.sample))
    fewest = min(map(len, seeds.values()), default=MIN_SEEDS)
    if fewest < MIN_SEEDS:
        temperature = f"temperature {cell.key.condition.temperature:g}"
        yield f"{MIN_SEEDS} seeds per prompt needed at {temperature}, some have {fewest}"


def _cycles_left_out(cell: CellData) -> Iterator[str]:
    if cell.num_bound_cycles and not cell.client_bound:
        kept = len(set(cell.cycles.values()))
        yield (
            f"{cell.num_bound_cycles} of {cell.num_bound_cycles + kept} cycles are left out: "
            "client-bound; keep a core free for the client"
        )


def _differing_sessions(cell: CellData) -> Iterator[str]:
    """Sessions with different speeds; not in open loop, whose sessions have different arrivals."""
    if not cell.sessions or cell.key.condition.request_rate is not None:
        return
    log_speeds = session_log_speeds(cell)
    is_started = any(server.command for server in cell.servers)
    p_value = sessions_p_value(log_speeds, CYCLE_SD if is_started else RUNNING_SD)
    if p_value < DIFFERING_SESSIONS:
        means = log_speeds.mean(axis=1)
        low, high = np.exp([means.min(), means.max()] - np.median(means))
        yield (
            f"sessions decode at {low:.2f}x to {high:.2f}x their median speed, further apart than "
            "noise explains: other load, another server or another build? Intervals of speedups "
            "allow for it unless it slowed one K more often than another"
        )
