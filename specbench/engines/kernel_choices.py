"""What a loaded model's forward, attention and draws run on: contests, or what was asked for."""

from functools import partial

import torch

from specbench.engines.contests import Contests
from specbench.errors import ModelError, UsageError, first_line
from specbench.forward.attention.choice import BY_NAME, KERNELS
from specbench.forward.attention.kernel import Case
from specbench.forward.contest import attention_contest
from specbench.forward.forward_contest import FORWARDS, forward_contest
from specbench.forward.fused_layers import FusedLayers
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.layer_self_test import check_layers
from specbench.forward.layer_stack import LayerStack
from specbench.forward.runner import Runner
from specbench.forward.self_test import Forward
from specbench.kernels.availability import DEVICES, why_not
from specbench.records import KernelChoice
from specbench.round.drawing_contest import DRAWINGS, NAMES, TRITON, drawing_contest

AUTO = "auto"


class KernelChoices:
    """Sets what runners run on: `name`, or what wins if it is auto.

    `notes` say for which models the name has no effect, and why.
    """

    def __init__(self, name: str, contests: Contests) -> None:
        self._name = name
        self.contests = contests
        self.notes: list[str] = []

    def settle(self, runner: Runner, forward: Forward, name: str) -> Runner:
        """The runner of the named model to decode with, its implementations chosen. ModelError.

        Transformers' own code takes torch's own attention.
        """
        self._settle_draws(runner, name)
        if not isinstance(runner, FusedRunner):
            note = (
                f"--kernels {self._name} has no effect on {name}: its layers run in transformers' "
                "own code"
            )
            if self._name != AUTO and note not in self.notes:
                self.notes.append(note)
            return runner
        self._attend(runner.layers, name)
        return self._chosen_forward(runner, forward, name)

    def settle_layers(self, layers: LayerStack, forward: Forward, name: str) -> tuple[str, ...]:
        """Likewise a head's layers, which take their steps from the target; what is to be said."""
        notes = check_layers(layers, forward, name)
        if layers.fused is not None:
            self._attend(layers.fused, name)
        return notes

    def _attend(self, layers: FusedLayers, name: str) -> None:
        for case in layers.cases:
            chosen = self._attention(case, name).chosen
            layers.kernels[case.window, case.is_tree] = BY_NAME[chosen]

    def _settle_draws(self, runner: Runner, name: str) -> None:
        """Let kernels of ours draw over such a vocabulary where they are right and the faster."""
        if runner.device.type not in DEVICES:
            return
        vocab_size, device = runner.vocab_size, runner.device
        names = NAMES if why_not(device) is None else tuple(n for n in NAMES if n != TRITON)
        for drawing in DRAWINGS:
            hold = partial(
                drawing_contest, drawing, vocab_size, runner.dtype, device, self.contests.timing
            )
            subject = f"{drawing.name} of {name}, {vocab_size} tokens"
            facts = (drawing.name, vocab_size, runner.dtype)
            chosen = self.contests.choose(subject, device, facts, names, hold).chosen
            drawing.switch.turn(vocab_size, on=chosen == TRITON)

    def _attention(self, case: Case, name: str) -> KernelChoice:
        subject = f"attention of {name}, {case}"
        timing = self.contests.timing
        if self._name == AUTO:
            hold = partial(attention_contest, case, KERNELS, timing)
            here = [kernel.name for kernel in KERNELS if kernel.refusal(case) is None]
            return self.contests.choose(subject, case.device, (case,), here, hold)
        kernel = BY_NAME[self._name]
        _, (tried,) = attention_contest(case, [kernel], timing)
        if tried.refusal is not None:
            raise ModelError(
                f"--kernels {self._name} cannot serve {subject}: {tried.refusal}; choose "
                "--kernels auto"
            )
        key = self.contests.key(case.device, case)
        return self.contests.add(
            KernelChoice(key=key, subject=subject, chosen=kernel.name, is_forced=True)
        )

    def _chosen_forward(self, runner: FusedRunner, forward: Forward, name: str) -> Runner:
        names = tuple(name for name in FORWARDS if forward == "auto" or name.startswith(forward))
        sizes = (runner.num_layers, runner.hidden_size, runner.config.intermediate_size)
        facts = (names, runner.cases, sizes)
        hold = partial(forward_contest, runner, names, self.contests.timing)
        choice = self.contests.choose(f"forward of {name}", runner.device, facts, names, hold)
        try:
            return FORWARDS[choice.chosen](runner)
        except ModelError as error:  # Triton, say, is gone since it was chosen
            choice = self.contests.choose_again(choice, first_line(error), hold)
            return FORWARDS[choice.chosen](runner)


def require_kernel(name: str, device: torch.device) -> None:
    """UsageError where the implementation asked for runs on no such device."""
    usual = Case(
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
            f"--kernels {name}: {refusal}, and the device is {device}; choose "
            f"{', '.join((AUTO, *here))}"
        )
