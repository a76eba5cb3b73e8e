"""The bound of a tie: 32 rounding steps in float32, 8 in the half precisions."""

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from specbench.verify.judge import is_tie
from specbench.verify.reference_model import ReferenceModel

BEST, WORSE = 3, 5


class FixedLogits(ReferenceModel):
    """A target with the same logits after every text."""

    def __init__(self, logits_V: Tensor) -> None:
        self._logits_V = logits_V

    def logits(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> Iterator[Tensor]:  # noqa: ARG002
        yield self._logits_V.expand(len(output_ids), -1)


def reference(dtype: torch.dtype, num_steps: int) -> FixedLogits:
    """The best logit is 16, with 16 eps in the last place; WORSE is `num_steps` of those below."""
    logits_V = torch.zeros(7, dtype=dtype)
    logits_V[BEST] = 16
    logits_V[WORSE] = 16 - num_steps * 16 * torch.finfo(dtype).eps
    return FixedLogits(logits_V)


@pytest.mark.parametrize(
    ("dtype", "num_steps", "tie"),
    [
        (torch.float32, 31, True),
        (torch.float32, 32, True),
        (torch.float32, 33, False),
        (torch.bfloat16, 7, True),
        (torch.bfloat16, 8, True),
        (torch.bfloat16, 9, False),
        (torch.float16, 8, True),
        (torch.float16, 9, False),
    ],
)
def test_a_tie_ends_at_its_steps(dtype: torch.dtype, num_steps: int, tie: bool) -> None:
    model = reference(dtype, num_steps)

    left = model.divergence("p0", [1], expected=[BEST, BEST], actual=[BEST, WORSE])
    (departed,) = model.departures("p0", [1], [BEST, WORSE])

    assert left is not None
    assert (left.position, departed.position) == (1, 1)
    assert left.steps == departed.steps == num_steps
    assert is_tie(left) is is_tie(departed) is tie


def test_a_shorter_text_diverges_at_its_end() -> None:
    divergence = reference(torch.float32, 1).divergence("p0", [1], [BEST, BEST], [BEST])
    assert divergence is not None
    assert (divergence.position, divergence.found, divergence.steps) == (1, None, None)
