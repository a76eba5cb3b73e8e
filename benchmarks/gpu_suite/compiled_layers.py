"""What torch's compiler makes of a layer on a card: kernels and seconds, and its own time."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import torch

from benchmarks.gpu_suite.claims import claim
from benchmarks.gpu_suite.contests import make_timing
from benchmarks.gpu_suite.decoders import make_runner
from benchmarks.gpu_suite.machine import NO_GPU, Json, Machine, absent
from benchmarks.gpu_suite.models import make_model, shape
from specbench.forward.compiled_steps import FIRST
from specbench.forward.forward_contest import FORWARDS, forward_contest
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import FUSED_COMPILED, FUSED_TRITON, Runner
from specbench.probes.launches import count_host_calls

CONTEXT, SPAN = 200, 1024
Count = Callable[[Callable[[], object]], int | None]


def compiled_layers(machine: Machine) -> Json:
    """The contest of all forwards over an 8B's layers in bf16, and each one's kernels a layer."""
    return layers_of(machine, _launches) if machine.is_cuda else absent(NO_GPU)


def layers_of(machine: Machine, count: Count) -> Json:
    """The same, with kernels counted by `count`."""
    config = shape("llama-8b", machine)
    config.num_hidden_layers = machine.pick(8, 2)
    model = make_model(config, torch.bfloat16, machine.device)
    runner = make_runner(machine, model, "fused")
    assert isinstance(runner, FusedRunner), "an 8B is of the Llama family"
    chosen, contenders = forward_contest(runner, tuple(FORWARDS), make_timing(machine))
    kernels = {
        one.name: {f"T={T}": _a_layer(FORWARDS[one.name](runner), T, count) for T in FIRST}
        for one in contenders
        if one.refusal is None
    }
    compared = (FUSED_COMPILED, FUSED_TRITON)
    compiled, by_hand = (kernels.get(name, {}).get("T=5") for name in compared)
    more = None if compiled is None or by_hand is None else compiled - by_hand
    return {
        "layers": config.num_hidden_layers,
        "chosen": chosen,
        "contenders": [asdict(contender) for contender in contenders],
        "compile_s": runner.programs.compile_s,
        "not_compiled": runner.programs.notes,
        "kernels_a_layer": kernels,
        "claims": [
            claim(
                "kernels of a compiled layer over those of our steps in Triton",
                more,
                at_most=0,
                reason=machine.shows_nothing or (None if more is not None else "not both ran"),
            )
        ],
    }


@torch.inference_mode()
def _a_layer(runner: Runner, T: int, count: Count) -> int | None:
    """Kernels between forwards of one layer and of two over T tokens, attention among them."""
    at_1T = torch.arange(CONTEXT, CONTEXT + T, device=runner.device)[None]
    counted = []
    for part in (runner.first_layers(1), runner.first_layers(2)):
        part.allocate(1, SPAN)
        run = partial(part.forward, at_1T % runner.vocab_size, at_1T, SPAN)
        run()  # makes what is made once
        counted.append(count(run))
    one, two = counted
    return None if one is None or two is None else two - one


def _launches(run: Callable[[], object]) -> int | None:
    calls = count_host_calls(run)
    return None if calls is None else calls.launches
