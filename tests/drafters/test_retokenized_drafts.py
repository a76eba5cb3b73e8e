"""What a draft with another tokenizer drafts, on vocabularies that a reader can check by hand."""

from typing import Any

import pytest
import torch

from benchmarks.gpu_suite.made_up_tokenizers import MadeUpTokenizer, made_up_tokenizers
from specbench.decode.drafter import Proposal
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.registry import Parts, build_drafter
from specbench.files.tokenizer import Vocabulary, common_tokens
from specbench.forward.runner import Runner, StockRunner
from specbench.models.retokenizer import LONGEST_WORD, Retokenizer
from specbench.models.tokenizer import ChatTokenizer
from specbench.records import Sampling
from tests.decoding.fakes import CountingRunner
from tests.decoding.lossless import WARM
from tests.decoding.models import plain_logits, tiny_llama
from tests.decoding.test_retokenizer import Prepending

VOCAB_SIZE = 10


def tokenizer(*tokens: str, special: tuple[int, ...] = ()) -> MadeUpTokenizer:
    ids = {token: i for i, token in enumerate(tokens)}
    return MadeUpTokenizer(Vocabulary(ids, frozenset(special), "pieces"))


def proposed(
    method: str,
    text: tuple[int, ...],
    runners: tuple[Runner, Runner],
    tokenizers: tuple[ChatTokenizer, ChatTokenizer],
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
) -> Proposal:
    """Three drafts after a text, of which the last token is the current one."""
    target, draft = runners
    parts = Parts(target=target, draft_runner=lambda: draft, tokenizers=lambda: tokenizers)
    drafter = build_drafter(method, parts, {})
    drafter.allocate(1, 64)
    state = State.allocate(1, 64, [], torch.device("cpu"))
    state.tokens_BC[0, : len(text)] = torch.tensor(text)
    state.length_B1[0] = len(text) - 1
    return drafter.propose(state, 3, 64, Sampler(sampling))


@torch.no_grad()
def test_drafts_are_drawn_from_the_drafts_own_distribution_over_the_common_tokens() -> None:
    models = [tiny_llama(seed, vocab_size=VOCAB_SIZE, initializer_range=0.15) for seed in (0, 1, 1)]
    tokenizers, text = made_up_tokenizers(VOCAB_SIZE), (1, 3, 7, 5)
    own, of_draft = (made.vocabulary for made in tokenizers)
    draft_ids = dict(common_tokens(own, of_draft).draft_ids)

    runners = (StockRunner(models[0]), StockRunner(models[1]))
    proposal = proposed("token_intersection", text, runners, tokenizers, WARM)

    assert proposal.probs is not None
    # Token 7 is the characters of tokens 1 and 2, which the draft has apart.
    names = {i: name for name, i in own.ids_by_token.items()}
    assert names[7] == names[1] + names[2]
    known: list[int] = [draft_ids[i] for i in (1, 3, 1, 2, 5)]
    for i, token in enumerate(proposal.tokens_BK[0].tolist()):
        logits_V: Any = plain_logits(models[2], torch.tensor([known]))[0, -1]
        expected_V = torch.zeros(VOCAB_SIZE)
        ids_S = torch.tensor(list(draft_ids.values()))
        expected_V[list(draft_ids)] = (logits_V[ids_S] / 0.7).softmax(-1)
        torch.testing.assert_close(proposal.probs[0, i], expected_V, atol=1e-5, rtol=1e-4)
        known.append(draft_ids[token])


@pytest.mark.parametrize(
    ("end", "drafts"),
    [("<end>", [1, 3]), ("</s>", [1])],
    ids=["of a name that the target has", "of another name"],
)
def test_text_is_drafted_up_to_the_drafts_first_special_token(end, drafts) -> None:
    target = tokenizer(" a", "b", "c", "<end>", special=(3,))
    draft = tokenizer(" a", "b", end, "c", special=(2,))
    runners = (CountingRunner(4), CountingRunner(4))  # after 0 comes 1, then 2, then 3
    runners[1].cache = type("Cache", (), {"max_len": 64})()  # type: ignore[assignment]

    proposal = proposed("string_match", (0, 1, 0), runners, (target, draft))

    (num,) = proposal.num_drafted_B.tolist()
    assert proposal.tokens_BK[0, :num].tolist() == drafts


@pytest.mark.parametrize(
    ("tokens", "drafts"),
    [
        ((" a", "b", "c", "d"), [2, 3, 0]),
        ((" a", "b", "c", "d", "bc"), [2, 3, 0]),  # `bc` would reach back into the text
        ((" a", "b", "c"), []),  # no token spells `d`: what is left is another text
    ],
    ids=["the same", "a token straddles", "a token is missing"],
)
def test_retokenized_drafts_spell_the_draft_models_text_or_are_empty(tokens, drafts) -> None:
    runners = (CountingRunner(len(tokens)), CountingRunner(4))  # after ` ab` come `c`, `d`, ` a`
    runners[1].cache = type("Cache", (), {"max_len": 64})()  # type: ignore[assignment]
    tokenizers = tokenizer(*tokens), tokenizer(" a", "b", "c", "d")

    proposal = proposed("string_match", (0, 1), runners, tokenizers)

    (num,) = proposal.num_drafted_B.tolist()
    assert proposal.tokens_BK[0, :num].tolist() == drafts


def test_a_text_without_spaces_is_cut_into_words_of_limited_length() -> None:
    one = tokenizer("a", "b")
    reading = Retokenizer(one, one).read()
    reading.extend([0, 1] * 200)
    assert 0 < len(reading.word) <= LONGEST_WORD
    assert reading.ids == [0, 1] * 200

    full = Retokenizer(one, one).read()
    full.extend([0] * LONGEST_WORD)
    assert len(full.word) == LONGEST_WORD
    full.extend([0])
    assert len(full.word) == 1


def test_successive_spaces_are_retokenized_as_one_word() -> None:
    target, draft = tokenizer(" ", " a"), tokenizer("  ", " ", "a")
    retokenizer = Retokenizer(target, draft)
    reading = retokenizer.read()
    reading.extend([0, 1])
    assert reading.ids == retokenizer.encoder.encode(b"  a") == [0, 2]


def test_drafts_continue_the_open_word_despite_a_leading_space() -> None:
    pieces = {"\u2581": 0, "a": 1, "b": 2, "c": 3}
    target = Prepending(Vocabulary(pieces, frozenset(), "pieces"))
    runners = (CountingRunner(4), CountingRunner(3))  # after ` a` come `b`, `c`, ` a`
    runners[1].cache = type("Cache", (), {"max_len": 64})()  # type: ignore[assignment]

    proposal = proposed("string_match", (0, 1), runners, (target, tokenizer(" a", "b", "c")))

    assert proposal.tokens_BK[0].tolist() == [2, 3, 0]


def test_tokens_that_the_draft_model_has_no_row_for_are_never_drafted() -> None:
    both = tokenizer(" a", "b", "c", "d")
    runners = (CountingRunner(4), CountingRunner(3))
    runners[1].cache = type("Cache", (), {"max_len": 64})()  # type: ignore[assignment]

    proposal = proposed("token_intersection", (0, 1), runners, (both, both))

    assert proposal.tokens_BK[0].tolist() == [2, 0, 1]
