"""Whole forwards compete: transformers' own, ours, ours with kernels of ours.

Shape suffixes: T tokens of one row.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from specbench.forward.contest import Run, Timing, fastest, in_turn, prepared
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import FUSED, FUSED_TRITON, STOCK, Runner, StockRunner
from specbench.forward.self_test import TOLERANCE, distance
from specbench.records import Contender

_LENGTH, _SPAN = 200, 1024
_NUM_TOKENS = (1, 5)  # K = 0 and K = 4

# In the order that decides among equals.
FORWARDS: dict[str, Callable[[FusedRunner], Runner]] = {
    FUSED_TRITON: FusedRunner.with_triton,
    FUSED: lambda runner: runner,
    STOCK: lambda runner: StockRunner(runner.model),
}


@torch.inference_mode()
def forward_contest(
    runner: FusedRunner, names: tuple[str, ...], timing: Timing
) -> tuple[str | None, list[Contender]]:
    """The fastest of the named forwards whose logits are those of a runner that was checked."""
    expected = [_forward(runner, T) for T in _NUM_TOKENS]
    candidates = [
        prepared(name, partial(_tried, name, runner, expected, timing), timing) for name in names
    ]
    outcome = fastest(candidates, timing)
    runner.release()
    return outcome


def _tried(name: str, checked: FusedRunner, expected: list[Tensor], timing: Timing) -> Run:
    """Its forwards, captured where rounds are; ModelError where they are wrong."""
    runner = FORWARDS[name](checked)
    runs = [_checked(runner, T, own, timing) for T, own in zip(_NUM_TOKENS, expected, strict=True)]
    return in_turn(runs)


def _checked(runner: Runner, T: int, expected: Tensor, timing: Timing) -> Run:
    made: list[Tensor] = []  # the logits; those of a capture are written anew by each replay

    def run() -> None:
        made[:] = [_forward(runner, T)]

    def wrong() -> str | None:
        error = float(distance(made[0], expected))
        if error <= TOLERANCE[runner.dtype]:  # which NaN is not
            return None
        return f"it is wrong: logits of {T} tokens are off by {error:.2g}"

    return timing.checked(run, wrong, lambda: made[0].fill_(torch.nan))


def _forward(runner: Runner, T: int) -> Tensor:
    """Logits [T, V] of a forward after a made-up context."""
    runner.allocate(1, _SPAN)
    at_T = torch.arange(_LENGTH, _LENGTH + T, device=runner.device)
    return runner.forward(at_T[None] % runner.vocab_size, at_T[None], _SPAN).logits[0]
