"""Drafts from a draft model with another tokenizer, on vocabularies that can be checked by hand."""

from typing import Any, NamedTuple

import pytest
import torch

from benchmarks.gpu_suite.made_up_tokenizers import MadeUpTokenizer, made_up_tokenizers
from specbench.decode.drafter import Proposal
from specbench.decode.round import run_round
from specbench.decode.rows import PrefillRequest, Rows
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.registry import Parts, build_drafter
from specbench.drafters.shared.retokenized_model import RetokenizedModel
from specbench.files.tokenizer import Vocabulary, common_tokens
from specbench.forward.runner import Runner, StockRunner
from specbench.models.retokenizer import LONGEST_WORD, Retokenizer
from specbench.models.tokenizer import ChatTokenizer
from specbench.records import Request, Sampling
from tests.decoding.fakes import CountingRunner
from tests.decoding.lossless import WARM, filled_rows, make_drafter
from tests.decoding.models import plain_logits, random_prompt, tiny_llama
from tests.decoding.test_retokenizer import Prepending
from tests.drafters.test_draft_model import CountingStockRunner
from tests.drafters.test_other_tokenizers import METHODS

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
    of_target, of_draft = (made.vocabulary for made in tokenizers)
    draft_ids = dict(common_tokens(of_target, of_draft).draft_ids)

    runners = (StockRunner(models[0]), StockRunner(models[1]))
    proposal = proposed("token_intersection", text, runners, tokenizers, WARM)

    assert proposal.probs is not None
    # Token 7 is the characters of tokens 1 and 2, which the draft has apart.
    names = {i: name for name, i in of_target.ids_by_token.items()}
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
    vocab = tokenizer("a", "b")
    reading = Retokenizer(vocab, vocab).read()
    reading.extend([0, 1] * 200)
    assert 0 < len(reading.word) <= LONGEST_WORD
    assert reading.ids == [0, 1] * 200

    full = Retokenizer(vocab, vocab).read()
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


class FilledRows(NamedTuple):
    rows: Rows
    draft: CountingStockRunner

    def fed_in_a_round(self, num_rows: int) -> list[int]:
        """Tokens of a row in each of the draft's forwards in a round with three drafts."""
        self.draft.fed.clear()
        state, sampler = self.rows.state.rows(0, num_rows), Sampler(Sampling())
        run_round(self.rows.target, self.rows.drafter, state, sampler, k=3, span=64)
        return self.draft.fed


@torch.inference_mode()
def filled(method: str, *lengths: int, are_samples: bool = False) -> FilledRows:
    """Rows of prompts of the given lengths; samples share one prompt."""
    target, draft = StockRunner(tiny_llama()), CountingStockRunner(tiny_llama(1))
    prompts = [random_prompt(n, 0 if are_samples else i) for i, n in enumerate(lengths)]
    requests = [
        Request(prompt_ids=ids, max_new_tokens=30, seed=i, is_sample=are_samples)
        for i, ids in enumerate(prompts)
    ]
    drafter = make_drafter(method, target, draft)
    return FilledRows(filled_rows(target, drafter, requests, num_rows=2), draft)


THE_LAST_TOKEN_AND_DRAFTS = [1, 1, 1]  # not the prompt again


@torch.inference_mode()
@pytest.mark.parametrize("method", METHODS)
def test_a_row_that_moves_keeps_its_keys(method: str) -> None:
    made = filled(method, 9, 20)
    made.rows.move_row(1, 0, 21)
    assert made.fed_in_a_round(1) == THE_LAST_TOKEN_AND_DRAFTS


@torch.inference_mode()
@pytest.mark.parametrize("method", METHODS)
def test_all_samples_of_a_prompt_are_prefilled_before_the_first_round(method: str) -> None:
    assert filled(method, 20, 20, are_samples=True).fed_in_a_round(2) == THE_LAST_TOKEN_AND_DRAFTS


@torch.inference_mode()
@pytest.mark.parametrize("method", METHODS)
def test_a_cache_that_grew_is_empty_and_reads_the_text_again(method: str) -> None:
    made = filled(method, 9, 20)
    drafter, state = made.rows.drafter, made.rows.state.rows(0, 2)
    assert isinstance(drafter, RetokenizedModel)
    drafter.feed_texts(state, 0)
    made.draft.fed.clear()
    drafter.feed_texts(state, drafter.runner.cache.max_len)
    assert sum(made.draft.fed) >= 20


@torch.inference_mode()
@pytest.mark.parametrize("method", METHODS)
def test_retokenized_length_follows_the_text_length_of_the_row(method: str) -> None:
    made = filled(method, 9, 20)
    drafter, state = made.rows.drafter, made.rows.state.rows(0, 2)
    assert isinstance(drafter, RetokenizedModel)
    whole = drafter.feed_texts(state, 0).length_B1
    state.length_B1.fill_(4)
    assert (drafter.feed_texts(state, 0).length_B1 < whole).all()


@torch.inference_mode()
@pytest.mark.parametrize("method", METHODS)
def test_a_restarted_row_reads_only_its_new_text(method: str) -> None:
    used, fresh = filled(method, 9), filled(method, 9)
    prompt = random_prompt(20, 7)
    readings = []
    for made, row in ((used, 0), (fresh, 1)):
        fill = PrefillRequest(row, Request(prompt_ids=prompt, max_new_tokens=30))
        made.rows.fill([fill], Sampler(Sampling()))
        drafter = made.rows.drafter
        assert isinstance(drafter, RetokenizedModel)
        drafter.feed_texts(made.rows.state.rows(row, 1), 0)
        readings.append(drafter._rows[row].reading.ids)
    assert readings[0] == readings[1]
