"""Drafts of a model with another tokenizer: the target's text and distribution, exactly.

False alarm of the test of distributions: 1e-3 for the file, shared equally (Bonferroni) by its
p-values. Seeds are fixed, so an alarm repeats.
"""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from benchmarks.gpu_suite.made_up_tokenizers import made_up_tokenizers
from specbench.decode.drafter import Drafter, Proposal
from specbench.decode.state import State
from specbench.drafters.registry import Parts, build_drafter
from specbench.errors import CompatibilityError
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import Runner, StockRunner
from specbench.models.tokenizer import ChatTokenizer
from specbench.records import Request, Sampling
from tests.decoding.fakes import Flattened, Wrapped
from tests.decoding.graph_bench import Bench, Cycle, make_subject, some_requests
from tests.decoding.lossless import (
    NUM_SAMPLES,
    WARM,
    acceptance_rate,
    assert_texts,
    decode,
    exact_probs,
    make_drafter,
    must_not_load,
    sample_texts,
    sampled_p_value,
    serve,
    texts_of,
)
from tests.decoding.models import exact_llama, generated, random_prompt, tiny_llama
from tests.drafters.test_suffix import ReplaysOfTheDevice
from tests.other_tokenizers import TEXTS, revocabularied, write_byte_level, write_pieces

METHODS = ("token_intersection", "string_match")

# The distribution: ten tokens, six of them in common; four tokens of text, of which the last
# three come from rounds.
VOCAB_SIZE, NUM_TOKENS, LAST = 10, 4, slice(1, 4)
CUT = Sampling(temperature=1.3, top_k=8, top_p=0.9)
CASES = [(method, sampling) for method in METHODS for sampling in (WARM, CUT)]
FALSE_ALARM = 1e-3 / len(CASES)


class Language(NamedTuple):
    target: FusedRunner
    draft: FusedRunner
    model: Any


@cache
def ten_tokens() -> Language:
    shape: dict[str, Any] = {
        **{"vocab_size": VOCAB_SIZE, "hidden_size": 16, "intermediate_size": 16},
        **{"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1},
    }
    models = [tiny_llama(seed, initializer_range=0.15, **shape) for seed in (0, 0, 1)]
    return Language(FusedRunner(models[0]), FusedRunner(models[2]), models[1])


def p_value(
    drafter: Drafter, sampling: Sampling, first_seed: int = 0, num_samples: int = NUM_SAMPLES
) -> tuple[float, float]:
    """p of the joint distribution of the last three tokens, and the share of accepted drafts."""
    texts_N4, accepted = sample_texts(
        ten_tokens().target,
        drafter,
        k=4,
        sampling=sampling,
        first_seed=first_seed,
        num_tokens=NUM_TOKENS,
        num_samples=num_samples,
    )
    return sampled_p_value(texts_N4, exact(sampling), LAST), accepted


@cache
def exact(sampling: Sampling) -> torch.Tensor:
    return exact_probs(ten_tokens().model, sampling, NUM_TOKENS)


# String matching needs no chi-square in every run: its texts equal the target's, one by one.
IN_EVERY_RUN = [("token_intersection", WARM)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "sampling"),
    [pytest.param(*c, marks=() if c in IN_EVERY_RUN else pytest.mark.long) for c in CASES],
)
def test_drafts_of_a_partly_common_vocabulary_keep_the_targets_distribution(method, sampling):
    target, draft, _ = ten_tokens()
    first_seed = CASES.index((method, sampling)) * 20_000  # no two cases share a draw

    p, accepted = p_value(make_drafter(method, target, draft), sampling, first_seed)

    print(f"{method} T={sampling.temperature}: p = {p:.4f}, accepted {accepted:.2f}")
    assert p > FALSE_ALARM
    assert 0.01 < accepted < 0.98, "the case must both keep and refuse drafts"


def test_the_vocabularies_of_the_distribution_test_share_60_percent():
    (target, draft), ids = made_up_tokenizers(VOCAB_SIZE), set(range(VOCAB_SIZE))
    shared = target.vocabulary.ids_by_token.keys() & draft.vocabulary.ids_by_token.keys()
    assert len(shared) == 6
    assert set(target.vocabulary.ids_by_token.values()) == ids


class NotRenormalized(Wrapped):
    """Claims that a draft had its probability over all tokens of the draft model."""

    def change(self, proposal: Proposal) -> Proposal:
        assert proposal.probs is not None
        return proposal._replace(probs=proposal.probs * 0.6)


@pytest.mark.slow
@pytest.mark.parametrize("lie", [NotRenormalized, Flattened])
def test_a_distribution_that_is_not_renormalized_is_detected(lie):
    target, draft, _ = ten_tokens()
    p, _ = p_value(lie(make_drafter("token_intersection", target, draft)), WARM, num_samples=2048)
    print(f"{lie.__name__}: p = {p:.2e}")
    assert p < 1e-6


# Texts: a byte-level target with a draft of pieces, and the other way round.
NUM_PROMPTS, BUDGET = 100, 12


class Pair(NamedTuple):
    target: Runner
    draft: Runner
    tokenizers: tuple[ChatTokenizer, ChatTokenizer]
    prompts: list[tuple[int, ...]]
    texts: list[tuple[int, ...]]  # transformers' own for the first few, then K = 0


def drafter_of(
    method: str, target: Runner, draft: Runner, tokenizers: tuple[ChatTokenizer, ChatTokenizer]
) -> Drafter:
    parts = Parts(target=target, draft_runner=lambda: draft, tokenizers=lambda: tokenizers)
    return build_drafter(method, parts, {})


@pytest.fixture(scope="module", params=["byte-level", "pieces"])
def pair(request, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    made = [write_byte_level(folder / "bytes", 360), write_pieces(folder / "pieces", 420)]
    vocab, other = made if request.param == "byte-level" else made[::-1]
    model = exact_llama(seed=0, vocab_size=len(vocab.ids_by_token))
    words = " ".join(TEXTS).split(" ")
    prompts = []
    for i in range(NUM_PROMPTS):
        start = i % (len(words) - 6)
        ids = vocab.ids(" ".join(words[start : start + 3 + i % 4]))
        prompts.append((*ids, *random_prompt(i // len(words), i, len(vocab.ids_by_token))))
    few = [generated(model, prompt, BUDGET) for prompt in prompts[:4]]
    target = StockRunner(model)
    draft = StockRunner(revocabularied(model, vocab, other))
    requests = [Request(prompt_ids=p, max_new_tokens=BUDGET) for p in prompts]
    texts = texts_of(decode(target, make_drafter("none", target), requests, k=0))
    assert texts[:4] == few
    return Pair(target, draft, (vocab, other), prompts, texts)


@pytest.mark.sampled(one_in=2, every=["method"])
@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_greedy_texts_of_many_prompts_are_the_targets_own(pair: Pair, method: str) -> None:
    drafter = drafter_of(method, pair.target, pair.draft, pair.tokenizers)
    requests = [Request(prompt_ids=p, max_new_tokens=BUDGET) for p in pair.prompts]

    results = decode(pair.target, drafter, requests, k=4)

    assert_texts(results, pair.texts)
    print(f"{method}: accepted {acceptance_rate(results):.3f}")
    assert 0.02 < acceptance_rate(results) < 0.98, "drafts must be both kept and refused"


class BlindDrafter(Wrapped):
    """Sees nothing of a graph's replay, as nothing on the host does."""

    is_replaying = False

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        self.observe = self._observe

    def _observe(self, state: State, outcome: Any) -> None:
        if not self.is_replaying:
            self.inner.observe(state, outcome)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", METHODS)
def test_drafts_of_another_tokenizer_equal_under_graphs(method: str, sampling: Sampling) -> None:
    llama = make_subject()
    requests = some_requests()
    eager = make_drafter(method, llama.target, llama.stranger)
    policy = (4, 0, 0, 0, 4, 0, 1, 2)
    expected = serve(llama.target, eager, requests, Cycle(*policy), 3, sampling).results
    drafter = BlindDrafter(make_drafter(method, llama.target, llama.stranger))
    bench = Bench(llama, drafter, graphs=ReplaysOfTheDevice(drafter))

    results = bench.serve(requests, Cycle(*policy), 3, sampling)

    # Later rows start in other rounds, at other K, which a drawn draft's text follows.
    num = len(results) if sampling.temperature == 0 else 3
    assert_texts(results[:num], texts_of(expected[:num]))
    assert bench.launcher.graph == "step"
    assert bench.launcher.reason.endswith("the host")
    assert [r.rounds.num_drafted for r in results[:3]] == [
        r.rounds.num_drafted for r in expected[:3]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_text_of_more_draft_tokens_enlarges_the_draft_cache(method: str, tmp_path: Path) -> None:
    merged = write_byte_level(tmp_path / "merged", 420)
    other = write_byte_level(tmp_path / "bytes", 258)  # only bytes
    model = exact_llama(seed=0, vocab_size=len(merged.ids_by_token))
    target, draft = StockRunner(model), StockRunner(revocabularied(model, merged, other))
    prompt = merged.ids(" ".join(TEXTS))[:60]
    requests = [Request(prompt_ids=prompt, max_new_tokens=BUDGET)] * 2
    expected = decode(target, make_drafter("none", target), requests, k=0)

    results = decode(target, drafter_of(method, target, draft, (merged, other)), requests, k=4)

    assert_texts(results, texts_of(expected))
    assert draft.cache.max_len > 2 * target.cache.max_len
    again = decode(target, drafter_of(method, target, draft, (merged, other)), requests, k=4)
    accepted = [result.rounds.num_accepted for result in results]
    assert accepted == [result.rounds.num_accepted for result in again]  # the row has capacity now


def test_vocabularies_without_a_token_in_common_are_refused_before_the_draft_is_loaded() -> None:
    tokenizer, _ = made_up_tokenizers(VOCAB_SIZE)
    vocabulary = tokenizer.vocabulary
    untold = tokenizer._replace(vocabulary=vocabulary._replace(spelling=None))
    parts = Parts(
        target=ten_tokens().target,
        draft_runner=must_not_load,
        tokenizers=lambda: (tokenizer, untold),
    )
    for method in METHODS:
        with pytest.raises(CompatibilityError, match="no token"):
            build_drafter(method, parts, {})
