"""Every drafter of the catalogue changes speed and never the text; a new file is tested too.

Their sampled texts are tested in decoding/test_sampled_distribution.py, their rounds on a device in
decoding/test_device_program.py, both over the same catalogue.
"""

from functools import cache
from typing import NamedTuple

import pytest

from specbench.forward.runner import StockRunner
from specbench.records import Request
from tests.decoding.lossless import assert_texts, decode, deepest, make_drafter, until_eos
from tests.decoding.models import exact_llama, generated, ragged_prompts, random_prompt
from tests.drafters.variants import VARIANTS, Variant

BUDGETS = (24, 3, 17, 24)


class Subject(NamedTuple):
    target: StockRunner
    draft: StockRunner
    texts: list[tuple[int, ...]]


def prompts() -> list[tuple[int, ...]]:
    """Ragged ones, and one that repeats itself for lookups to find."""
    return [*ragged_prompts(), random_prompt(7, seed=1) * 3]


@cache
def subject() -> Subject:
    model = exact_llama(seed=0)
    texts = [generated(model, p, n) for p, n in zip(prompts(), BUDGETS, strict=True)]
    return Subject(StockRunner(model), StockRunner(exact_llama(seed=1)), texts)


def requests() -> list[Request]:
    """Each with a prediction that is right for a while."""
    return [
        Request(prompt_ids=p, max_new_tokens=n, prediction_ids=(*text[:8], 0, *text[10:]))
        for p, n, text in zip(prompts(), BUDGETS, subject().texts, strict=True)
    ]


@pytest.mark.sampled(one_in=3, every=["variant", "k"])
@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_greedy_text_is_that_of_generate_and_rounds_add_up(variant: Variant, k: int) -> None:
    target, draft, texts = subject()

    drafter = make_drafter(variant.method, target, draft, **variant.parameters)
    k = deepest(drafter, k)

    results = decode(target, drafter, requests(), k=k)

    assert_texts(results, texts)
    for result, budget in zip(results, BUDGETS, strict=True):
        check = result.answer_check
        log, left = result.rounds, budget - 1 - (check.num_emitted if check else 0)
        for drafted, accepted, emitted in zip(
            log.num_drafted, log.num_accepted, log.num_emitted, strict=True
        ):
            assert 0 <= accepted <= min(k, left - 1)
            assert accepted <= drafted <= drafter.num_drafts(k)
            assert drafted <= left - 1 or drafter.num_drafts(k) > k, "a chain drafts within budget"
            assert emitted == accepted + 1
            left -= emitted
        assert left == 0


@pytest.mark.sampled(one_in=3, every=["variant.method"])
@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_an_end_of_text_ends_every_drafters_text_at_the_same_token(variant: Variant) -> None:
    target, draft, texts = subject()
    eos_ids = (texts[0][7], texts[3][12])

    drafter = make_drafter(variant.method, target, draft, **variant.parameters)
    results = decode(target, drafter, requests(), k=deepest(drafter, 4), eos_ids=eos_ids)

    assert_texts(results, [until_eos(text, eos_ids) for text in texts])
    for result in results:
        log = result.rounds
        for accepted, emitted in zip(log.num_accepted, log.num_emitted, strict=True):
            assert accepted <= emitted <= accepted + 1
