"""A draft model as drafter: its distribution, its cache, and padded vocabularies."""

from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decode.drafter import Chunk, Drafter, DrafterForward
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.forward.runner import Output, StockRunner
from specbench.records import Sampling
from tests.decoding.fakes import WithoutProbs
from tests.decoding.lossless import acceptance_rate, assert_texts, decode, make_drafter
from tests.decoding.models import (
    VOCAB_SIZE,
    plain_logits,
    ragged_requests,
    ragged_texts,
    tiny_llama,
)

REQUESTS = ragged_requests()


def resized(model: Any, vocab_size: int) -> Any:
    """The same model with ids cut off, or with padding ids of high probability."""
    other = tiny_llama(vocab_size=vocab_size)
    kept = min(vocab_size, VOCAB_SIZE)
    weights = {
        name: w[:kept] if w.shape[0] == VOCAB_SIZE else w for name, w in model.state_dict().items()
    }
    state = other.state_dict()
    for name, weight in weights.items():
        state[name][: len(weight)] = weight
    state["lm_head.weight"][kept:] *= 100
    return other


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("draft_vocab_size", [VOCAB_SIZE + 15, 80], ids=["wider", "narrower"])
def test_a_draft_of_another_vocab_size_leaves_the_text_unchanged(
    draft_vocab_size: int, k: int
) -> None:
    model = tiny_llama()
    texts = ragged_texts(model)
    assert any(max(text) >= 80 for text in texts), "the target must say ids the smaller draft lacks"
    target = StockRunner(model)
    drafter = make_drafter("draft_model", target, StockRunner(resized(model, draft_vocab_size)))

    results = decode(target, drafter, REQUESTS, k=k)

    assert_texts(results, texts)
    if draft_vocab_size > VOCAB_SIZE:
        assert acceptance_rate(results) == 1
    else:
        assert 0 < acceptance_rate(results) < 1


def proposed(drafter: Drafter, prompt: tuple[int, ...], sampling: Sampling, k: int) -> Any:
    """A proposal after the last token of the prompt."""
    state = State.allocate(1, 64, [], torch.device("cpu"))
    state.tokens_BC[0, : len(prompt)] = torch.tensor(prompt)
    state.length_B1[0] = len(prompt) - 1
    drafter.allocate(1, 64)
    T = len(prompt) - 1
    tokens_BC = state.tokens_BC
    positions_1T = torch.arange(T)[None]
    drafter.prefill(state, Chunk(tokens_BC[:, :T], tokens_BC[:, 1 : T + 1], positions_1T, 64, ()))
    return drafter.propose(state, k, 64, Sampler(sampling))


def probs_after(model: Any, tokens: list[int]) -> Tensor:
    return plain_logits(model, torch.tensor([tokens]))[0, -1].div(0.7).softmax(-1)


@torch.no_grad()
def test_each_draft_has_the_draft_models_distribution_after_the_drafts_before_it() -> None:
    model = tiny_llama()
    prompt = REQUESTS[1].prompt_ids
    runner = StockRunner(model)

    proposal = proposed(
        make_drafter("draft_model", runner, runner), prompt, Sampling(temperature=0.7), 3
    )

    text = list(prompt)
    for i in range(3):
        torch.testing.assert_close(proposal.probs[0, i], probs_after(tiny_llama(), text))
        text.append(int(proposal.tokens_BK[0, i]))


@torch.no_grad()
@pytest.mark.parametrize("draft_vocab_size", [VOCAB_SIZE + 15, 80])
def test_a_distribution_covers_the_targets_vocabulary_and_no_other(draft_vocab_size: int) -> None:
    model = tiny_llama()
    draft = StockRunner(resized(model, draft_vocab_size))

    proposal = proposed(
        make_drafter("draft_model", StockRunner(model), draft),
        (5, 90, 7),
        Sampling(temperature=0.7),
        4,
    )

    assert proposal.probs.shape == (1, 4, VOCAB_SIZE)
    torch.testing.assert_close(proposal.probs.sum(-1), torch.ones(1, 4))
    assert float(proposal.probs[..., draft_vocab_size:].sum()) == 0
    assert int(proposal.tokens_BK.max()) < min(draft_vocab_size, VOCAB_SIZE)


def test_drafts_are_drawn_with_other_noise_than_the_targets_own_tokens() -> None:
    # With the target's noise and its distribution every draft would equal the target's
    # token.
    model = tiny_llama(initializer_range=0.1)
    target = StockRunner(model)
    drafter = WithoutProbs(make_drafter("draft_model", target, StockRunner(model)))

    results = decode(target, drafter, REQUESTS, k=4, sampling=Sampling(temperature=1.0))

    assert acceptance_rate(results) < 0.5


@torch.no_grad()
def test_greedy_drafts_have_no_distribution() -> None:
    runner = StockRunner(tiny_llama())

    proposal = proposed(make_drafter("draft_model", runner, runner), (5, 6, 7), Sampling(), 2)

    assert proposal.probs is None
    assert proposal.num_drafted_B.tolist() == [2]


class CountingStockRunner(StockRunner):
    """Stores the number of tokens per row of each forward."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.fed: list[int] = []

    def forward(self, tokens_BT: Tensor, *args: Any, **kwargs: Any) -> Output:
        self.fed.append(tokens_BT.shape[1])
        return super().forward(tokens_BT, *args, **kwargs)


@torch.no_grad()
@pytest.mark.parametrize(("k", "num_tokens"), [(1, [2]), (4, [2, 1, 1, 1])])
def test_a_proposal_runs_the_declared_forwards(k: int, num_tokens: list[int]) -> None:
    runner = CountingStockRunner(tiny_llama())
    drafter = make_drafter("draft_model", runner, runner)

    proposed(drafter, (5, 6, 7), Sampling(), k)

    _, *fed = runner.fed  # the first is the prefill
    assert drafter.resources.forwards(k) == tuple(DrafterForward(num) for num in num_tokens)
    assert fed == num_tokens
