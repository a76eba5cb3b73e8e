"""What a conversation's row keeps of its last turn, and when it must not."""

import pytest

from specbench.decode.drafter import NoDrafter
from specbench.decode.scheduler import FixedK
from specbench.forward.fused_runner import FusedRunner
from specbench.records import Request
from tests.decoding.fakes import CountingRunner
from tests.decoding.lossless import assert_texts, make_drafter
from tests.decoding.models import exact_llama, generated, random_prompt
from tests.decoding.test_serving import (
    MakeRunner,
    assert_every_round_kept_the_deepest,
    runner,
    serve,
    some_requests,
)

__all__ = ["runner"]


def test_a_conversation_continues_in_its_row_and_only_new_tokens_are_fed() -> None:
    first = Request(prompt_ids=tuple(range(1, 11)), max_new_tokens=5, conversation="a")
    then = Request(prompt_ids=tuple(range(1, 19)), max_new_tokens=5, conversation="a")
    other = Request(prompt_ids=(50,), max_new_tokens=30)
    runner = CountingRunner()

    served = serve(runner, NoDrafter(), [first, other, then], FixedK(0), 2)

    assert served.results[2].output_ids == (19, 20, 21, 22, 23)
    prefills = [positions for positions in runner.fed if positions.shape[1] > 1]
    # Its prompt has 18 tokens; 10 + 5 were there, and the last two of those are fed again.
    assert [p[0].tolist() for p in prefills] == [list(range(10)), list(range(13, 18))]


@pytest.mark.sampled(one_in=4, every=["num_left_out", "k", "tree"])
@pytest.mark.slow
@pytest.mark.parametrize("num_left_out", [0, 1, 2, 7])
@pytest.mark.parametrize(("k", "tree"), [(0, ()), (3, ()), (3, (2,))])
def test_a_kept_prefix_leaves_the_text_of_the_next_turn_unchanged(
    runner: MakeRunner, k: int, tree: tuple[int, ...], num_left_out: int
) -> None:
    opening = random_prompt(8, seed=1)
    plain = exact_llama(seed=0)
    answer = generated(plain, opening, 12)
    follow_up = (*opening, *answer[: 12 - num_left_out], *random_prompt(4, seed=2))
    expected = generated(plain, follow_up, 12)
    target = runner(exact_llama(seed=0))
    drafter = make_drafter("draft_model", target, runner(exact_llama(seed=0)), tree=tree)
    turns = [
        Request(prompt_ids=p, max_new_tokens=12, conversation="c") for p in (opening, follow_up)
    ]

    served = serve(target, drafter, [*turns, *some_requests(6)], FixedK(k), 2)

    assert_texts(served.results[:2], [answer, expected])
    assert_every_round_kept_the_deepest(served.results[:2], [k] * 12)


def test_a_row_that_is_reused_forgets_the_earlier_text() -> None:
    plain, prompt = exact_llama(seed=0), random_prompt(9, seed=1)
    first, again = (
        Request(
            prompt_ids=prompt,
            max_new_tokens=3,
            at_s=at_s,
            conversation=name,
        )
        for at_s, name in ((0.0, "a"), (12.0, "b"))
    )
    # Takes the first one's row when it ends; the third takes that one's, and the last waits.
    moved, late = (
        Request(prompt_ids=random_prompt(9, seed=2), max_new_tokens=20, at_s=at_s)
        for at_s in (0.0, 10.0)
    )

    served = serve(
        FusedRunner(exact_llama(seed=0)), NoDrafter(), [first, moved, late, again], FixedK(0), 2
    )

    waited = served.results[3]
    assert waited.arrived_s + waited.queue_s > served.results[1].first_token_s
    answer = generated(plain, prompt, 3)
    assert_texts([served.results[0], served.results[3]], [answer, answer])


def test_turns_that_start_together_each_keep_their_own_prefix(runner: MakeRunner) -> None:
    plain = exact_llama(seed=0)
    openings = [random_prompt(9, seed=1), random_prompt(3, seed=2)]
    answers = [generated(plain, opening, 6) for opening in openings]
    follow_ups = [
        (*opening, *answer, *random_prompt(5, seed=3))
        for opening, answer in zip(openings, answers, strict=True)
    ]
    expected = [generated(plain, prompt, 6) for prompt in follow_ups]

    served = serve(
        runner(exact_llama(seed=0)),
        NoDrafter(),
        [
            Request(prompt_ids=prompt, max_new_tokens=6, conversation=str(i % 2))
            for i, prompt in enumerate([*openings, *follow_ups])
        ],
        FixedK(0),
        2,
    )

    assert_texts(served.results, [*answers, *expected])
