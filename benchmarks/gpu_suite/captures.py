"""What the host does: graphs captured, kernels started, waits, memory taken."""

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.gpu_suite.claims import all_of, claim
from benchmarks.gpu_suite.decoders import GRAPHS, GREEDY, Pair, medium_pair
from benchmarks.gpu_suite.machine import NO_GPU, Json, Machine, absent
from specbench.decode.clock import Clock
from specbench.decode.decoder import Decoder, MakeLauncher
from specbench.decode.graphs import CudaGraphs, Launchers
from specbench.decode.launcher import GraphKind, Launcher, RoundLaunch
from specbench.decode.round import Verifier
from specbench.decode.rows import Rows
from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK
from specbench.probes.device import count_host_calls

K = 4
FEW_TOKENS, MANY_TOKENS = 10, 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """One kind of pass, and what its graphs cost."""

    num_rows: int
    k: int
    context: int
    num_captures: int  # 0 where an earlier pass met all its buckets
    capture_s: float  # warm-up runs included
    reserved_bytes: int  # of all graphs so far
    tokens_ok: bool  # every request got its tokens


def captures(machine: Machine) -> Json:
    """A graph for every number of rows, K and span; seconds of each and bytes of all."""
    if not machine.is_cuda:
        return absent(NO_GPU)
    pair = medium_pair(machine, torch.bfloat16, layers=8)
    launchers = Launchers("round", machine.device)
    assert launchers.graphs is not None, "CUDA has them"
    return captured(pair, launchers, launchers.graphs)


def captured(pair: Pair, launchers: MakeLauncher, graphs: CudaGraphs) -> Json:
    """The same of launchers that capture with `graphs`."""
    decoder = pair.decoder(make_launcher=launchers)
    most = pair.machine.pick(600, 100)
    buckets = [
        _bucket(pair, decoder, graphs, rows, k, context)
        for rows in (16, 4, 1)  # the most first, so that no cache is replaced
        for context in (most, most // 6)
        for k in (8, 4, 0)
    ]
    launcher = decoder.launcher
    assert launcher is not None, "it has served"
    num_right = sum(bucket.tokens_ok for bucket in buckets)
    is_whole = launcher.graph == "round" and launcher.reason is None
    return {
        "graph": launcher.graph,
        "reason_for_less": launcher.reason,
        "num_captures": graphs.num_captures,
        "capture_s": graphs.capture_s,
        "reserved_bytes": graphs.reserved_bytes,
        "buckets": [asdict(bucket) for bucket in buckets],
        "claims": [
            all_of("passes that give every token", num_right, len(buckets)),
            all_of("launchers that replay every bucket", int(is_whole), 1),
        ],
    }


def host_calls(machine: Machine) -> Json:
    """Kernels and graphs that the host starts in a round and its waits, by the profiler; then
    torch's own watch, which raises at a blocking call while a round is launched."""
    if not machine.is_cuda:
        return absent(NO_GPU)
    return calls_of(medium_pair(machine, torch.bfloat16, layers=8))


def calls_of(pair: Pair) -> Json:
    """The same of a pair."""
    counts = {f"{graph}, K={k}": _calls(pair, graph, k) for graph in GRAPHS for k in (K, 0)}
    watch, sees_a_wait = watched(pair), _sees_a_wait(pair.machine)
    one_graph = [
        claim(
            f"graphs a round at K={k}",
            counts[f"round, K={k}"].get("graphs_per_round"),
            at_least=1,
            at_most=1,
            reason=counts[f"round, K={k}"].get("reason"),
        )
        for k in (K, 0)
    ]
    no_wait = claim(
        "kinds of graph that launch rounds without a blocking call, of those that torch watched",
        len(watch) if sees_a_wait else None,  # the first such call ends the section
        at_least=len(GRAPHS),
        reason=None if sees_a_wait else "the watch does not see a planted wait",
    )
    return {
        "per_round": counts,
        "watch": watch,
        "watch_sees_a_wait": sees_a_wait,
        "claims": [*one_graph, no_wait],
    }


def memory(machine: Machine) -> Json:
    """200 requests of different lengths through 16 rows: all complete, and memory flat."""
    pair = medium_pair(machine, torch.bfloat16, layers=8)
    decoder = pair.decoder()
    num_requests = machine.pick(200, 12)
    requests = pair.requests(num_requests, prompt=16, new_tokens=machine.pick(64, 8))
    num_rows = machine.pick(16, 4)
    decoder.serve(requests[: 2 * num_rows], GREEDY, FixedK(K), num_rows=num_rows)
    before = _allocated(machine)
    if machine.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    served = decoder.serve(requests, GREEDY, FixedK(K), num_rows=num_rows)
    peak = torch.cuda.max_memory_allocated() if machine.is_cuda else None
    complete = [
        len(result.output_ids) == request.max_new_tokens
        for request, result in zip(requests, served.results, strict=True)
    ]
    starts = [(result.arrived_s or 0) + (result.queue_s or 0) for result in served.results]
    return {
        "num_requests": num_requests,
        "num_complete": sum(complete),
        "num_rows": num_rows,
        "in_turn": starts == sorted(starts),  # none waits behind a later one
        "served_s": max(
            (result.arrived_s or 0) + (result.total_s or 0) for result in served.results
        ),
        "allocated_before": before,
        "allocated_after": _allocated(machine),
        "allocated_peak": peak,
        "claims": [all_of("requests complete", sum(complete), num_requests)],
    }


class Watched:
    """A launcher under torch's watch: a call that waits for the device raises RuntimeError."""

    armed = False

    def __init__(self, inner: Launcher) -> None:
        self._inner = inner
        self.num_launches = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def launch(self, num_rows: int, k: int, span: int, num_behind: int = 0) -> RoundLaunch:
        if self.armed:
            torch.cuda.set_sync_debug_mode("error")
        try:
            launch = self._inner.launch(num_rows, k, span, num_behind)
        finally:
            if self.armed:
                torch.cuda.set_sync_debug_mode("default")
        self.num_launches += self.armed
        return launch


def watched(pair: Pair) -> Json:
    """Rounds of every graph mode, captured before and then launched under the watch.

    One blocking call ends the section with the reason: a count means that there was none.
    """
    found: Json = {}
    for graph in GRAPHS:
        made: list[Watched] = []
        decoder = pair.decoder(make_launcher=_watching(Launchers(graph, pair.machine.device), made))
        _decode(pair, decoder, K, MANY_TOKENS)
        made[-1].armed = True
        _decode(pair, decoder, K, MANY_TOKENS)
        found[graph] = {"graph": made[-1].graph, "num_launches": made[-1].num_launches}
    return found


def _watching(make: MakeLauncher, made: list[Watched]) -> MakeLauncher:
    def open_launcher(rows: Rows, sampler: Sampler, verifier: Verifier, clock: Clock) -> Launcher:
        made.append(Watched(make(rows, sampler, verifier, clock)))
        return made[-1]

    return open_launcher


def _sees_a_wait(machine: Machine) -> bool:
    """The control: reading a number back is caught."""
    number = torch.ones((), device=machine.device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        number.item()
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def _bucket(
    pair: Pair, decoder: Decoder, graphs: CudaGraphs, rows: int, k: int, context: int
) -> Bucket:
    num_captures, capture_s = graphs.num_captures, graphs.capture_s
    requests = pair.requests(rows, prompt=context, new_tokens=24)
    served = decoder.serve(requests, GREEDY, FixedK(k), num_rows=rows)
    return Bucket(
        num_rows=rows,
        k=k,
        context=context,
        num_captures=graphs.num_captures - num_captures,
        capture_s=graphs.capture_s - capture_s,
        reserved_bytes=graphs.reserved_bytes,
        tokens_ok=all(
            len(result.output_ids) == request.max_new_tokens
            for request, result in zip(requests, served.results, strict=True)
        ),
    )


def _calls(pair: Pair, graph: GraphKind, k: int) -> Json:
    """A short and a longer decoding: their difference is rounds alone, without the profiler."""
    decoder = pair.decoder(graph=graph)
    _decode(pair, decoder, k, MANY_TOKENS)
    counted = {}
    for num_tokens in (FEW_TOKENS, MANY_TOKENS):
        rounds = _decode(pair, decoder, k, num_tokens)
        calls = count_host_calls(partial(_decode, pair, decoder, k, num_tokens))
        if calls is None:
            return absent("the profiler sees no calls here")
        counted[num_tokens] = (rounds, calls)
    (few_rounds, few), (many_rounds, many) = counted[FEW_TOKENS], counted[MANY_TOKENS]
    num_rounds = many_rounds - few_rounds
    assert decoder.launcher is not None, "it has served"
    return {
        "k": k,
        "graph": decoder.launcher.graph,
        "num_rounds": num_rounds,
        "kernels_per_round": (many.launches - few.launches) / num_rounds,
        "graphs_per_round": (many.graph_launches - few.graph_launches) / num_rounds,
        "waits_per_round": (many.syncs - few.syncs) / num_rounds,
    }


def _decode(pair: Pair, decoder: Decoder, k: int, num_tokens: int) -> int:
    """Number of rounds."""
    requests = pair.requests(1, prompt=32, new_tokens=num_tokens)
    return len(decoder.serve(requests, GREEDY, FixedK(k), num_rows=1).timeline)


def _allocated(machine: Machine) -> int | None:
    machine.synchronize()
    return torch.cuda.memory_allocated() if machine.is_cuda else None
