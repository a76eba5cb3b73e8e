"""Predicted outputs: the place of the answer in the reference, and the drafts from there."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK
from specbench.drafters.previous_turn import PreviousTurn
from specbench.drafters.registry import build_drafter
from specbench.forward.runner import StockRunner
from specbench.records import Request, Result, Sampling
from tests.decoding.fakes import CountingRunner
from tests.decoding.graph_bench import WARM, Bench, Cycle, eager_texts, make_subject
from tests.decoding.lossless import (
    acceptance_rate,
    assert_texts,
    decode,
    filled_rows,
    parts_of,
    serve,
)
from tests.decoding.models import exact_llama, generated, random_prompt

GREEDY = Sampling()
PROMPT = [90, 91, 92]


class Answer:
    """Rows after the same prompt, each with a reference and an answer that grows by hand."""

    def __init__(self, *references: Sequence[int], max_ngram: int = 3) -> None:
        self.drafter = PreviousTurn(
            parts_of(CountingRunner()), max_ngram=max_ngram, verify_prediction_first=False
        )
        requests = [
            Request(prompt_ids=tuple(PROMPT), max_new_tokens=40, prediction_ids=tuple(reference))
            for reference in references
        ]
        self.state = filled_rows(CountingRunner(), self.drafter, requests).state
        self.state.length_B1.fill_(len(PROMPT) - 1)  # the answer is the tests' own

    def then(self, *tokens: Sequence[int], k: int = 3) -> list[list[int]]:
        """Drafts after the rows' answers continued with these tokens."""
        for row, new in enumerate(tokens):
            first = int(self.state.length_B[row]) + 1
            self.state.tokens_BC[row, first : first + len(new)] = torch.tensor(new)
            self.state.length_B1[row] += len(new)
        proposal = self.drafter.propose(self.state, k, 64, Sampler(GREEDY))
        assert proposal.tokens_BK.shape == (len(tokens), k)
        assert proposal.probs is None
        pairs = zip(proposal.tokens_BK.tolist(), proposal.num_drafted_B.tolist(), strict=True)
        return [drafts[:num_drafted] for drafts, num_drafted in pairs]


def test_the_reference_is_drafted_from_its_beginning_as_long_as_it_agrees() -> None:
    answer = Answer([1, 2, 3, 4, 5, 6, 7])
    assert answer.then([1]) == [[2, 3, 4]]
    assert answer.then([2, 3, 4, 5]) == [[6, 7]]
    assert answer.then([6, 7]) == [[]]


def test_a_lookup_depends_on_where_earlier_rounds_began() -> None:
    """Why replaying it is an approximation: `a b` is in the reference twice."""
    x, a, b, m, n, z = range(1, 7)
    reference = [x, a, b, a, m, a, b, n]
    first, second = Answer(reference), Answer(reference)
    assert first.then([x]) == second.then([x]) == [[a, b, a]]
    assert first.then([a, z]) == second.then([a, z])
    second.then([a])  # a round that began here finds it at another place
    assert first.then([a, b]) == [[a, m, a]]
    assert second.then([b]) == [[n]]


def test_a_replaced_token_is_skipped_in_the_reference() -> None:
    answer = Answer([1, 2, 3, 4, 5, 6])
    assert answer.then([1, 2, 50]) == [[4, 5, 6]]
    assert answer.then([51]) == [[5, 6]]
    assert answer.then([5]) == [[6]]


def test_tokens_missing_from_the_new_text_are_skipped_in_the_reference() -> None:
    answer = Answer([1, 2, 3, 4, 5, 6, 7])
    assert answer.then([1, 5]) == [[6, 7]]


def test_the_reference_continues_after_inserted_tokens() -> None:
    answer = Answer([1, 2, 3, 4, 5, 6, 3, 9])
    answer.then([1, 2, 50])
    answer.then([51])
    assert answer.then([3]) == [[4, 5, 6]]


def test_a_lookup_starts_after_the_tokens_that_agreed() -> None:
    # 1 2 3 agreed, and the next 2 is the one ahead, not the one just passed.
    answer = Answer([1, 2, 3, 4, 2, 8, 9])
    assert answer.then([1, 2, 3, 2]) == [[8, 9]]


def test_the_longest_match_wins_over_a_nearer_one() -> None:
    reference = [1, 7, 8, 2, 6, 7, 9]
    assert Answer(reference).then([60, 6, 7], k=1) == [[9]]
    assert Answer(reference, max_ngram=1).then([60, 6, 7], k=1) == [[8]]


def test_a_match_ahead_takes_precedence_over_a_nearer_one_behind() -> None:
    answer = Answer([5, 1, 2, 3, 4, 5, 8])
    assert answer.then([5, 1, 2, 50, 5]) == [[8]]


def test_a_lookup_uses_an_earlier_match_if_none_is_ahead() -> None:
    answer = Answer([1, 2, 3, 4, 5, 6])
    answer.then([1, 2, 3, 4])
    assert answer.then([2]) == [[3, 4, 5]]


@pytest.mark.parametrize("longer", [[5, 6, 5, 9], [5, 6, 7, 5, 9]])
def test_garbage_after_the_reference_is_neither_drafted_nor_matched(longer: list[int]) -> None:
    answer = Answer(longer)
    answer.drafter.begin(answer.state, [[5, 6]])  # what is left of the longer one is garbage
    assert answer.then([5]) == [[6]]
    assert answer.then([6]) == [[]]
    assert answer.then([5]) == [[6]]


def test_garbage_after_the_text_does_not_count_as_agreed() -> None:
    answer = Answer([1, 2, 3, 4, 5, 6])
    answer.state.tokens_BC[0, len(PROMPT) :][:4] = torch.tensor([1, 2, 3, 4])
    assert answer.then([1]) == [[2, 3, 4]]
    assert answer.then([5]) == [[6]]


def test_rows_have_their_own_references_and_may_have_none() -> None:
    answer = Answer([1, 2, 3, 4], [], [7, 8, 9])
    assert answer.then([1], [1], [8]) == [[2, 3, 4], [], [9]]


def test_a_round_without_new_tokens_changes_nothing() -> None:
    answer = Answer([1, 2, 3, 4, 5, 6])
    drafts = answer.then([1, 2, 50])
    assert answer.then([]) == drafts
    assert answer.then([4]) == [[5, 6]]


def test_tokens_of_rounds_at_k_0_are_caught_up_with() -> None:
    # Of three rounds of the same four tokens only the last ends differently.
    answer = Answer([1, 2, 3, 4] * 3 + [7])
    answer.then([1], k=1)
    tokens = [2, 3, 4, 1, 2, 3, 4, 1, 2, 3]
    answer.state.tokens_BC[0, len(PROMPT) + 1 :][: len(tokens)] = torch.tensor(tokens)
    answer.state.length_B1.add_(len(tokens))
    answer.drafter.catch_up(answer.state, len(tokens), 64)
    assert answer.then([4], k=1) == [[7]]


def test_a_moved_row_keeps_its_reference_and_position() -> None:
    answer = Answer([9, 8, 7, 6, 5, 4], [1, 2, 1, 3])
    answer.then([9, 5, 4], [1])
    answer.state.move_row(1, 0)
    answer.drafter.copy_row(1, 0, 5)
    assert answer.then([2], []) == [[1, 3], [2, 1, 3]]


def test_a_new_pass_clears_the_references() -> None:
    answer = Answer([1, 2, 3])
    answer.drafter.allocate(1, 64)
    assert answer.then([1]) == [[]]


def predicted(
    texts: Sequence[tuple[int, ...]], prompts: Sequence[tuple[int, ...]]
) -> list[Request]:
    """Requests with their own answer as prediction, with tokens replaced, inserted and omitted."""
    return [
        Request(
            prompt_ids=prompt,
            max_new_tokens=len(text),
            prediction_ids=(*text[:4], 0, *text[5:9], 0, 0, *text[9:12], *text[13:]),
        )
        for prompt, text in zip(prompts, texts, strict=True)
    ]


@pytest.mark.sampled(one_in=2, every=["k", "num_rows"])
@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("num_rows", [2, 5])
def test_greedy_text_with_previous_turn_equals_generate(k: int, num_rows: int) -> None:
    model = exact_llama(seed=0)
    prompts = [random_prompt(5 + 4 * i, seed=i) for i in range(5)]
    texts = [generated(model, prompt, 14 + 3 * i) for i, prompt in enumerate(prompts)]
    target = StockRunner(model)
    drafter = build_drafter("previous_turn", parts_of(target), {})

    requests = predicted(texts, prompts)
    served = serve(target, drafter, requests, FixedK(k), num_rows, prefill_chunk=4)

    assert_texts(served.results, texts)
    assert acceptance_rate(served.results) > 0.3
    strangers = [replace(r, prediction_ids=texts[-i]) for i, r in enumerate(requests)]
    assert_texts(decode(target, drafter, strangers, k=k), texts)


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_replayed_rounds_also_draft_from_the_reference(sampling: Sampling) -> None:
    subject = make_subject()
    drafter = build_drafter("previous_turn", parts_of(subject.target), {})
    prompts = [random_prompt(6, seed=i) for i in range(5)]
    plain = [Request(prompt_ids=p, max_new_tokens=16) for p in prompts]
    texts = eager_texts(subject, drafter, plain, FixedK(0), 1, sampling)
    bench = Bench(subject, drafter)

    results: list[Result] = bench.serve(predicted(texts, prompts), Cycle(4, 4, 0), 3, sampling)

    assert_texts(results, texts)
    assert acceptance_rate(results) > 0.3
    assert (bench.launcher.graph, bench.launcher.reason) == ("round", None)


def test_a_right_prediction_costs_one_round_every_k_plus_one_tokens() -> None:
    target, prediction_ids = CountingRunner(), (*range(10, 36), 10, 90)
    request = Request(prompt_ids=(9,), max_new_tokens=26, prediction_ids=prediction_ids)
    drafter = build_drafter("previous_turn", parts_of(target), {})
    served = serve(target, drafter, [request] * 2, FixedK(4), 1)
    assert [result.rounds.num_accepted for result in served.results] == [(4,) * 5] * 2
