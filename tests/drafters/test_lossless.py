"""Every drafter of pairings.yaml changes speed and never the text; a new file is tested too.

Random drafters seldom see all their drafts kept, so one of the deepest paths of their proposals is
also made the target's own text. Their sampled texts are tested in
decoding/test_sampled_distribution.py, their rounds on a device in decoding/test_device_program.py.
"""

from functools import cache
from typing import NamedTuple

import pytest
from torch import Tensor

from specbench.decode import round as one_round
from specbench.forward.runner import StockRunner
from specbench.methods import Method, all_methods
from specbench.records import Request, Result
from tests.decoding.conftest import Plant
from tests.decoding.fakes import Foreseeing
from tests.decoding.lossless import assert_texts, decode, deepest, make_drafter, until_eos
from tests.decoding.models import exact_llama, generated, ragged_prompts, random_prompt
from tests.drafters.variants import STOPPING, VARIANTS, Variant

BUDGETS = (24, 3, 17, 24)


class Subject(NamedTuple):
    target: StockRunner
    draft: StockRunner
    texts: list[tuple[int, ...]]


def prompts() -> list[tuple[int, ...]]:
    """Ragged prompts, and one that repeats itself so that lookups find drafts."""
    return [*ragged_prompts(), random_prompt(7, seed=1) * 3]


@cache
def subject() -> Subject:
    model = exact_llama(seed=0)
    texts = [generated(model, p, n) for p, n in zip(prompts(), BUDGETS, strict=True)]
    return Subject(StockRunner(model), StockRunner(exact_llama(seed=1)), texts)


def requests() -> list[Request]:
    """Requests, each with a prediction that is right for a while."""
    return [
        Request(prompt_ids=p, max_new_tokens=n, prediction_ids=(*text[:8], 0, *text[10:]))
        for p, n, text in zip(prompts(), BUDGETS, subject().texts, strict=True)
    ]


@pytest.mark.sampled(one_in=3, every=["variant", "k"])
@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("variant", [*VARIANTS, *STOPPING], ids=str)
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


@pytest.mark.parametrize("method", [m for m in all_methods() if m.draws], ids=lambda m: m.name)
def test_a_drafter_that_is_never_sure_enough_drafts_nothing(method: Method) -> None:
    target, draft, texts = subject()
    chain = {} if method.takes_p_min({}) else {"tree": "chain"}
    assert method.takes_p_min(chain)

    drafter = make_drafter(method.name, target, draft, p_min=1.1, **chain)
    results = decode(target, drafter, requests(), k=deepest(drafter, 4))

    assert_texts(results, texts)
    assert not any(drafted for result in results for drafted in result.rounds.num_drafted)


K = 4

TREES = (
    "eagle",
    "eagle3",
    "lookahead",
    "medusa",
    "token_recycling",
    "draft_model, tree 3 2",
    "medusa, 5 drafts",
    "eagle, static",
    "eagle3, static",
    "lookahead, window 3 ngram 3 guesses 2",
    "self_speculation, tree 3 2",
    "token_recycling, 12 drafts",
)


def variant_named(name: str) -> Variant:
    return next(variant for variant in VARIANTS if variant.name == name)


def decoded(variant: Variant, eos_ids: tuple[int, ...] = ()) -> tuple[list[Result], int]:
    """Results with correct texts, and the depth of a round."""
    target, draft, texts = subject()
    inner = make_drafter(variant.method, target, draft, **variant.parameters)
    drafter = Foreseeing(inner, dict(zip(prompts(), texts, strict=True)))
    k = deepest(inner, K)
    results = decode(target, drafter, requests(), k=k, eos_ids=eos_ids)
    assert_texts(results, [until_eos(text, eos_ids) for text in texts])
    return results, k


@cache
def whole_texts(name: str) -> list[Result]:
    return decoded(variant_named(name))[0]


def first_of_several(name: str) -> int:
    """A token whose first occurrence is the first draft of a round that keeps more."""
    for result in whole_texts(name):
        place = 1 + (result.answer_check.num_emitted if result.answer_check else 0)
        log = result.rounds
        for accepted, emitted in zip(log.num_accepted, log.num_emitted, strict=True):
            token = result.output_ids[place]
            if accepted > 1 and token not in result.output_ids[:place]:
                return token
            place += emitted
    raise AssertionError("no round keeps several drafts")


def keeps_the_deepest(variant: Variant) -> None:
    """AssertionError if the deepest drafts are seldom kept.

    Some trees reach K in only a few rounds, so not all are checked.
    """
    results, k = decoded(variant)
    assert sum(result.rounds.num_accepted.count(k) for result in results) >= 4


def assert_no_draft_counts_past_the_end(variant: Variant) -> None:
    """AssertionError if rounds count drafts beyond an end of text.

    The same rounds without an end of text show how many drafts the last one would have kept.
    """
    results, _ = decoded(variant, eos_ids=(first_of_several(variant.name),))
    num_drafts_at_end = 0
    for result, whole in zip(results, whole_texts(variant.name), strict=True):
        log = result.rounds
        for accepted, emitted in zip(log.num_accepted, log.num_emitted, strict=True):
            assert accepted <= emitted <= accepted + 1
        if result.finish_reason == "eos" and len(log):
            *before, last = log.num_accepted
            assert tuple(before) == whole.rounds.num_accepted[: len(before)]
            kept = whole.rounds.num_accepted[len(before)]
            assert last == min(kept, log.num_emitted[-1])
            num_drafts_at_end += kept >= log.num_emitted[-1]
    assert num_drafts_at_end, "an end of text that was a draft"


@pytest.mark.sampled(one_in=3, every=["variant.method"])
@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_drafts_that_match_the_target_are_accepted_to_full_depth(variant: Variant) -> None:
    keeps_the_deepest(variant)


@pytest.mark.sampled(one_in=3, every=["variant.method"])
@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_drafts_after_an_end_of_text_are_not_counted(variant: Variant) -> None:
    assert_no_draft_counts_past_the_end(variant)


@pytest.mark.sampled(one_in=3)
@pytest.mark.slow
@pytest.mark.parametrize("name", TREES)
def test_a_planted_error_in_moving_slots_is_detected(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_slots = StockRunner.move_slots

    def one_short(self: StockRunner, from_BT: Tensor, to_BT: Tensor, *rest: int) -> None:
        move_slots(self, from_BT[:, :-1], to_BT[:, :-1], *rest)

    monkeypatch.setattr(StockRunner, "move_slots", one_short)

    with pytest.raises(AssertionError, match="differs at"):
        keeps_the_deepest(variant_named(name))


@pytest.mark.sampled(one_in=3)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["draft_model", "eagle, chain", *TREES])
def test_planted_counts_past_the_end_are_detected(name: str, plant: Plant) -> None:
    whole_texts(name)
    plant(one_round.commit, "num_accepted_B.minimum(num_emitted_B)", "num_accepted_B")

    with pytest.raises(AssertionError, match="<="):
        assert_no_draft_counts_past_the_end(variant_named(name))
