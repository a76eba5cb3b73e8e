"""Greedy texts by the target's logits: the bound of a tie, and where a text has to end."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engines.engine import Work
from specbench.verify.collect import Collector, EngineUnderTest, VerificationPrompt
from specbench.verify.judge import Finding, is_tie, judge
from specbench.verify.reference_model import ReferenceModel

BEST, WORSE = 3, 5
EOS, MOST = 6, 4
ENGINE: Any = SimpleNamespace(name="fake", eos_ids=(EOS,))


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


def greedy(text: tuple[int, ...], baseline: tuple[int, ...] | None = None) -> Finding:
    """The verdict on a text of a target whose best token is always BEST, or WORSE by a tie."""
    logits_V = torch.zeros(7)
    logits_V[BEST] = logits_V[WORSE] = logits_V[EOS] = 16
    question = VerificationPrompt(id="p0", prompt_ids=(1,), max_new_tokens=MOST)
    collector = Collector(FixedLogits(logits_V), [question], seed=0)
    k = 0 if baseline is None else 4
    who = EngineUnderTest("demo/x", ENGINE, Work(drafter="x", method="ngram", k=k))
    (finding,) = judge([collector.greedy(who, [text], None if baseline is None else [baseline])])
    return finding


@pytest.mark.parametrize("text", [(BEST,) * MOST, (BEST, EOS), (EOS,), (BEST, BEST, BEST, EOS)])
def test_a_text_may_end_with_eos_or_with_the_last_requested_token(text):
    assert greedy(text).lossless
    assert greedy(text, baseline=(WORSE,) * MOST).lossless  # a tie, then another end


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ((BEST, BEST), 2, "the text stops early"),
        ((BEST, EOS, BEST, BEST), 2, "the text runs past its end"),
        ((BEST,) * (MOST + 1), MOST, "the text runs past its end"),
    ],
)
def test_any_other_end_is_a_mismatch(text, position, says):
    for baseline in (None, (WORSE,) * MOST):
        found = greedy(text, baseline)
        assert (found.verdict, found.first_divergence.position) == ("mismatch", position)
        assert says in found.reason


def test_an_end_that_k_0_shares_is_not_a_fault_of_speculation():
    cut = (BEST, BEST)
    assert greedy(cut, baseline=cut).verdict == "identical"
