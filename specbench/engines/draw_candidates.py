"""Our kernels that draw are compared with torch's operations, over a model's own vocabulary.

Right means: the same numbers and tokens but for rounding. Shape suffixes: B rows, T positions, V
vocabulary.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decode.nucleus import nucleus
from specbench.decode.sampling import Purpose, Sampler, draw, exponential, uniform
from specbench.forward.autotune import Outcome, Results, Timing, Work, autotune
from specbench.forward.kernels.availability import DRAWS, TOP_P, Switch
from specbench.records import Sampling

TRITON, TORCH = "triton", "torch"
NAMES = (TRITON, TORCH)  # in the order that decides among equals
_B, _T = 2, 5  # K = 4
_TEMPERATURE, _TOP_P = 0.7, 0.9
_NEAR = 1e-4  # of a logarithm: two tokens this near may change places
_MOVED = 1e-3  # of a distribution: the token at the cut may stay or go


class _Numbers(NamedTuple):
    logits_BTV: Tensor
    probs_BTV: Tensor
    seeds_B: Tensor
    positions_BT: Tensor


class Drawing(NamedTuple):
    """What is drawn with our kernels or without them, and what is wrong with it."""

    name: str
    switch: Switch
    drawn: Callable[[_Numbers], Results]
    wrong: Callable[[_Numbers, Results, Results], str | None]


@torch.inference_mode()
def autotune_draws(
    drawing: Drawing, vocab_size: int, dtype: torch.dtype, device: torch.device, timing: Timing
) -> Outcome:
    """Our kernels if they are right and the faster, else torch."""
    numbers = _random_numbers(vocab_size, dtype, device)

    def drawn(name: str) -> Results:
        with drawing.switch.turned(vocab_size, on=name == TRITON):
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
    """Uniform numbers to the last bit, noise but for rounding, tokens but for near-ties."""
    (chances_BT, noise_BTV, *tokens), (own_BT, own_BTV, *_) = drawn, expected
    if not torch.equal(chances_BT, own_BT):
        return "its uniform numbers are others"
    if not torch.allclose(noise_BTV, own_BTV, rtol=_NEAR, atol=0.0):
        return "its noise is another"
    scores_BTV = numbers.probs_BTV.double().log() - own_BTV.double().log()
    best_BT = scores_BTV.amax(-1)
    for tokens_BT in tokens:
        if not bool(((tokens_BT >= 0) & (tokens_BT < scores_BTV.shape[-1])).all()):
            return "its tokens are out of bounds"
        if not bool((best_BT - scores_BTV.gather(-1, tokens_BT[..., None])[..., 0] < _NEAR).all()):
            return "its tokens are others"
    return None


def _cut(numbers: _Numbers) -> Results:
    return (nucleus(numbers.logits_BTV.float(), _TOP_P),)


def _wrong_cut(numbers: _Numbers, drawn: Results, expected: Results) -> str | None:  # noqa: ARG001
    moved = float((drawn[0] - expected[0]).abs().sum(-1).max())
    return None if moved <= _MOVED else f"{moved:.2g} of a distribution is elsewhere"


DRAWINGS = (
    Drawing("draws", DRAWS, _draws, _wrong_draws),
    Drawing("top-p", TOP_P, _cut, _wrong_cut),
)
