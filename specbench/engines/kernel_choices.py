"""Chooses the implementations of a model's forward, attention and draws: the fastest, or the
requested ones.

Implementations of draws are correct if they give the same numbers and tokens up to rounding.

Shape suffixes: B rows, T tokens of a row, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decode.clock import Clock
from specbench.decode.graphs import CudaGraphs
from specbench.decode.sampling import Purpose, Sampler, draw, exponential, nucleus, uniform
from specbench.errors import ModelError, UsageError
from specbench.forward.attention.candidates import (
    BY_NAME,
    KERNELS,
    USUAL,
    Kernels,
    autotune_attention,
)
from specbench.forward.attention.implementations import AttentionShape
from specbench.forward.autotune import Autotuner, Outcome, Results, Run, Timing, Work, autotune
from specbench.forward.fused_layers import FusedLayers
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.kernels.availability import DEVICES, DRAWS, TOP_P, Switch, triton_failure
from specbench.forward.layer_stack import LayerStack
from specbench.forward.runner import FUSED, FUSED_TRITON, STOCK, Runner, StockRunner
from specbench.forward.self_test import TOLERANCE, check_layers, distance
from specbench.records import KernelChoice, Sampling
from specbench.settings.groups import ModelImplementation

TRITON, TORCH = "triton", "torch"
NAMES = (TRITON, TORCH)  # in order of preference if they are equally fast
_B, _T = 2, 5  # K = 4
_TEMPERATURE, _TOP_P = 0.7, 0.9
_NEAR = 1e-4  # of log-probability: two tokens that are this close may swap
_MOVED = 1e-3  # of probability: the token at the cutoff may be kept or dropped


class _Numbers(NamedTuple):
    logits_BTV: Tensor
    probs_BTV: Tensor
    seeds_B: Tensor
    positions_BT: Tensor


class DrawKind(NamedTuple):
    """A kind of draw with its switch for our kernels, and the check of its results."""

    name: str
    switch: Switch
    drawn: Callable[[_Numbers], Results]
    wrong: Callable[[_Numbers, Results, Results], str | None]


@torch.inference_mode()
def autotune_draws(
    drawing: DrawKind, vocab_size: int, dtype: torch.dtype, device: torch.device, timing: Timing
) -> Outcome:
    """Our kernels if they are correct and faster, else torch."""
    numbers = _random_numbers(vocab_size, dtype, device)

    def drawn(name: str) -> Results:
        with drawing.switch.temporarily(vocab_size, on=name == TRITON):
            return drawing.drawn(numbers)

    def works(name: str) -> list[Work]:
        return [partial(drawn, name)]

    return autotune(
        {name: partial(works, name) for name in NAMES},
        [drawn(TORCH)],
        partial(drawing.wrong, numbers),
        timing,
    )


def _random_numbers(vocab_size: int, dtype: torch.dtype, device: torch.device) -> _Numbers:
    generator = torch.Generator().manual_seed(0)
    logits_BTV = (torch.randn(_B, _T, vocab_size, generator=generator) * 3).to(device, dtype)
    probs_BTV = (logits_BTV.float() / _TEMPERATURE).softmax(-1)
    seeds_B = torch.randint(-(2**63), 2**63 - 1, (_B,), generator=generator).to(device)
    positions_BT = torch.randint(1, 2**20, (_B, 1), generator=generator) + torch.arange(_T)
    return _Numbers(logits_BTV, probs_BTV, seeds_B, positions_BT.to(device))


def _draws(numbers: _Numbers) -> Results:
    places = (numbers.seeds_B, numbers.positions_BT)
    sampler = Sampler(Sampling(temperature=_TEMPERATURE))
    return (
        uniform(*places, Purpose.ACCEPT),
        exponential(*places, Purpose.TARGET, numbers.probs_BTV.shape[-1]),
        sampler.pick(numbers.logits_BTV, *places),
        draw(numbers.probs_BTV, *places, Purpose.TARGET),
    )


def _wrong_draws(numbers: _Numbers, drawn: Results, expected: Results) -> str | None:
    """The first difference: uniform numbers must be equal, noise up to rounding, tokens up to
    near-ties."""
    (uniform_BT, noise_BTV, *tokens), (expected_BT, expected_BTV, *_) = drawn, expected
    if not torch.equal(uniform_BT, expected_BT):
        return "its uniform numbers differ"
    if not torch.allclose(noise_BTV, expected_BTV, rtol=_NEAR, atol=0.0):
        return "its noise differs"
    scores_BTV = numbers.probs_BTV.double().log() - expected_BTV.double().log()
    best_BT = scores_BTV.amax(-1)
    for tokens_BT in tokens:
        if not bool(((tokens_BT >= 0) & (tokens_BT < scores_BTV.shape[-1])).all()):
            return "its tokens are out of bounds"
        if not bool((best_BT - scores_BTV.gather(-1, tokens_BT[..., None])[..., 0] < _NEAR).all()):
            return "its tokens differ"
    return None


def _cut(numbers: _Numbers) -> Results:
    return (nucleus(numbers.logits_BTV.float(), _TOP_P),)


def _wrong_cut(numbers: _Numbers, drawn: Results, expected: Results) -> str | None:  # noqa: ARG001
    moved = float((drawn[0] - expected[0]).abs().sum(-1).max())
    return None if moved <= _MOVED else f"{moved:.2g} of a distribution is elsewhere"


DRAWINGS = (
    DrawKind("draws", DRAWS, _draws, _wrong_draws),
    DrawKind("top-p", TOP_P, _cut, _wrong_cut),
)


AUTO = "auto"
_LENGTH, _SPAN = 200, 1024
_NUM_TOKENS = (1, 5)  # K = 0 and K = 4

# In order of preference if they are equally fast.
FORWARDS: dict[str, Callable[[FusedRunner], Runner]] = {
    FUSED_TRITON: FusedRunner.with_triton,
    FUSED: lambda runner: runner,
    STOCK: lambda runner: StockRunner(runner.model),
}


def round_timing(clock: Clock, graphs: CudaGraphs | None) -> Timing:
    """The timing of rounds, with the capture of graphs if there are any."""
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
    """Sets the implementations that runners use: the named one, or the fastest if `name` is auto.

    `notes` lists the models on which the name has no effect, and the reasons.
    """

    def __init__(self, name: str, clock: Clock, graphs: CudaGraphs | None) -> None:
        self._name = name
        self.autotuner = Autotuner(round_timing(clock, graphs))
        self.notes: list[str] = []
        self._chosen_for: list[tuple[Kernels, AttentionShape]] = []

    def choose(self, runner: Runner, forward: ModelImplementation, name: str) -> Runner:
        """The runner for the named model, with chosen implementations.

        ModelError if the requested ones cannot run. Models in transformers' code use torch's
        attention.
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

    def choose_for_layers(
        self, layers: LayerStack, forward: ModelImplementation, name: str
    ) -> tuple[str, ...]:
        """Choose the attention of a head, whose layers run in the target's rounds; return notes."""
        notes = check_layers(layers, forward, name)
        if layers.fused is not None:
            self._attend(layers.fused, name)
        return notes

    def _attend(self, layers: FusedLayers, name: str) -> None:
        for case in layers.cases:
            chosen = self._attention(case, name).chosen
            layers.kernels[case.window, case.is_tree] = BY_NAME[chosen]
            self._chosen_for.append((layers.kernels, case))

    def drop_triton(self, reason: str) -> bool:
        """Use torch's attention wherever ours was chosen, because Triton refused it in a round for
        this `reason`. False if it was chosen nowhere, or by the user."""
        dropped = False
        for kernels, case in self._chosen_for if self._name == AUTO else ():
            key = self.autotuner.key(case.device, case)
            choice = self.autotuner.choices[key]
            if kernels[case.window, case.is_tree].name == TRITON:
                kernels[case.window, case.is_tree], dropped = USUAL, True
                contenders = (
                    replace(c, seconds=None, refusal=reason) if c.name == TRITON else c
                    for c in choice.contenders
                )
                self.autotuner.choices[key] = replace(
                    choice, chosen=USUAL.name, contenders=tuple(contenders)
                )
        if dropped:
            self.notes.append(f"attention is torch's, because Triton refused ours: {reason}")
        return dropped

    def _choose_draws(self, runner: Runner, name: str) -> None:
        """Use our kernels for draws over the model's vocabulary if they are correct and faster."""
        if runner.device.type not in DEVICES:
            return
        vocab_size, device = runner.vocab_size, runner.device
        refusals = {TRITON: triton_failure(device), TORCH: None}
        for drawing in DRAWINGS:
            tune = partial(
                autotune_draws, drawing, vocab_size, runner.dtype, device, self.autotuner.timing
            )
            subject = f"{drawing.name} of {name}, {vocab_size} tokens"
            facts = (drawing.name, vocab_size, runner.dtype)
            chosen = self.autotuner.choose(subject, device, facts, refusals, tune).chosen
            drawing.switch.set(vocab_size, on=chosen == TRITON)

    def _attention(self, case: AttentionShape, name: str) -> KernelChoice:
        subject = f"attention of {name}, {case}"
        timing = self.autotuner.timing
        if self._name == AUTO:
            tune = partial(autotune_attention, case, KERNELS, timing)
            refusals = {kernel.name: kernel.unsupported_reason(case) for kernel in KERNELS}
            return self.autotuner.choose(subject, case.device, (case,), refusals, tune)
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

    def _chosen_forward(
        self, runner: FusedRunner, forward: ModelImplementation, name: str
    ) -> Runner:
        names = tuple(name for name in FORWARDS if forward == "auto" or name.startswith(forward))
        sizes = (runner.num_layers, runner.hidden_size, runner.config.intermediate_size)
        facts = (names, runner.layers.cases, sizes)
        refusals = dict.fromkeys(names)
        if FUSED_TRITON in names:
            refusals[FUSED_TRITON] = triton_failure(runner.device)
        tune = partial(autotune_forward, runner, names, self.autotuner.timing)
        subject = f"forward of {name}"
        choice = self.autotuner.choose(subject, runner.device, facts, refusals, tune)
        return FORWARDS[choice.chosen](runner)


@torch.inference_mode()
def autotune_forward(runner: FusedRunner, names: tuple[str, ...], timing: Timing) -> Outcome:
    """The fastest of the named forwards with the same logits as the checked runner."""

    def works(name: str) -> list[Work]:
        candidate = FORWARDS[name](runner)
        return [partial(_logits, candidate, T) for T in _NUM_TOKENS]

    def logits_error(results: Results, expected: Results) -> str | None:
        error = float(distance(results[0], expected[0]))
        if error <= TOLERANCE[runner.dtype]:  # False for NaN
            return None
        return f"logits of {len(expected[0])} tokens are off by {error:.2g}"

    candidates = {name: partial(works, name) for name in names}
    outcome = autotune(candidates, [_logits(runner, T) for T in _NUM_TOKENS], logits_error, timing)
    runner.release()
    return outcome


def _logits(runner: Runner, T: int) -> Results:
    """Logits [T, V] of a forward over T tokens after an arbitrary context."""
    runner.allocate(1, _SPAN)
    at_T = torch.arange(_LENGTH, _LENGTH + T, device=runner.device)
    return (runner.forward(at_T[None] % runner.vocab_size, at_T[None], _SPAN).logits[0],)


def require_kernel(name: str, device: torch.device) -> None:
    """Raise UsageError if the requested implementation does not run on the device."""
    usual = AttentionShape(
        device=device,
        dtype=torch.bfloat16,
        query_heads=1,
        kv_heads=1,
        head_size=64,
        window=None,
        is_tree=False,
    )
    reason = None if name == AUTO else BY_NAME[name].unsupported_reason(usual)
    if reason is not None:
        names = [kernel.name for kernel in KERNELS if kernel.unsupported_reason(usual) is None]
        raise UsageError(
            f"--attention-backend {name}: {reason}, and the device is {device}; choose "
            f"{', '.join((AUTO, *names))}"
        )
