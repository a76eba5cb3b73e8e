"""Implementations compete: each that is right is timed in turns, and the fastest runs.

Right means: near a float32 reference at shapes that decoding has, as it is called and, where rounds
are captured, replayed. Among those within 5 % of the fastest an order decides that does not change,
so that noise seldom does.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.errors import first_line
from specbench.forward.attention.kernel import Case, Kernel
from specbench.forward.attention.trial import Placed, Shape, Trial
from specbench.records import Contender

Run = Callable[[], object]
MOST_TURNS = 5
_MOMENT_S = 1.0  # that all turns together take, where one does not take longer
_MARGIN = 1.05
# A short and a long text, each in its bucket; one row and several; K = 0 and K = 4.
SHAPES = tuple(
    Shape(num_rows, num_tokens, length, span)
    for length, span in ((200, 1024), (2100, 4096))
    for num_rows in (1, 4)
    for num_tokens in (1, 5)
)
# The largest error allowed, of the root mean square of what comes out.
_ALLOWED = {torch.float64: 1e-4, torch.float32: 2e-3, torch.float16: 0.02, torch.bfloat16: 0.1}


class Candidate(NamedTuple):
    """Takes part with `run`, or does not for a reason."""

    name: str
    run: Run | None
    refusal: str | None = None


class Timing(NamedTuple):
    """How work is timed here, and how it is captured; None: rounds are not captured."""

    seconds: Callable[[Run], float]
    captured: Callable[[Run], Run] | None = None


def fastest(candidates: Sequence[Candidate], timing: Timing) -> tuple[str | None, list[Contender]]:
    """Who won, None where nobody took part; and what became of each, in the given order."""
    runs = {one.name: one.run for one in candidates if one.run is not None}
    warm_s = sum(timing.seconds(run) for run in runs.values())
    num_turns = min(max(int(_MOMENT_S / max(warm_s, 1e-9)), 1), MOST_TURNS)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(num_turns):
        for name, run in runs.items():
            seconds[name].append(timing.seconds(run))
    medians = {name: median(taken) for name, taken in seconds.items()}
    contenders = [
        Contender(name=one.name, seconds=medians.get(one.name), refusal=one.refusal)
        for one in candidates
    ]
    limit = _MARGIN * min(medians.values(), default=0.0)
    return next((name for name, taken_s in medians.items() if taken_s <= limit), None), contenders


@torch.inference_mode()
def attention_contest(
    case: Case, kernels: Sequence[Kernel], timing: Timing, shapes: Sequence[Shape] = SHAPES
) -> tuple[str | None, list[Contender]]:
    """The fastest of the implementations that are right for the case, as `fastest` has it."""
    shapes = [shape for shape in shapes if shape.num_tokens > 1 or not case.is_tree]
    trials = [Trial(case, shape) for shape in shapes]
    asked = [(trial.placed(case), trial.expected()) for trial in trials]
    candidates = []
    for kernel in kernels:
        refusal = kernel.refusal(case)
        runs: list[Run] = []
        for placed, expected in asked:
            if refusal is None:
                run, refusal = _tried(kernel, placed, expected, case, timing)
                runs.append(run)
        work = None if refusal else in_turn(runs)
        candidates.append(Candidate(kernel.name, work, refusal))
    return fastest(candidates, timing)


def _tried(
    kernel: Kernel, placed: Placed, expected: Tensor, case: Case, timing: Timing
) -> tuple[Run, str | None]:
    """How it runs, captured where rounds are; and what is wrong with it."""

    def run() -> None:
        placed.attend(kernel)

    try:
        run()
        refusal = _wrong(placed.work.joined, expected, case.dtype)
        if refusal is None and timing.captured is not None:
            replay = timing.captured(run)
            placed.work.joined.fill_(torch.nan)
            replay()
            refusal = _wrong(placed.work.joined, expected, case.dtype)
            return replay, refusal and f"replayed, {refusal}"
        return run, refusal
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return run, f"it raises {type(error).__name__}: {first_line(error)}"


def _wrong(got: Tensor, expected: Tensor, dtype: torch.dtype) -> str | None:
    error = (got.to("cpu", torch.float32) - expected).abs().max() / expected.square().mean().sqrt()
    allowed = _ALLOWED[dtype]
    if error <= allowed:  # and not where it is no number
        return None
    return f"it is wrong: off by {float(error):.2g} of the output's size ({allowed:g} is rounding)"


def in_turn(runs: Sequence[Run]) -> Run:
    """One after the other."""

    def run() -> None:
        for one in runs:
            one()

    return run
