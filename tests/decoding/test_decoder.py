"""Requests from first prompt token to last output token, on a Llama with random weights."""

from typing import Any, NamedTuple

import pytest
import torch

from specbench.decode.drafter import NoDrafter
from specbench.errors import ModelError
from specbench.forward.runner import StockRunner
from specbench.records import Request, Sampling
from tests.decoding.fakes import CountingRunner
from tests.decoding.lossless import acceptance_rate, assert_texts, decode, make_drafter
from tests.decoding.models import (
    ARCHITECTURES,
    build,
    exact_llama,
    generated,
    ragged_prompts,
    ragged_texts,
    random_prompt,
)

WARM = Sampling(temperature=0.8, top_p=0.95)


class Subject(NamedTuple):
    """A model over slots, a draft model with other weights, and the texts they must not change."""

    target: StockRunner
    own_draft: StockRunner
    stranger: StockRunner
    texts: list[tuple[int, ...]]  # 24 tokens for each of the ragged prompts


def make_subject(model: Any, stranger: Any) -> Subject:
    texts = ragged_texts(model)
    return Subject(StockRunner(model), StockRunner(model), StockRunner(stranger), texts)


@pytest.fixture(scope="module")
def llama() -> Subject:
    return make_subject(exact_llama(seed=0), exact_llama(seed=1))


def requests(num_tokens: int = 24) -> list[Request]:
    return [
        Request(prompt_ids=prompt, max_new_tokens=num_tokens, seed=100 + row)
        for row, prompt in enumerate(ragged_prompts())
    ]


@pytest.mark.parametrize("prefill_chunk", [1, 4, 9, 15])
def test_prefill_in_chunks_gives_the_text_of_one_chunk(llama: Subject, prefill_chunk: int) -> None:
    drafter = make_drafter("draft_model", llama.target, llama.own_draft)

    results = decode(llama.target, drafter, requests(), k=4, prefill_chunk=prefill_chunk)

    assert_texts(results, llama.texts)
    assert acceptance_rate(results) == 1  # the draft model's cache was filled in the same way


def test_prefill_feeds_each_position_once_in_chunks_of_the_given_size() -> None:
    target = CountingRunner()
    prompts = [tuple(range(1, 11)), (1, 2, 3)]

    decode(
        target,
        NoDrafter(),
        [Request(prompt_ids=p, max_new_tokens=1) for p in prompts],
        k=0,
        prefill_chunk=4,
    )

    fed = [positions_BT[0].tolist() for positions_BT in target.fed]
    assert fed == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_prompt_of_one_token_decodes_correctly() -> None:
    model = exact_llama(seed=0)
    text = generated(model, (7,), 10)
    target = StockRunner(model)
    drafter = make_drafter("draft_model", target, StockRunner(model))

    results = decode(target, drafter, [Request(prompt_ids=(7,), max_new_tokens=10)], k=3)

    assert_texts(results, [text])
    assert acceptance_rate(results) == 1


def test_slots_left_by_a_longer_batch_do_not_leak_into_the_next(llama: Subject) -> None:
    drafter = make_drafter("draft_model", llama.target, llama.own_draft)
    longer = [
        Request(prompt_ids=random_prompt(60, seed=row), max_new_tokens=40) for row in range(3)
    ]
    decode(llama.target, drafter, longer, k=8)
    cache_before = llama.target.cache

    results = decode(llama.target, drafter, requests(), k=4)

    assert llama.target.cache is cache_before
    assert_texts(results, llama.texts)
    assert acceptance_rate(results) == 1


def test_slots_are_rebuilt_for_another_number_of_rows(llama: Subject) -> None:
    drafter = make_drafter("draft_model", llama.target, llama.stranger)

    decode(llama.target, drafter, requests()[:1], k=2)
    results = decode(llama.target, drafter, requests(), k=2)

    assert_texts(results, llama.texts)


def test_a_request_longer_than_the_context_is_refused_with_both_numbers() -> None:
    target = CountingRunner(max_position=16)
    request = Request(prompt_ids=tuple(range(10)), max_new_tokens=7)

    with pytest.raises(ModelError, match=r"17.*16"):
        decode(target, NoDrafter(), [request], k=0)


@pytest.mark.parametrize("architecture", ["Llama", "GPT-2"])
def test_drafts_past_the_context_leave_the_last_tokens_unchanged(architecture: str) -> None:
    # Room for exactly prompt and output; learned positions (GPT-2) end there for good.
    config = ARCHITECTURES[architecture]()
    config.max_position_embeddings = 32
    model = build(config)
    prompt = random_prompt(20, seed=3)
    text = generated(model, prompt, 12)
    target = StockRunner(model)
    drafter = make_drafter("draft_model", target, StockRunner(model))

    results = decode(target, drafter, [Request(prompt_ids=prompt, max_new_tokens=12)], k=8)

    assert_texts(results, [text])


def test_sampled_text_depends_on_the_seed(llama: Subject) -> None:
    prompt = ragged_prompts()[0]
    seeds = (1, 2, 1)
    same_prompt = [Request(prompt_ids=prompt, max_new_tokens=24, seed=s) for s in seeds]

    first, second, third = decode(llama.target, NoDrafter(), same_prompt, k=0, sampling=WARM)

    assert first.output_ids == third.output_ids != second.output_ids


def test_decoding_does_not_change_the_models_weights(llama: Subject) -> None:
    before = [p.clone() for p in llama.target.model.parameters()]

    decode(llama.target, NoDrafter(), requests(4), k=0)

    assert all(
        torch.equal(a, b) for a, b in zip(before, llama.target.model.parameters(), strict=True)
    )
