"""K = 0 of an 8B target in bf16: against the memory's bandwidth, and what takes the time."""

import torch

from benchmarks.gpu_suite.claims import claim
from benchmarks.gpu_suite.decoders import Pair
from benchmarks.gpu_suite.kernel_times import GAPS, by_kind, longest, ran_in
from benchmarks.gpu_suite.machine import NO_GPU, Json, Machine
from benchmarks.gpu_suite.models import forward_bytes
from benchmarks.gpu_suite.stage import Stage
from benchmarks.gpu_suite.timing import Point, measure_points, read_bandwidth
from specbench.decode.decoder import Decoder
from specbench.forward.attention.stock import pinned_attention
from specbench.forward.runner import Runner
from specbench.probes.device import measure_copy_bandwidth

LENGTHS = {256: 100, 4096: 2100, 32_768: 32_000}  # prompts, by the bucket they decode in
NEW_TOKENS = 100
SHARE = 0.85  # of copy bandwidth
LAUNCHES = 10  # a layer
NUM_PROFILED = 10
_FEW, _MORE = 2, 4  # layers, between which launches are counted


def plain_steps(stage: Stage, machine: Machine) -> Json:
    """Shares of copy and read bandwidth at three lengths, and the kernel classes of one replay."""
    pair = Pair(machine=machine, target=stage.pair(machine).model)
    copy_bytes_per_s = measure_copy_bandwidth(machine.device)
    read_bytes_per_s = read_bandwidth(machine)
    decoder = pair.decoder(prefill_chunk=2048)
    points = {
        f"span {span}": _point(machine, pair, decoder, length)
        for span, length in sorted(_lengths(machine).items(), reverse=True)  # caches grow once
    }
    found = measure_points(points, machine, copy_bytes_per_s, repeats=machine.pick(5, 1))
    shares = [_shares(machine, points[one["name"]], one, read_bytes_per_s) for one in found]
    num_launches = _launches_a_layer(machine, decoder.target)
    claims = [
        claim(
            f"share of copy bandwidth, {one['name']}",
            one["bandwidth_utilization"],
            at_least=SHARE,
            reason=machine.shows_nothing,
        )
        for one in found
    ]
    return {
        "copy_bytes_per_s": copy_bytes_per_s,
        "read_bytes_per_s": read_bytes_per_s,
        "forward": decoder.target.kind,
        "points": found,
        "shares": shares,
        "launches_a_layer": num_launches,
        "left_out_for_time": [name for name in points if name not in {p["name"] for p in found}],
        "claims": [
            *claims,
            claim(
                "launches a layer",
                num_launches,
                at_most=LAUNCHES,
                reason=None if machine.is_cuda else NO_GPU,
            ),
        ],
    }


def _lengths(machine: Machine) -> dict[int, int]:
    return {64: 16, 128: 100} if machine.small else LENGTHS


def _point(machine: Machine, pair: Pair, decoder: Decoder, length: int) -> Point:
    new_tokens = machine.pick(NEW_TOKENS, 8)
    return Point(
        decoder=decoder,
        k=0,
        context=length,
        new_tokens=new_tokens,
        bytes_per_round=forward_bytes(pair.target, 1, length + new_tokens // 2),
    )


def _shares(machine: Machine, point: Point, measured: Json, read_bytes_per_s: float) -> Json:
    """The round that the point ended with, started again and again: finished rows stay as they
    are, and all is computed."""
    point.serve(0)
    launcher = point.decoder.launcher
    assert launcher is not None, "it has served"
    span = launcher.span_for(point.context + point.new_tokens)

    @torch.inference_mode()
    def rounds() -> None:
        with pinned_attention(machine.device):
            for _ in range(NUM_PROFILED):
                launcher.launch(1, 0, span)

    rounds()
    ran = ran_in(machine, rounds)
    kinds = by_kind(ran, NUM_PROFILED)
    whole_s = measured["round_s"]
    read_s = point.bytes_per_round / read_bytes_per_s
    return {
        "what": measured["name"],
        "of": "kernels" if machine.is_cuda else "operations of a CPU, a stand-in",
        "round_s": whole_s,
        "classes": kinds | {GAPS: max(whole_s - sum(kinds.values()), 0.0)},
        "longest": longest(ran, NUM_PROFILED),
        "launches_a_round": len(ran) / NUM_PROFILED,
        "share_of_read_bandwidth": None if machine.shows_nothing else read_s / whole_s,
    }


@torch.inference_mode()
def _launches_a_layer(machine: Machine, runner: Runner) -> float:
    """Of a forward of one token, between its first layers and a few more of them."""
    token_11 = torch.ones(1, 1, dtype=torch.long, device=machine.device)
    counts = []
    for num_layers in (_FEW, _MORE):
        first = runner.first_layers(num_layers)

        def run(first: Runner = first) -> None:
            first.forward(token_11, token_11, 256)

        run()  # makes what is made once
        counts.append(len(ran_in(machine, run)))
    return (counts[1] - counts[0]) / (_MORE - _FEW)
