"""Implementations compete: each that is right is timed in turns, and the fastest runs.

Right means: near a float32 reference at shapes that decoding has, as it is called and, where rounds
are captured, replayed. Among those within 5 % of the fastest an order decides that does not change,
so that noise seldom does.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple, cast

import torch
from torch import Tensor

from specbench.errors import ModelError
from specbench.forward.attention.kernel import Case, Kernel
from specbench.forward.attention.trial import Placed, Shape, Trial
from specbench.forward.rounding import wrong
from specbench.models.library_errors import failure_reason
from specbench.records import Contender

Run = Callable[[], object]
MOST_TURNS = 5
NUM_LAYERS = 32  # share what a kernel makes once per forward, which on a CPU takes no time
MOST_READY_S = 120.0  # of one candidate; a compiler's first program takes half a minute
_MOMENT_S = 1.0  # that all turns together take, where one does not take longer
_MARGIN = 1.05
# A short and a long text, each in its bucket; one row and several; K = 0 and K = 4.
SHAPES = tuple(
    Shape(num_rows, num_tokens, length, span)
    for length, span in ((200, 1024), (2100, 4096))
    for num_rows in (1, 4)
    for num_tokens in (1, 5)
)


class Candidate(NamedTuple):
    """Takes part with `run`, or does not for a reason; it took `ready_s` to get that far."""

    name: str
    run: Run | None
    refusal: str | None = None
    ready_s: float = 0.0


class Timing(NamedTuple):
    """How work is timed here, and how it is captured; None: rounds are not captured."""

    seconds: Callable[[Run], float]
    captured: Callable[[Run], Run] | None = None

    def checked(self, run: Run, wrong: Callable[[], str | None], spoil: Run) -> Run:
        """The work, captured where rounds are; ModelError if `wrong` gives a reason, also after a
        replay over results that `spoil` made wrong."""

        def check(how: str) -> None:
            if reason := wrong():
                raise ModelError(f"{how}{reason}")

        run()
        check("")
        if self.captured is None:
            return run
        replay = self.captured(run)
        spoil()
        replay()
        check("replayed, ")
        return replay


def fastest(candidates: Sequence[Candidate], timing: Timing) -> tuple[str | None, list[Contender]]:
    """Who won, None if nobody took part; and what became of each, in the given order.

    One that raises while it is timed has lost. DeviceLostError.
    """
    refusals = {one.name: one.refusal for one in candidates if one.run is None}

    def turn() -> dict[str, float]:
        """Seconds of each that still takes part."""
        taken_s = {}
        for one in candidates:
            if one.name not in refusals:
                try:
                    taken_s[one.name] = timing.seconds(cast("Run", one.run))
                except Exception as error:
                    refusals[one.name] = failure_reason(error)
        return taken_s

    warm_s = turn()
    for one in candidates:
        # What it takes to run is not what it takes to get ready.
        if one.name in warm_s and one.ready_s - warm_s[one.name] > MOST_READY_S:
            refusals[one.name] = (
                f"it took more than {MOST_READY_S:g} s to compile and to run for the first time"
            )
    warm = sum(taken_s for name, taken_s in warm_s.items() if name not in refusals)
    num_turns = min(max(int(_MOMENT_S / max(warm, 1e-9)), 1), MOST_TURNS)
    turns = [turn() for _ in range(num_turns)]
    names = [one.name for one in candidates]
    medians = {
        name: median(taken_s[name] for taken_s in turns) for name in names if name not in refusals
    }
    contenders = [
        Contender(name=name, seconds=medians.get(name), refusal=refusals.get(name))
        for name in names
    ]
    limit = _MARGIN * min(medians.values(), default=0.0)
    return next((name for name, taken_s in medians.items() if taken_s <= limit), None), contenders


def prepared(name: str, prepare: Callable[[], Run], timing: Timing) -> Candidate:
    """Takes part with what `prepare` returns, checked and captured where rounds are.

    One that raises does not: compilers and libraries raise exceptions of any class.
    DeviceLostError.
    """
    run: Run | None = None
    refusal: str | None = None

    def get_ready() -> None:
        nonlocal run, refusal
        try:
            run = prepare()
        except Exception as error:
            refusal = failure_reason(error)

    ready_s = timing.seconds(get_ready)
    return Candidate(name, run, refusal, ready_s)


@torch.inference_mode()
def attention_contest(
    case: Case, kernels: Sequence[Kernel], timing: Timing, shapes: Sequence[Shape] = SHAPES
) -> tuple[str | None, list[Contender]]:
    """The fastest of the implementations that are right for the case, as `fastest` has it."""
    shapes = [shape for shape in shapes if shape.num_tokens > 1 or not case.is_tree]
    trials = [Trial(case, shape) for shape in shapes]
    num_layers = NUM_LAYERS if case.device.type == "cuda" else 1
    asked = [(trial.placed(case, num_layers), trial.expected()) for trial in trials]
    candidates = []
    for kernel in kernels:
        if refusal := kernel.refusal(case):
            candidates.append(Candidate(kernel.name, None, refusal))
            continue

        def prepare(kernel: Kernel = kernel) -> Run:
            return in_turn([_tried(kernel, *one, case, timing) for one in asked])

        candidates.append(prepared(kernel.name, prepare, timing))
    return fastest(candidates, timing)


def _tried(kernel: Kernel, placed: Placed, expected: Tensor, case: Case, timing: Timing) -> Run:
    """How it runs, captured where rounds are; ModelError where it is wrong."""

    def run() -> None:
        placed.attend(kernel)

    out = placed.work.joined
    return timing.checked(
        run, lambda: wrong(out.cpu(), expected, case.dtype), lambda: out.fill_(torch.nan)
    )


def in_turn(runs: Sequence[Run]) -> Run:
    """One after the other."""

    def run() -> None:
        for one in runs:
            one()

    return run
