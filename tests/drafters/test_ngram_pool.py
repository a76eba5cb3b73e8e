"""The pool of n-grams by hand: what it holds, what it finds, who makes room."""

import torch

from specbench.drafters.lookahead import NgramPool

CPU = torch.device("cpu")


def pool(size: int, vocab_size: int = 100) -> NgramPool:
    pool = NgramPool(3, size, vocab_size, CPU)
    pool.allocate(1)
    return pool


def add(pool: NgramPool, *grams: tuple[int, int, int], but: int = -1) -> None:
    is_added = [[i != but for i in range(len(grams))]]
    pool.add(0, torch.tensor([grams]), torch.tensor(is_added))


def found(pool: NgramPool, token: int) -> list[list[int]]:
    grams_BGN, is_found_BG = pool.find(0, torch.tensor([[token]]))
    pairs = zip(grams_BGN[0].tolist(), is_found_BG[0].tolist(), strict=True)
    return [gram for gram, is_found in pairs if is_found]


def test_a_bucket_keeps_the_newest_ngrams() -> None:
    grams = pool(size=2)
    add(grams, (1, 2, 3), (7, 7, 7), (1, 4, 5))
    assert found(grams, 1) == [[1, 2, 3], [1, 4, 5]]

    add(grams, (1, 6, 6))
    assert found(grams, 1) == [[1, 6, 6], [1, 4, 5]]
    add(grams, (1, 8, 8), (1, 9, 9), (1, 10, 10))
    assert sorted(found(grams, 1)) == [[1, 9, 9], [1, 10, 10]]
    assert found(grams, 7) == [[7, 7, 7]]


def test_a_repeated_ngram_takes_one_slot_of_the_pool() -> None:
    grams = pool(size=3)
    add(grams, (1, 2, 3), (1, 2, 3), (1, 4, 5))
    add(grams, (1, 4, 5), (1, 2, 3))

    assert found(grams, 1) == [[1, 2, 3], [1, 4, 5]]


def test_an_excluded_ngram_is_not_added_to_the_pool() -> None:
    grams = pool(size=2)
    add(grams, (1, 2, 3), (1, 4, 5), but=0)
    assert found(grams, 1) == [[1, 4, 5]]

    add(grams, (1, 2, 3), (1, 2, 3), but=0)
    assert sorted(found(grams, 1)) == [[1, 2, 3], [1, 4, 5]]


def test_tokens_that_share_a_bucket_do_not_share_ngrams() -> None:
    grams = pool(size=2, vocab_size=5000)
    add(grams, (3, 1, 1), (3 + 1024, 2, 2))

    assert found(grams, 3) == [[3, 1, 1]]
    assert found(grams, 3 + 1024) == [[3 + 1024, 2, 2]]
    assert found(grams, 3 + 2048) == []
