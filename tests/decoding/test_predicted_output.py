"""A predicted answer is checked when a row is filled: it gives tokens and never changes text.

The counting target emits the next number, so that every count can be worked out by hand.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from specbench.decode.drafter import Proposal
from specbench.decode.lossy import SyntheticVerifier
from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK
from specbench.decode.state import State
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import Runner, StockRunner
from specbench.records import AnswerCheck, Request, Result, Sampling
from tests.decoding import lossless
from tests.decoding.fakes import CountingRunner, ScriptedDrafter
from tests.decoding.graph_bench import GREEDY, WARM, Bench, Cycle, eager_texts, make_subject
from tests.decoding.lossless import assert_texts, decode, make_drafter, texts_of
from tests.decoding.models import exact_llama, generated, random_prompt

COUNTED = tuple(range(10, 36))  # the counting target's text after 9


def serve(
    target: Runner,
    requests: Sequence[Request],
    policy: FixedK | None = None,
    *,
    num_rows: int = 1,
    **how: Any,
) -> list[Result]:
    drafter = make_drafter("previous_turn", target, verify_prediction_first=True)
    policy = FixedK(4) if policy is None else policy
    return lossless.serve(target, drafter, requests, policy, num_rows, **how).results


def count(
    *predicted: int, num_tokens: int = 26, runner: CountingRunner | None = None, **changes: Any
) -> Result:
    """The counting target after 9, with a predicted answer."""
    request = Request(prompt_ids=(9,), max_new_tokens=num_tokens, prediction_ids=predicted)
    result = serve(runner or CountingRunner(), [request], **changes)[0]
    assert result.output_ids == COUNTED[: len(result.output_ids)]
    return result


def check_of(drafted: int, accepted: int, emitted: int) -> AnswerCheck:
    """One mark after the first token."""
    return AnswerCheck(num_drafted=drafted, num_accepted=accepted, num_emitted=emitted, seconds=1.0)


def test_a_correct_predicted_output_takes_one_forward_and_no_round() -> None:
    runner = CountingRunner()
    result = count(*COUNTED, 90, 91, runner=runner)
    # One token is prefill's, one the target's own after the last draft.
    assert result.answer_check == check_of(24, 24, 25)
    assert result.output_ids == COUNTED
    assert [len(fed_BT[0]) for fed_BT in runner.fed] == [1, 25]
    assert len(result.rounds) == 0
    assert (result.rounds.draft_s, result.rounds.verify_s) == ((), ())
    assert (result.first_token_s, result.total_s) == (1.0, 2.0)


def test_rounds_continue_after_a_prediction_that_is_too_short() -> None:
    result = count(*COUNTED[:10])
    assert result.answer_check == check_of(9, 9, 10)
    assert result.rounds.num_drafted == (0,) * 15
    assert result.rounds.num_emitted == (1,) * 15


def test_rounds_continue_drafting_from_the_prediction_after_a_mismatch() -> None:
    # 16 is predicted as 90: five drafts and the target's own token, then 17 .. 35 by rounds.
    result = count(*COUNTED[:6], 90, *COUNTED[7:])
    assert result.answer_check == check_of(24, 5, 6)
    assert result.rounds.num_drafted == (4, 4, 4, 3)
    assert result.rounds.num_accepted == (4, 4, 4, 3)


@pytest.mark.parametrize("predicted", [(), (90, 91, 92), (90, *COUNTED[1:])])
def test_no_check_runs_if_the_first_token_differs_from_the_prediction(
    predicted: tuple[int, ...],
) -> None:
    result = count(*predicted)
    assert result.answer_check is None
    assert sum(result.rounds.num_emitted) == 25


def test_the_check_starts_at_the_first_match_in_the_prediction() -> None:
    result = count(90, 91, *COUNTED)
    assert result.answer_check == check_of(24, 24, 25)


@pytest.mark.parametrize(
    ("prefill_chunk", "sizes"), [(8, [8, 8, 8]), (10, [10, 10, 5]), (1, [2] * 12)]
)
def test_a_long_answer_is_checked_in_pieces(prefill_chunk: int, sizes: list[int]) -> None:
    runner = CountingRunner()
    result = count(*COUNTED, runner=runner, prefill_chunk=prefill_chunk)
    emitted = sum(sizes)  # in each piece one token is the target's own
    assert result.answer_check == check_of(emitted - len(sizes), emitted - len(sizes), emitted)
    assert [len(fed_BT[0]) for fed_BT in runner.fed[1:]][: len(sizes)] == sizes
    assert sum(result.rounds.num_emitted) == 25 - emitted  # a last token needs no draft


def test_checking_pieces_stops_at_the_first_mismatch() -> None:
    result = count(*COUNTED[:12], 90, *COUNTED[13:], prefill_chunk=8)
    # 7 and the target's 18, then 19 20 21 of the next 7 and the target's 22.
    assert result.answer_check == check_of(14, 10, 12)


def test_later_pieces_of_a_check_attend_to_all_earlier_slots() -> None:
    answer = tuple(range(10, 100))
    request = Request(prompt_ids=(9,), max_new_tokens=90, prediction_ids=answer)
    # The counting runner refuses positions beyond its visible slots.
    (result,) = serve(CountingRunner(), [request], prefill_chunk=40)
    assert result.output_ids == answer
    assert result.answer_check == check_of(39 + 39 + 8, 39 + 39 + 8, 40 + 40 + 9)


@pytest.mark.slow
def test_checked_pieces_are_limited_by_the_size_of_their_logits() -> None:
    runner = CountingRunner(vocab_size=2**23)  # four positions of it are as many as are allowed
    result = count(*COUNTED[:8], num_tokens=8, runner=runner)
    assert [len(fed_BT[0]) for fed_BT in runner.fed] == [1, 4, 3]
    assert result.answer_check == check_of(5, 5, 7)


def test_an_end_of_text_ends_the_check_and_the_answer() -> None:
    result = count(*COUNTED, eos_ids=[15])
    assert result.output_ids == COUNTED[:6]
    assert result.finish_reason == "eos"
    assert result.answer_check == check_of(24, 5, 5)
    assert len(result.rounds) == 0


@pytest.mark.parametrize(("num_tokens", "eos_ids"), [(1, ()), (26, (10,))])
def test_an_answer_that_ends_with_its_first_token_is_not_checked(
    num_tokens: int, eos_ids: tuple[int, ...]
) -> None:
    result = count(*COUNTED, num_tokens=num_tokens, eos_ids=eos_ids)
    assert result.output_ids == (10,)
    assert (result.answer_check, len(result.rounds)) == (None, 0)


def test_a_budget_of_two_tokens_is_not_checked_against_a_prediction() -> None:
    result = count(*COUNTED, num_tokens=2)
    assert result.answer_check is None
    assert result.rounds.num_emitted == (1,)


def test_predicted_output_is_not_checked_at_k_0() -> None:
    result = count(*COUNTED, policy=FixedK(0))
    assert result.answer_check is None
    assert result.rounds.num_emitted == (1,) * 25


def test_a_predicted_output_is_checked_by_the_given_verifier() -> None:
    request = Request(prompt_ids=(9,), max_new_tokens=26, prediction_ids=COUNTED)
    (result,) = serve(CountingRunner(), [request], verifier=SyntheticVerifier((0.0,)))
    assert result.answer_check == check_of(24, 0, 1)


class Expecting(ScriptedDrafter):
    """Predicts its script, five tokens at a time."""

    def __init__(self, script: dict[int, int]) -> None:
        super().__init__(script)
        self.seen: list[int] = []

    def predicted_output(self, state: State, most: int) -> Proposal:
        return self.propose(state, min(most, 5), 64, Sampler(GREEDY))

    def catch_up(self, state: State, num_tokens: int, span: int) -> None:  # noqa: ARG002
        self.seen.append(num_tokens)


def test_a_drafter_observes_the_tokens_of_each_checked_piece() -> None:
    drafter = Expecting({1 + i: token for i, token in enumerate(COUNTED)})
    request = Request(prompt_ids=(9,), max_new_tokens=26)
    (result,) = decode(CountingRunner(), drafter, [request], k=4)
    assert result.output_ids == COUNTED
    assert result.answer_check == check_of(20, 20, 24)
    assert drafter.seen == [6, 6, 6, 6]


PROMPTS = [random_prompt(5 + 4 * i, seed=i) for i in range(5)]
LENGTHS = [14 + 3 * i for i in range(5)]


def requests(texts: Sequence[tuple[int, ...]], **changes: Any) -> list[Request]:
    """Requests with predictions: correct, nearly correct, another's, too long, and none."""
    near = (*texts[1][:5], 0, *texts[1][6:9], 0, 0, *texts[1][11:])
    predictions = [texts[0], near, texts[4], (*texts[3], 5, 6), ()]
    return [
        Request(prompt_ids=p, max_new_tokens=n, seed=i, prediction_ids=expected, **changes)
        for i, (p, n, expected) in enumerate(zip(PROMPTS, LENGTHS, predictions, strict=True))
    ]


@pytest.mark.sampled(one_in=3, every=["make_runner", "num_rows", "ks"])
@pytest.mark.slow
@pytest.mark.parametrize("make_runner", [StockRunner, FusedRunner])
@pytest.mark.parametrize("num_rows", [1, 2, 5])
@pytest.mark.parametrize("ks", [(1,), (4,), (0, 3, 0, 0, 1)])
def test_greedy_text_equals_generate_for_any_predicted_output(
    make_runner: type[StockRunner | FusedRunner], num_rows: int, ks: tuple[int, ...]
) -> None:
    model = exact_llama(seed=0)
    texts = [generated(model, p, n) for p, n in zip(PROMPTS, LENGTHS, strict=True)]
    target = make_runner(model)
    results = serve(target, requests(texts), Cycle(*ks), num_rows=num_rows, prefill_chunk=9)
    assert_texts(results, texts)
    assert results[4].answer_check is None
    for result, length in zip((results[0], results[3]), (LENGTHS[0], LENGTHS[3]), strict=True):
        check = result.answer_check
        assert check is not None
        assert check.num_accepted == check.num_drafted
        assert length - 2 <= check.num_emitted <= length - 1
    for result in results:
        checked = result.answer_check.num_emitted if result.answer_check else 0
        assert len(result.output_ids) == 1 + checked + sum(result.rounds.num_emitted)


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_replayed_rounds_after_a_check_leave_the_text_unchanged(
    sampling: Sampling,
) -> None:
    subject = make_subject()
    drafter = make_drafter("previous_turn", subject.target, verify_prediction_first=True)
    plain = [replace(r, prediction_ids=()) for r in requests([()] * 5)]
    texts = eager_texts(subject, drafter, plain, FixedK(0), 1, sampling)
    bench = Bench(subject, drafter)
    results = bench.serve(requests(texts), Cycle(4, 4, 0), 3, sampling)
    assert_texts(results, texts)
    assert results[0].answer_check is not None
    assert results[0].answer_check.num_emitted == LENGTHS[0] - 1
    assert (bench.launcher.graph, bench.launcher.reason) == ("round", None)


def test_samples_of_one_prompt_are_checked_separately() -> None:
    target = StockRunner(exact_llama(seed=0))
    requests = [
        Request(prompt_ids=PROMPTS[1], max_new_tokens=12, seed=seed, is_sample=True)
        for seed in range(4)
    ]
    texts = texts_of(serve(target, requests, FixedK(0), num_rows=4, sampling=WARM))
    expected = [replace(request, prediction_ids=texts[1]) for request in requests]
    results = serve(target, expected, num_rows=4, sampling=WARM)
    assert_texts(results, texts)
    assert results[1].answer_check == check_of(10, 10, 11)


def test_a_conversation_continues_in_the_row_that_a_check_completed() -> None:
    model = exact_llama(seed=0)
    first = generated(model, PROMPTS[2], 12)
    turn = (*PROMPTS[2], *first, *random_prompt(6, seed=9))
    texts = [first, generated(model, turn, 10)]
    requests = [
        Request(
            prompt_ids=prompt,
            max_new_tokens=len(text),
            prediction_ids=text,
            conversation="c",
        )
        for prompt, text in zip((PROMPTS[2], turn), texts, strict=True)
    ]
    results = serve(StockRunner(model), requests)
    assert_texts(results, texts)
    assert [len(result.rounds) for result in results] == [0, 0]
