"""Which implementations are chosen for an 8B's heads, and whether any is wrong elsewhere."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from benchmarks.gpu_suite.claims import all_of, claim
from benchmarks.gpu_suite.machine import Json, Machine
from benchmarks.gpu_suite.models import make_model, shape
from specbench.decode.clock import make_clock
from specbench.decode.graphs import Launchers
from specbench.engines.kernel_choices import (
    DRAWINGS,
    FORWARDS,
    autotune_draws,
    autotune_forward,
    round_timing,
)
from specbench.forward.attention.candidates import KERNELS, SHAPES, BatchShape, autotune_attention
from specbench.forward.attention.implementations import AttentionShape
from specbench.forward.autotune import Timing
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.kernels.availability import DEVICES
from specbench.records import Contender

HEAD_SIZES = (64, 80, 96, 256)  # beside the 8B's 128
WINDOW = 100
_SMALL = (BatchShape(1, 1, 40, 64), BatchShape(2, 5, 40, 64))
_ELSEWHERE = (BatchShape(3, 5, 137, 256), BatchShape(2, 9, 250, 1024))
_WRONG = ("it is wrong", "replayed")  # how the reason of such a candidate begins


def autotuning(machine: Machine) -> Json:
    """Attention over chains and trees, whole forwards and draws, every contender with its seconds
    or why it did not take part."""
    timing = make_timing(machine)
    config = shape("llama-8b", machine)
    config.num_hidden_layers = machine.pick(8, 2)
    runner = FusedRunner(make_model(config, torch.bfloat16, machine.device))
    kernels = {kernel.name: kernel for kernel in KERNELS}
    choices = []
    for case in runner.layers.cases:
        shapes = _SMALL if machine.small else SHAPES
        chosen, contenders = autotune_attention(case, KERNELS, timing, shapes)
        choices.append(_choice(f"attention of the 8B shape, {case}", chosen, contenders))
        if chosen is not None:
            runner.layers.kernels[case.window, case.is_tree] = kernels[chosen]
    won = autotune_forward(runner, tuple(FORWARDS), timing)
    choices.append(_choice(f"forward of {config.num_hidden_layers} layers of it", *won))
    for drawing in DRAWINGS if machine.device.type in DEVICES else ():
        vocab_size, dtype = runner.vocab_size, runner.dtype
        drawn = autotune_draws(drawing, vocab_size, dtype, machine.device, timing)
        choices.append(_choice(f"{drawing.name} over {vocab_size} tokens", *drawn))
    found = {str(choice["subject"]): choice["contenders"] for choice in choices}
    won_claim = all_of(
        "contests that somebody wins", sum(bool(c["chosen"]) for c in choices), len(choices)
    )
    return {"choices": choices, **_wrong(found, [won_claim])}


def other_cases(machine: Machine) -> Json:
    """Attention at other heads, windows and dtypes, whose winner matters less: compiling their
    kernels takes minutes on a machine that has none of them yet."""
    others, left_out = _elsewhere(machine, make_timing(machine))
    return {"elsewhere": others, "left_out_for_time": left_out, **_wrong(others, [])}


def _wrong(found: Mapping[str, Any], claims: Sequence[Json]) -> Json:
    """Contenders that are wrong, by the subject of the choice; claims that there are none."""
    wrong = [
        f"{subject}: {one['name']}: {one['refusal']}"
        for subject, contenders in found.items()
        for one in contenders
        if (one["refusal"] or "").startswith(_WRONG)
    ]
    none_wrong = claim("implementations that are wrong somewhere", len(wrong), at_most=0)
    return {"wrong": wrong, "claims": [*claims, none_wrong]}


def make_timing(machine: Machine) -> Timing:
    """As engines time candidates, captured if rounds are."""
    graphs = Launchers("auto", machine.device).graphs
    return round_timing(make_clock(machine.device), graphs)


def _choice(subject: str, chosen: str | None, contenders: Sequence[Contender]) -> Json:
    return {
        "subject": subject,
        "chosen": chosen,
        "contenders": [asdict(contender) for contender in contenders],
    }


def _elsewhere(machine: Machine, timing: Timing) -> tuple[dict[str, Any], list[str]]:
    """What became of each contender at other heads, by case; cases left out for time."""
    found, left_out = {}, []
    shapes = _SMALL if machine.small else _ELSEWHERE
    for case in _cases(machine):
        dtype = str(case.dtype).removeprefix("torch.")
        name = f"{case.query_heads}/{case.kv_heads} heads of {case.head_size}, {dtype}, {case}"
        if not machine.has_time():
            left_out.append(name)
            continue
        _, contenders = autotune_attention(case, KERNELS, timing, shapes)
        found[name] = [asdict(contender) for contender in contenders]
    return found, left_out


def _cases(machine: Machine) -> Iterator[AttentionShape]:
    """Chains without a window and trees with one; a dtype where its kernels are others."""
    usual = AttentionShape(
        device=machine.device,
        dtype=torch.bfloat16,
        query_heads=8,
        kv_heads=2,
        head_size=machine.pick(128, 16),
        window=None,
        is_tree=False,
    )
    bent = [usual, replace(usual, window=WINDOW, is_tree=True)]
    for dtype in (torch.float32, torch.float16):
        yield from (replace(case, dtype=dtype) for case in bent)
    yield replace(usual, window=WINDOW)
    yield replace(usual, query_heads=usual.kv_heads)
    if not machine.small:
        for size in HEAD_SIZES:
            yield from (replace(case, head_size=size) for case in bent)
