"""Whole forwards compete: transformers' own, ours, and ours with kernels of ours.

Shape suffixes: T tokens of one row.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from specbench.errors import ModelError, first_line
from specbench.forward.contest import Candidate, Run, Timing, fastest, in_turn
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import Runner, StockRunner
from specbench.forward.self_test import TOLERANCE, distance
from specbench.records import Contender

_LENGTH, _SPAN = 200, 1024
_NUM_TOKENS = (1, 5)  # K = 0 and K = 4

# In the order that decides among equals.
FORWARDS: dict[str, Callable[[FusedRunner], Runner]] = {
    "fused, triton": FusedRunner.with_triton,
    "fused": lambda runner: runner,
    "stock": lambda runner: StockRunner(runner.model),
}


@torch.inference_mode()
def forward_contest(
    runner: FusedRunner, names: tuple[str, ...], timing: Timing
) -> tuple[str | None, list[Contender]]:
    """The fastest of the named forwards whose logits are those of a runner that was checked."""
    expected = [_forward(runner, T) for T in _NUM_TOKENS]
    candidates = [_candidate(name, runner, expected, timing) for name in names]
    outcome = fastest(candidates, timing)
    runner.release()
    return outcome


def _candidate(
    name: str, checked: FusedRunner, expected: list[Tensor], timing: Timing
) -> Candidate:
    try:
        runner = FORWARDS[name](checked)
        runs: list[Run] = [partial(_forward, runner, T) for T in _NUM_TOKENS]
        worst = max(
            float(distance(_forward(runner, T), own))
            for T, own in zip(_NUM_TOKENS, expected, strict=True)
        )
        if not worst <= TOLERANCE[checked.dtype]:
            return Candidate(name, None, f"it is wrong: logits are off by {worst:.2g}")
        if timing.captured is not None:
            runs = [timing.captured(run) for run in runs]
    except (ModelError, RuntimeError, ValueError) as error:
        return Candidate(name, None, first_line(error))
    return Candidate(name, in_turn(runs))


def _forward(runner: Runner, T: int) -> Tensor:
    """Logits [T, V] of a forward after a made-up context."""
    runner.allocate(1, _SPAN)
    at_T = torch.arange(_LENGTH, _LENGTH + T, device=runner.device)
    return runner.forward(at_T[None] % runner.vocab_size, at_T[None], _SPAN).logits[0]
