"""Lookahead by hand: the nodes of a round, the making of n-grams, and their yield."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decode.round import run_round
from specbench.decode.rows import PrefillRequest, Rows
from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK
from specbench.drafters.lookahead import Lookahead, NgramPool, round_shape
from specbench.forward.runner import StockRunner
from specbench.records import Request, Sampling
from tests.decoding.fakes import CountingRunner
from tests.decoding.lossless import decode, filled_rows, make_drafter, serve
from tests.decoding.models import exact_llama, plain_logits, ragged_prompts, random_prompt

CPU = torch.device("cpu")
GREEDY = Sampler(Sampling())
SMALL = {"window": 3, "ngram": 3, "guesses": 2}


def lookahead(target: Any, **parameters: Any) -> Lookahead:
    drafter = make_drafter("lookahead", target, **parameters)
    assert isinstance(drafter, Lookahead)
    return drafter


def filled(target: Any, drafter: Lookahead, *prompts: tuple[int, ...]) -> Rows:
    """Rows after the prefill of the given prompts."""
    requests = [Request(prompt_ids=prompt, max_new_tokens=40) for prompt in prompts]
    return filled_rows(target, drafter, requests, capacity=256)


def test_the_lookahead_attention_mask_equals_a_worked_example() -> None:
    shape = round_shape(num_levels=3, window=2, num_guesses=2, depth=2, device=CPU)

    # x is the current token and is at the head of level 0.
    expected = [
        # x a | c d | e f | g1   | g2
        [1, 0, 0, 0, 0, 0, 0, 0, 0, 0],  # x
        [1, 1, 0, 0, 0, 0, 0, 0, 0, 0],  # a: level 0 is causal
        [1, 0, 1, 0, 0, 0, 0, 0, 0, 0],  # c: below x
        [1, 1, 0, 1, 0, 0, 0, 0, 0, 0],  # d: below a, which sees x
        [1, 0, 1, 0, 1, 0, 0, 0, 0, 0],  # e: its own column
        [1, 1, 0, 1, 0, 1, 0, 0, 0, 0],  # f
        [1, 0, 0, 0, 0, 0, 1, 0, 0, 0],  # a guess follows x
        [1, 0, 0, 0, 0, 0, 1, 1, 0, 0],
        [1, 0, 0, 0, 0, 0, 0, 0, 1, 0],  # and sees no other guess
        [1, 0, 0, 0, 0, 0, 0, 0, 1, 1],
    ]
    assert shape.seen_BNN[0].int().tolist() == expected
    assert shape.depths_BN.tolist() == [[0, 1, 1, 2, 2, 3, 1, 2, 1, 2]]
    assert shape.parents_BK.tolist() == [[0, 0, 1, 2, 3, 0, 6, 0, 8]]
    assert shape.is_active_BK.tolist() == [[False] * 5 + [True] * 4]


@torch.no_grad()
def test_the_lookahead_window_follows_the_paper() -> None:
    """Levels and n-grams against lists and plain forwards, from the first round on."""
    plain, target = exact_llama(seed=0), StockRunner(exact_llama(seed=0))
    drafter = lookahead(target, window=3, ngram=4, guesses=9, pool_from_prompt=False)
    rows = filled(target, drafter, ragged_prompts()[1])
    state = rows.state

    def window() -> list[list[int]]:
        tokens = drafter.propose(state, 3, 128, GREEDY).tokens_BK[0].tolist()
        nodes = [int(state.tokens_at(state.length_B1)), *tokens]
        return [nodes[i : i + 3] for i in (0, 3, 6)]

    levels, grams = window()[:1], set()
    for _ in range(6):
        length = int(state.length_B1)
        text = state.tokens_BC[0, : length + 1].tolist()
        levels[0][0] = text[-1]
        assert window()[: len(levels)] == levels

        tokens = []
        for column in range(3):
            column_down = [level[column] for level in levels[1:]]
            seen = [*text[:-1], *levels[0][: column + 1], *column_down]
            tokens.append(int(plain_logits(plain, torch.tensor([seen]))[0, -1].argmax()))
        if len(levels) == 3:
            grams |= set(zip(*levels, tokens, strict=True))
            levels = levels[1:]
        levels.append(tokens)
        run_round(target, drafter, state, GREEDY, k=3, span=128)
        assert {gram for row in pooled_ngrams(drafter) for gram in row} == grams
    assert len(grams) > 6


def pooled_ngrams(drafter: Lookahead) -> list[set[tuple[int, ...]]]:
    """The n-grams in each row's pool."""
    grams_RPN = drafter.buffers[2]
    assert isinstance(grams_RPN, Tensor)
    return [{tuple(gram) for gram in row if gram[0] >= 0} for row in grams_RPN[:, :-1].tolist()]


def test_k_limits_the_lookahead_guesses_and_not_the_window() -> None:
    drafter = lookahead(CountingRunner(), window=3, ngram=4, guesses=2)

    assert [drafter.num_drafts(k) for k in (1, 2, 3, 8)] == [8 + 2, 8 + 4, 8 + 6, 8 + 6]
    assert drafter.capabilities.max_k == 3


def test_the_first_lookahead_level_depends_on_prompt_and_seed() -> None:
    target = CountingRunner()
    drafter = lookahead(target, window=20, ngram=3, guesses=1)

    def first_levels() -> Tensor:
        rows = filled(target, drafter, (7, 11, 13, 17), (7, 11, 13, 17), (2,))
        tokens_BK = drafter.propose(rows.state, 2, 128, GREEDY).tokens_BK
        return tokens_BK[:, :19].clone()

    tokens_BW = first_levels()
    assert set(tokens_BW[0].tolist()) == {7, 11, 13, 17}
    assert torch.equal(tokens_BW[0], tokens_BW[1])
    assert set(tokens_BW[2].tolist()) == {2}
    assert torch.equal(first_levels(), tokens_BW)


def test_a_right_guess_from_the_lookahead_window_emits_n_tokens() -> None:
    """The target counts. Its window sees a 20 in the prompt, so it counts from there.

    One round fills level 1 with 21, the next emits 22: the n-gram 20 21 22 is known when the
    text reaches 20. The window is 13 numbers ahead by then and gains 1 per round, the text 3.
    """
    drafter = lookahead(CountingRunner(), **SMALL, pool_from_prompt=False)
    request = Request(prompt_ids=(*[20] * 9, 5), max_new_tokens=1 + 14 + 9)

    (result,) = decode(CountingRunner(), drafter, [request], k=2)

    assert result.output_ids == tuple(range(6, 30))
    assert result.rounds.num_emitted == (1,) * 14 + (3, 3, 3)
    assert result.rounds.num_accepted == (0,) * 14 + (2, 2, 2)


@pytest.mark.parametrize(("ngram", "num_rounds"), [(2, 1), (3, 2), (5, 4)])
def test_lookahead_levels_fill_one_per_round_before_ngrams(ngram: int, num_rounds: int) -> None:
    target = CountingRunner()
    drafter = lookahead(target, window=2, ngram=ngram, guesses=1, pool_from_prompt=False)
    rows = filled(target, drafter, (50, 50, 5))

    for _ in range(num_rounds):
        assert pooled_ngrams(drafter) == [set()]
        run_round(target, drafter, rows.state, GREEDY, k=1, span=128)
    assert len(pooled_ngrams(drafter)[0]) == 2


def test_lookahead_guesses_prompt_ngrams_in_the_first_round() -> None:
    target = CountingRunner()

    def first_round(**parameters: Any) -> int:
        drafter = lookahead(target, **SMALL, **parameters)
        request = Request(prompt_ids=(4, 5, 6, 7, 8, 3), max_new_tokens=10)
        return decode(target, drafter, [request], k=2)[0].rounds.num_accepted[0]

    assert first_round() == 2
    assert first_round(pool_from_prompt=False) == 0


def test_only_whole_ngrams_of_a_rows_own_prompt_are_collected() -> None:
    target = CountingRunner()
    drafter = lookahead(target, **SMALL)

    filled(target, drafter, (4, 5, 6, 7, 8), (1, 2))

    assert pooled_ngrams(drafter) == [{(4, 5, 6), (5, 6, 7), (6, 7, 8)}, set()]


def repetitive() -> list[Request]:
    prompts = [random_prompt(7, seed=seed) * 3 for seed in range(3)]
    return [Request(prompt_ids=p, max_new_tokens=20 + i) for i, p in enumerate(prompts)]


def drafted_and_kept(*batches: list[Request], prefill_chunk: int = 512) -> list[Any]:
    """The counts of each request round by round; batches are decoded one after the other."""
    target = StockRunner(exact_llama(seed=0))
    drafter = lookahead(target, **SMALL)
    results = [
        result
        for requests in batches
        for result in decode(target, drafter, requests, k=2, prefill_chunk=prefill_chunk)
    ]
    return [(result.rounds.num_drafted, result.rounds.num_accepted) for result in results]


def test_a_row_drafts_as_in_a_fresh_batch_of_one() -> None:
    alone = [drafted_and_kept([request])[0] for request in repetitive()]

    assert drafted_and_kept(repetitive()) == alone
    assert drafted_and_kept(*([request] for request in repetitive())) == alone
    assert all(sum(num_accepted) > 0 for _, num_accepted in alone)


def test_a_chunked_prefill_collects_the_same_ngrams() -> None:
    assert drafted_and_kept(repetitive(), prefill_chunk=4) == drafted_and_kept(repetitive())


def test_a_later_turn_keeps_the_ngrams_of_its_conversation() -> None:
    target = CountingRunner()
    drafter = lookahead(target, **SMALL)
    rows = filled(target, drafter, (4, 5, 6, 7))
    first = Request(prompt_ids=(4, 5, 6, 7, 8, 4), max_new_tokens=9)
    rows.fill([PrefillRequest(0, first, num_cached=4)], GREEDY)
    assert pooled_ngrams(drafter) == [{(4, 5, 6), (5, 6, 7), (6, 7, 8), (7, 8, 4)}]

    rows.fill([PrefillRequest(0, Request(prompt_ids=(4, 9), max_new_tokens=9))], GREEDY)
    assert pooled_ngrams(drafter) == [set()]


def test_a_repeat_of_a_prompt_does_not_know_the_earlier_answer() -> None:
    target = StockRunner(exact_llama(seed=0))
    drafter = lookahead(target, **SMALL)
    for request in repetitive():
        requests = [replace(request, conversation=f"p|{repeat}") for repeat in range(2)]
        first, again = serve(target, drafter, requests, FixedK(2), 1).results
        assert again.rounds == replace(again.rounds, num_accepted=first.rounds.num_accepted)


def snapshot(drafter: Lookahead, row: int) -> list[Tensor]:
    """All state of a row; the pool's last place is empty."""
    levels_RLW, num_filled_R, grams_RPN, num_added_RS = drafter.buffers
    kept = (levels_RLW, num_filled_R, grams_RPN[:, :-1], num_added_RS)  # type: ignore[index]
    return [tensor[row].clone() for tensor in kept]  # type: ignore[index]


def are_equal(first: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("num_rounds", [0, 3])
def test_a_finished_row_is_unchanged_and_a_copied_row_equals_its_source(
    num_rounds: int,
) -> None:
    target = CountingRunner()
    drafter = lookahead(target, **SMALL)
    rows = filled(target, drafter, (20, 30, 5), (40, 50, 60))
    for _ in range(num_rounds):
        run_round(target, drafter, rows.state, GREEDY, k=2, span=128)
    rows.state.budget_B[0] = 0
    before = [snapshot(drafter, row) for row in range(2)]

    run_round(target, drafter, rows.state, GREEDY, k=2, span=128)

    assert are_equal(snapshot(drafter, 0), before[0])
    assert not are_equal(snapshot(drafter, 1), before[1])
    rows.move_row(1, 0, 10)
    assert are_equal(snapshot(drafter, 0), snapshot(drafter, 1))


def test_a_round_without_drafts_leaves_the_lookahead_window_unchanged() -> None:
    target = CountingRunner()
    drafter = lookahead(target, **SMALL)
    rows = filled(target, drafter, (20, 30, 5))
    before = snapshot(drafter, 0)

    run_round(target, drafter, rows.state, GREEDY, k=0, span=128)

    assert are_equal(snapshot(drafter, 0), before)


def pool(size: int, vocab_size: int = 100) -> NgramPool:
    pool = NgramPool(3, size, vocab_size, CPU)
    pool.allocate(1)
    return pool


def add(pool: NgramPool, *grams: tuple[int, int, int], but: int = -1) -> None:
    is_added = [[i != but for i in range(len(grams))]]
    pool.add(0, torch.tensor([grams]), torch.tensor(is_added))


def grams_after(pool: NgramPool, token: int) -> list[list[int]]:
    grams_BGN, is_found_BG = pool.find(0, torch.tensor([[token]]))
    pairs = zip(grams_BGN[0].tolist(), is_found_BG[0].tolist(), strict=True)
    return [gram for gram, is_found in pairs if is_found]


def test_a_bucket_keeps_the_newest_ngrams() -> None:
    grams = pool(size=2)
    add(grams, (1, 2, 3), (7, 7, 7), (1, 4, 5))
    assert grams_after(grams, 1) == [[1, 2, 3], [1, 4, 5]]

    add(grams, (1, 6, 6))
    assert grams_after(grams, 1) == [[1, 6, 6], [1, 4, 5]]
    add(grams, (1, 8, 8), (1, 9, 9), (1, 10, 10))
    assert sorted(grams_after(grams, 1)) == [[1, 9, 9], [1, 10, 10]]
    assert grams_after(grams, 7) == [[7, 7, 7]]


def test_a_repeated_ngram_takes_one_slot_of_the_pool() -> None:
    grams = pool(size=3)
    add(grams, (1, 2, 3), (1, 2, 3), (1, 4, 5))
    add(grams, (1, 4, 5), (1, 2, 3))

    assert grams_after(grams, 1) == [[1, 2, 3], [1, 4, 5]]


def test_an_excluded_ngram_is_not_added_to_the_pool() -> None:
    grams = pool(size=2)
    add(grams, (1, 2, 3), (1, 4, 5), but=0)
    assert grams_after(grams, 1) == [[1, 4, 5]]

    add(grams, (1, 2, 3), (1, 2, 3), but=0)
    assert sorted(grams_after(grams, 1)) == [[1, 2, 3], [1, 4, 5]]


def test_tokens_that_share_a_bucket_do_not_share_ngrams() -> None:
    grams = pool(size=2, vocab_size=5000)
    add(grams, (3, 1, 1), (3 + 1024, 2, 2))

    assert grams_after(grams, 3) == [[3, 1, 1]]
    assert grams_after(grams, 3 + 1024) == [[3 + 1024, 2, 2]]
    assert grams_after(grams, 3 + 2048) == []
