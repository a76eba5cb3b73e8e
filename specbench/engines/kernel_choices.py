"""What a loaded model's forward, attention and draws run on: the fastest, or what was asked for.

Shape suffixes: T tokens of one row.
"""

from collections.abc import Callable
from functools import partial

import torch

from specbench.decode.clock import Clock
from specbench.decode.cuda_graphs import Graphs
from specbench.engines.draw_candidates import DRAWINGS, NAMES, TRITON, autotune_draws
from specbench.errors import ModelError, UsageError, first_line
from specbench.forward.attention.candidates import BY_NAME, KERNELS, autotune_attention
from specbench.forward.attention.kernel import AttentionShape
from specbench.forward.autotune import Autotuner, Outcome, Results, Run, Timing, Work, autotune
from specbench.forward.fused_layers import FusedLayers
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.kernels.availability import DEVICES, why_not
from specbench.forward.layer_stack import LayerStack
from specbench.forward.runner import FUSED, FUSED_TRITON, STOCK, Runner, StockRunner
from specbench.forward.self_test import TOLERANCE, Forward, check_layers, distance
from specbench.records import KernelChoice

AUTO = "auto"
_LENGTH, _SPAN = 200, 1024
_NUM_TOKENS = (1, 5)  # K = 0 and K = 4

# In the order that decides among equals.
FORWARDS: dict[str, Callable[[FusedRunner], Runner]] = {
    FUSED_TRITON: FusedRunner.with_triton,
    FUSED: lambda runner: runner,
    STOCK: lambda runner: StockRunner(runner.model),
}


def round_timing(clock: Clock, graphs: Graphs | None) -> Timing:
    """As rounds are timed and, if there are graphs, captured."""
    return Timing(
        seconds=partial(_seconds, clock),
        captured=None if graphs is None else lambda run: graphs.capture(run).replay,
    )


def _seconds(clock: Clock, run: Run) -> float:
    began = clock.mark()
    run()
    ended = clock.mark()
    return clock.seconds(ended) - clock.seconds(began)


class KernelChoices:
    """Sets what runners run on: `name`, or the fastest if it is auto.

    `notes` say for which models the name has no effect, and why.
    """

    def __init__(self, name: str, clock: Clock, graphs: Graphs | None) -> None:
        self._name = name
        self.autotuner = Autotuner(round_timing(clock, graphs))
        self.notes: list[str] = []

    def choose(self, runner: Runner, forward: Forward, name: str) -> Runner:
        """The runner of the named model to decode with, its implementations chosen. ModelError.

        Transformers' own code takes torch's own attention.
        """
        self._choose_draws(runner, name)
        if not isinstance(runner, FusedRunner):
            note = (
                f"--attention-backend {self._name} has no effect on {name}: its layers run in "
                "transformers' own code"
            )
            if self._name != AUTO and note not in self.notes:
                self.notes.append(note)
            return runner
        self._attend(runner.layers, name)
        return self._chosen_forward(runner, forward, name)

    def choose_for_layers(self, layers: LayerStack, forward: Forward, name: str) -> tuple[str, ...]:
        """The same for a head, whose layers take their steps from the target; notes about it."""
        notes = check_layers(layers, forward, name)
        if layers.fused is not None:
            self._attend(layers.fused, name)
        return notes

    def _attend(self, layers: FusedLayers, name: str) -> None:
        for case in layers.cases:
            chosen = self._attention(case, name).chosen
            layers.kernels[case.window, case.is_tree] = BY_NAME[chosen]

    def _choose_draws(self, runner: Runner, name: str) -> None:
        """Let our kernels draw over such a vocabulary if they are right and the faster."""
        if runner.device.type not in DEVICES:
            return
        vocab_size, device = runner.vocab_size, runner.device
        names = NAMES if why_not(device) is None else tuple(n for n in NAMES if n != TRITON)
        for drawing in DRAWINGS:
            tune = partial(
                autotune_draws, drawing, vocab_size, runner.dtype, device, self.autotuner.timing
            )
            subject = f"{drawing.name} of {name}, {vocab_size} tokens"
            facts = (drawing.name, vocab_size, runner.dtype)
            chosen = self.autotuner.choose(subject, device, facts, names, tune).chosen
            drawing.switch.turn(vocab_size, on=chosen == TRITON)

    def _attention(self, case: AttentionShape, name: str) -> KernelChoice:
        subject = f"attention of {name}, {case}"
        timing = self.autotuner.timing
        if self._name == AUTO:
            tune = partial(autotune_attention, case, KERNELS, timing)
            here = [kernel.name for kernel in KERNELS if kernel.refusal(case) is None]
            return self.autotuner.choose(subject, case.device, (case,), here, tune)
        kernel = BY_NAME[self._name]
        _, (tried,) = autotune_attention(case, [kernel], timing)
        if tried.refusal is not None:
            raise ModelError(
                f"--attention-backend {self._name} cannot serve {subject}: {tried.refusal}; choose "
                "--attention-backend auto"
            )
        key = self.autotuner.key(case.device, case)
        return self.autotuner.add(
            KernelChoice(key=key, subject=subject, chosen=kernel.name, is_forced=True)
        )

    def _chosen_forward(self, runner: FusedRunner, forward: Forward, name: str) -> Runner:
        names = tuple(name for name in FORWARDS if forward == "auto" or name.startswith(forward))
        sizes = (runner.num_layers, runner.hidden_size, runner.config.intermediate_size)
        facts = (names, runner.cases, sizes)
        tune = partial(autotune_forward, runner, names, self.autotuner.timing)
        choice = self.autotuner.choose(f"forward of {name}", runner.device, facts, names, tune)
        try:
            return FORWARDS[choice.chosen](runner)
        except ModelError as error:  # Triton, say, is gone since it was chosen
            choice = self.autotuner.choose_again(choice, first_line(error), tune)
            return FORWARDS[choice.chosen](runner)


@torch.inference_mode()
def autotune_forward(runner: FusedRunner, names: tuple[str, ...], timing: Timing) -> Outcome:
    """The fastest of the named forwards whose logits are those of a runner that was checked."""

    def works(name: str) -> list[Work]:
        candidate = FORWARDS[name](runner)
        return [partial(_logits, candidate, T) for T in _NUM_TOKENS]

    def wrong(results: Results, expected: Results) -> str | None:
        error = float(distance(results[0], expected[0]))
        if error <= TOLERANCE[runner.dtype]:  # which NaN is not
            return None
        return f"logits of {len(expected[0])} tokens are off by {error:.2g}"

    candidates = {name: partial(works, name) for name in names}
    outcome = autotune(candidates, [_logits(runner, T) for T in _NUM_TOKENS], wrong, timing)
    runner.release()
    return outcome


def _logits(runner: Runner, T: int) -> Results:
    """[T, V] of a forward after a context of arbitrary tokens."""
    runner.allocate(1, _SPAN)
    at_T = torch.arange(_LENGTH, _LENGTH + T, device=runner.device)
    return (runner.forward(at_T[None] % runner.vocab_size, at_T[None], _SPAN).logits[0],)


def require_kernel(name: str, device: torch.device) -> None:
    """UsageError where the implementation asked for runs on no such device."""
    usual = AttentionShape(
        device=device,
        dtype=torch.bfloat16,
        query_heads=1,
        kv_heads=1,
        head_size=64,
        window=None,
        is_tree=False,
    )
    refusal = None if name == AUTO else BY_NAME[name].refusal(usual)
    if refusal is not None:
        here = [kernel.name for kernel in BY_NAME.values() if kernel.refusal(usual) is None]
        raise UsageError(
            f"--attention-backend {name}: {refusal}, and the device is {device}; choose "
            f"{', '.join((AUTO, *here))}"
        )
