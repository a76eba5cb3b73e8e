"""Suffix decoding: what is drafted from the text and from earlier answers, and what is forgotten.

That trees count rightly is tested in decoding/test_suffix_tree.py.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
import torch

from specbench.decode.decoder import Decoder
from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK
from specbench.decode.state import State
from specbench.drafters.suffix import Suffix
from specbench.errors import UsageError
from specbench.forward.runner import StockRunner
from specbench.methods import find_method
from specbench.records import Request, Result, Sampling
from tests.decoding.fakes import CountingClock, CountingRunner
from tests.decoding.graph_bench import WARM, Subject, make_subject
from tests.decoding.lossless import assert_texts, decode, parts_of
from tests.decoding.models import exact_llama, generated, random_prompt

T = TypeVar("T")
GREEDY = Sampling()


def suffix(target: Any = None, **parameters: Any) -> Suffix:
    settings = find_method("suffix").settings(parameters)
    return Suffix(parts_of(target or CountingRunner()), **settings)


def counted_up(drafter: Suffix, *prompts: Sequence[int], **given: Any) -> list[Result]:
    """Answers of 12 tokens, each one more than the last; one row unless `num_rows` says more."""
    num_rows, k = given.pop("num_rows", 1), given.pop("k", 4)
    requests = [Request(prompt_ids=tuple(p), max_new_tokens=12, **given) for p in prompts]
    decoder = Decoder(CountingRunner(), drafter, eos_ids=(), clock=CountingClock())
    return decoder.serve(requests, Sampler(GREEDY), FixedK(k), num_rows=num_rows).results


def num_rounds(result: Result) -> int:
    return len(result.rounds)


def test_drafts_follow_the_longest_match_in_the_text() -> None:
    state = State.allocate(3, 16, [], torch.device("cpu"))
    texts = [[1, 2, 9, 8, 1, 2], [5, 6, 7], [3, 4, 3, 4, 3]]
    for row, text in enumerate(texts):
        state.tokens_BC[row, : len(text)] = torch.tensor(text)
        state.length_B1[row] = len(text) - 1
    state.budget_B.copy_(torch.tensor([5, 5, 0]))  # the last row is done
    drafter = suffix()
    drafter.allocate(3, 16)

    proposal = drafter.propose(state, 3, 16, Sampler(GREEDY))

    assert proposal.tokens_BK.tolist() == [[9, 8, 0], [0, 0, 0], [0, 0, 0]]
    assert proposal.num_drafted_B.tolist() == [2, 0, 0]  # two tokens match, two are drafted
    assert proposal.probs is None


def test_suffix_decoding_reads_tokens_of_rounds_at_k_0() -> None:
    state = State.allocate(1, 16, [], torch.device("cpu"))
    state.tokens_BC[0, :10] = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 9, 3])
    state.length_B1[0], state.budget_B[0] = 1, 12
    drafter = suffix()
    drafter.allocate(1, 16)
    drafter.propose(state, 2, 16, Sampler(GREEDY))
    state.length_B1[0] = 9  # as rounds at K = 0 leave it

    proposal = drafter.propose(state, 2, 16, Sampler(GREEDY))

    assert proposal.tokens_BK[0, : proposal.num_drafted_B[0]].tolist() == [4]


def test_suffix_decoding_drafts_from_the_prompt() -> None:
    (result,) = counted_up(suffix(), [*range(30, 10, -1), 9])
    assert num_rounds(result) == 11  # the numbers are there, the other way round
    (result,) = counted_up(suffix(), [*range(10, 30), 9])
    # After 10 one token matches; after 11 and 12 three do; then the four that K allows.
    assert result.rounds.num_accepted == result.rounds.num_drafted == (1, 3, 4)


def test_a_factor_lets_a_short_match_draft_more() -> None:
    (result,) = counted_up(suffix(max_spec_factor=4.0), [*range(10, 30), 9])
    assert result.rounds.num_accepted == (4, 4, 0)


def test_suffix_drafts_come_from_earlier_responses_of_the_same_pass() -> None:
    drafter = suffix()
    first, second = counted_up(drafter, [50, 9], [60, 11])
    assert (num_rounds(first), num_rounds(second)) == (11, 4)
    (again,) = counted_up(drafter, [70, 10])
    assert num_rounds(again) == 11


def test_the_last_tokens_of_an_answer_are_kept() -> None:
    # 10 .. 21, then an output that needs only 20 and 21.
    _, second = counted_up(suffix(max_spec_factor=9.0), [50, 9], [60, 18])
    assert sum(second.rounds.num_accepted) == 2


def test_suffix_drafts_exclude_responses_to_the_same_prompt() -> None:
    first, again, third = counted_up(suffix(), [50, 9], [50, 9], [50, 10])
    assert num_rounds(first) == num_rounds(again) == 11
    assert num_rounds(third) < 11
    # The third prompt is the first one's, which ends and gives its row away in the midst of it.
    requests = [([50, 9], 12), ([70, 39], 4), ([50, 9], 12), ([80, 60], 12)]
    decoder = Decoder(CountingRunner(), suffix(), eos_ids=(), clock=CountingClock())
    asked = [Request(prompt_ids=tuple(p), max_new_tokens=n) for p, n in requests]
    *_, result, _ = decoder.serve(asked, Sampler(GREEDY), FixedK(4), num_rows=2).results
    assert num_rounds(result) == 11


def test_suffix_drafts_exclude_later_turns_of_the_conversation() -> None:
    first, _, again = counted_up(suffix(), [50, 9], [50, 9, *range(10, 22), 60, 30], [50, 9])
    assert num_rounds(first) == num_rounds(again) == 11


def test_suffix_decoding_drops_the_oldest_responses_first() -> None:
    prompts = [[50, 9], [60, 39], [70, 10]]
    *_, kept = counted_up(suffix(max_cached_requests=2), *prompts)
    *_, forgotten = counted_up(suffix(max_cached_requests=1), *prompts)
    *_, none = counted_up(suffix(max_cached_requests=0), [50, 9], [60, 11])
    assert num_rounds(kept) < 11
    assert num_rounds(forgotten) == num_rounds(none) == 11


def test_a_conversation_continues_with_the_tree_of_its_row() -> None:
    trees = []

    class Watched(Suffix):
        def observe(self, state: State, outcome: Any) -> None:
            super().observe(state, outcome)
            trees.extend(row.growth.tree for row in self._rows if row)

    settings = find_method("suffix").settings({"max_cached_requests": 0})
    drafter = Watched(parts_of(CountingRunner()), **settings)
    first, second = [50, 9], [50, 9, *range(10, 22), 60, 9]
    _, turn = counted_up(drafter, first, second, conversation="a")
    assert trees[0] is trees[-1]
    assert turn.rounds.num_accepted == (2, 4, 2)  # 9 and 10, and then all that came after


@pytest.fixture(scope="module")
def llama() -> Subject:
    return make_subject()


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_moved_or_refilled_rows_draft_like_a_single_row(llama: Subject, sampling: Sampling) -> None:
    requests = [
        Request(
            prompt_ids=random_prompt(4, seed=i // 3) * (2 + i // 3),
            max_new_tokens=6 + 7 * i % 20,
            seed=i,
        )
        for i in range(12)
    ]

    def served(num_rows: int) -> list[Result]:
        drafter = suffix(llama.target, max_cached_requests=0, max_spec_factor=4.0)
        decoder = Decoder(llama.target, drafter, eos_ids=(), clock=CountingClock())
        return decoder.serve(requests, Sampler(sampling), FixedK(4), num_rows=num_rows).results

    alone, together = served(1), served(5)

    assert_texts(together, [result.output_ids for result in alone])
    drafted = [result.rounds.num_drafted for result in together]
    assert drafted == [result.rounds.num_drafted for result in alone]
    assert sum(map(sum, drafted)) > 20


def test_samples_of_one_prompt_draft_from_each_other_as_they_grow() -> None:
    texts = [[1, 2, 5, 6, 7, 8], [1, 2, 5, 6], [1, 2, 5, 6]]
    state = State.allocate(3, 16, [], torch.device("cpu"))
    state.length_B1.fill_(2)
    drafter = suffix()
    drafter.allocate(3, 16)
    drafter.begin(state, [()] * 3)
    drafter.copy_row(0, 1, 2)  # before their first tokens: samples; the last row is a stranger
    for row, text in enumerate(texts):
        state.tokens_BC[row, : len(text)] = torch.tensor(text)
    for row in range(3):
        drafter.observe(state.rows(row, 1), None)
    state.length_B1.copy_(torch.tensor([[len(text) - 1] for text in texts]))
    state.budget_B.fill_(5)

    proposal = drafter.propose(state, 3, 16, Sampler(GREEDY))

    assert proposal.tokens_BK.tolist() == [[0, 0, 0], [7, 8, 0], [0, 0, 0]]
    assert proposal.num_drafted_B.tolist() == [0, 2, 0]


def test_suffix_acceptance_is_higher_for_samples_of_one_prompt(llama: Subject) -> None:
    def served(*, is_sample: bool) -> list[Result]:
        drafter = suffix(llama.target, max_spec_factor=2.0)
        requests = [
            Request(
                prompt_ids=random_prompt(9, seed=prompt),
                max_new_tokens=30,
                seed=seed,
                is_sample=is_sample,
            )
            for prompt in range(3)
            for seed in range(4)
        ]
        decoder = Decoder(llama.target, drafter, eos_ids=(), clock=CountingClock())
        sampler = Sampler(Sampling(temperature=0.2))
        return decoder.serve(requests, sampler, FixedK(4), num_rows=4).results

    apart, together = served(is_sample=False), served(is_sample=True)

    assert_texts(together, [result.output_ids for result in apart])
    kept, kept_apart = (
        sum(sum(result.rounds.num_accepted) for result in results) for results in (together, apart)
    )
    assert kept > kept_apart, (kept, kept_apart)  # 35 against 26


@pytest.mark.parametrize("k", [1, 4])
def test_long_prompts_moved_rows_and_refilled_rows_keep_the_text(k: int) -> None:
    model = exact_llama(seed=0)
    requests = [
        Request(prompt_ids=random_prompt(5 + i % 3, seed=i) * 3, max_new_tokens=3 + 5 * (i % 4))
        for i in range(8)
    ]
    texts = [generated(model, r.prompt_ids, r.max_new_tokens) for r in requests]
    target = StockRunner(model)

    together = decode(target, suffix(target), requests, k=k, prefill_chunk=4)
    decoder = Decoder(target, suffix(target), eos_ids=(), clock=CountingClock(), prefill_chunk=4)
    in_turn = decoder.serve(requests, Sampler(GREEDY), FixedK(k), num_rows=3).results

    assert_texts(together, texts)
    assert_texts(in_turn, texts)


def test_suffix_decoding_keeps_the_text_of_moved_and_copied_rows() -> None:
    state = State.allocate(2, 16, [], torch.device("cpu"))
    state.tokens_BC[0, :5] = torch.tensor([1, 2, 9, 1, 2])
    state.length_B1[0], state.budget_B[0] = 4, 5
    drafter = suffix()
    drafter.allocate(2, 16)
    drafter.propose(state, 2, 16, Sampler(GREEDY))
    for tensor in (state.tokens_BC, state.length_B1, state.budget_B):
        tensor[1].copy_(tensor[0])

    drafter.copy_row(0, 1, 4)
    state.tokens_BC[1, 5], state.length_B1[1] = 9, 5  # the copy goes its own way

    proposal = drafter.propose(state, 2, 16, Sampler(GREEDY))
    assert proposal.tokens_BK.tolist() == [[9, 1], [1, 2]]
    state.tokens_BC[0, 5], state.length_B1[0] = 1, 5  # and so does what it was copied from
    proposal = drafter.propose(state, 2, 16, Sampler(GREEDY))
    assert proposal.tokens_BK.tolist() == [[2, 0], [1, 2]]


def test_suffix_decoding_keeps_a_complete_response_of_a_reused_row() -> None:
    target = CountingRunner()
    drafter = suffix(target)
    requests = [
        Request(prompt_ids=(10,), max_new_tokens=7),  # 11 .. 17; then the second row moves
        Request(prompt_ids=(40,), max_new_tokens=12),
        Request(prompt_ids=(14, 15), max_new_tokens=5, at_s=25.0),
    ]
    decoder = Decoder(target, drafter, eos_ids=(), clock=CountingClock())

    *_, last = decoder.serve(requests, Sampler(GREEDY), FixedK(3), num_rows=2).results

    # After 16, the token of prefill, the earlier output continues with 17.
    assert last.rounds.num_accepted[0] == 1


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"max_spec_factor": 0.0}, "max_spec_factor 0.0; above 0 is allowed"),
        ({"min_token_prob": 1.5}, "min_token_prob 1.5; 0 to 1 is allowed"),
    ],
)
def test_invalid_suffix_parameters_are_refused(parameters: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        suffix(**parameters)
