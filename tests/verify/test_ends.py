"""Where a greedy text has to end, be there a text of K = 0 to hold it to or not."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specbench.engines.engine import Work
from specbench.verify.collect import Collector, EngineUnderTest, VerificationPrompt
from specbench.verify.judge import Finding, judge
from tests.verify.test_ties import BEST, WORSE, Saying

EOS, MOST = 6, 4
ENGINE: Any = SimpleNamespace(name="fake", eos_ids=(EOS,))


def greedy(text: tuple[int, ...], baseline: tuple[int, ...] | None = None) -> Finding:
    """The verdict on a text of a target that says BEST again and again, WORSE being a tie."""
    logits_V = torch.zeros(7)
    logits_V[BEST] = logits_V[WORSE] = logits_V[EOS] = 16
    question = VerificationPrompt(id="p0", prompt_ids=(1,), max_new_tokens=MOST)
    collector = Collector(Saying(logits_V), [question], seed=0)
    k = 0 if baseline is None else 4
    who = EngineUnderTest("demo/x", ENGINE, Work(drafter="x", method="ngram", k=k))
    (finding,) = judge([collector.greedy(who, [text], None if baseline is None else [baseline])])
    return finding


@pytest.mark.parametrize("text", [(BEST,) * MOST, (BEST, EOS), (EOS,), (BEST, BEST, BEST, EOS)])
def test_a_text_ends_with_its_end_or_with_the_last_token_asked_for(text):
    assert greedy(text).lossless
    assert greedy(text, baseline=(WORSE,) * MOST).lossless  # a tie, and an end of its own


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ((BEST, BEST), 2, "the text stops early"),
        ((BEST, EOS, BEST, BEST), 2, "the text runs past its end"),
        ((BEST,) * (MOST + 1), MOST, "the text runs past its end"),
    ],
)
def test_any_other_end_is_a_bug(text, position, says):
    for baseline in (None, (WORSE,) * MOST):
        found = greedy(text, baseline)
        assert (found.verdict, found.first_divergence.position) == ("mismatch", position)
        assert says in found.reason


def test_what_k_0_does_as_well_is_no_fault_of_speculation():
    cut = (BEST, BEST)
    assert greedy(cut, baseline=cut).verdict == "identical"
