"""A suffix tree counts what a reader counts by hand, and drafts what the counts say."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from specbench.drafters.suffix import Continuation, Cursor, Growth, Node, SuffixTree

DEPTH = 5
SEEDS = range(40)
String = tuple[int, ...]


def counted(texts: Sequence[list[int]]) -> tuple[Counter[String], Counter[String]]:
    """How often each string of up to DEPTH tokens occurs, and how often its text goes on."""
    seen: Counter[String] = Counter()
    followed: Counter[String] = Counter()
    for text in texts:
        for start in range(len(text)):
            for end in range(start, min(start + DEPTH, len(text)) + 1):
                seen[tuple(text[start:end])] += 1
                if end < len(text) and end - start < DEPTH:
                    followed[tuple(text[start:end])] += 1
    return seen, followed


def assert_counts(tree: SuffixTree, texts: Sequence[list[int]]) -> None:
    seen, followed = counted(texts)
    longer: dict[String, set[int]] = {string: set() for string in seen} | {(): set()}
    for string in filter(None, seen):
        longer[string[:-1]].add(string[-1])

    def compare(node: Node, string: String) -> None:
        if node.children is None:
            assert len(string) == DEPTH or node.num_seen == 1
            return
        assert node.num_followed == followed[string]
        assert set(node.children) == longer[string]
        likeliest = node.likeliest()
        assert likeliest is None or likeliest.num_seen == max(
            child.num_seen for child in node.children.values()
        )
        for token, child in node.children.items():
            assert child.num_seen == seen[*string, token]
            compare(child, (*string, token))

    compare(tree.root, ())


def node_of(tree: SuffixTree, string: Sequence[int]) -> Node | None:
    node: Node | None = tree.root
    for num_tokens, token in enumerate(string):
        if node is not None:
            node = tree.after(node, num_tokens, token)
    return node


def some_text(rng: random.Random, num_tokens: int, vocab_size: int) -> list[int]:
    return [rng.randrange(vocab_size) for _ in range(num_tokens)]


def test_a_suffix_tree_counts_added_and_removed_texts() -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        tree, texts = SuffixTree(DEPTH), []
        for _ in range(8):
            if texts and rng.random() < 0.4:
                tree.remove(texts.pop(rng.randrange(len(texts))))
            else:
                texts.append(tree.add(some_text(rng, rng.randrange(20), vocab_size=3)))
            assert_counts(tree, texts)
        for text in texts:
            tree.remove(text)
        assert not tree.root.children


def test_a_growing_text_is_counted_after_every_token() -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        tree = SuffixTree(DEPTH)
        growth = Growth(tree)
        for token in some_text(rng, 40, vocab_size=2 + seed % 2):
            growth.extend([token])
            assert_counts(tree, [growth.text])
            for num_tokens, node in enumerate(growth.ends):
                # A string that occurs once may still be held by the leaf of its beginning.
                known = node_of(tree, growth.text[len(growth.text) - num_tokens :])
                assert node is known or node.children is None


@pytest.mark.slow
def test_texts_that_grow_side_by_side_in_one_tree_are_all_counted() -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        tree = SuffixTree(DEPTH)
        growths = [Growth(tree) for _ in range(3)]
        for token in some_text(rng, 60, vocab_size=2 + seed % 3):
            rng.choice(growths).extend([token])
            texts = [growth.text for growth in growths]
            assert_counts(tree, texts)
            for growth in growths:
                for num_tokens, node in enumerate(growth.ends):
                    known = node_of(tree, growth.text[len(growth.text) - num_tokens :])
                    assert node is known or node.children is None


def test_a_cursor_finds_the_longest_matches_while_the_tree_changes() -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        tree = SuffixTree(DEPTH)
        others = [tree.add(some_text(rng, 30, vocab_size=3)) for _ in range(2)]
        text: list[int] = []
        cursor = Cursor(tree, text)
        for _ in range(30):
            text += some_text(rng, rng.choice([1, 1, 4, 9]), vocab_size=4)
            if rng.random() < 0.2 and others:
                tree.remove(others.pop())
            if rng.random() < 0.2:
                others.append(tree.add(some_text(rng, 12, vocab_size=3)))
            seen, _ = counted(others)
            strings = [tuple(text[len(text) - m :]) for m in range(min(DEPTH, len(text)) + 1)]
            longest = max(m for m, string in enumerate(strings) if m == 0 or seen[string])
            assert len(cursor.ends) == longest + 1
            assert cursor.ends == [node_of(tree, strings[m]) for m in range(longest + 1)]


def drafted(text: list[int], limit: int = 4, min_prob: float = 0.0, depth: int = 8) -> Continuation:
    growth = Growth(SuffixTree(depth))
    growth.extend(text)
    return growth.tree.draft(growth.ends, lambda _: limit, min_prob)


def test_the_continuation_of_an_earlier_match_is_drafted() -> None:
    assert drafted([1, 2, 3, 9, 1, 2]) == Continuation([3, 9, 1, 2], 4.0)


def test_the_most_frequent_follower_is_drafted_with_its_share() -> None:
    # After 1 came 2, 2 and 3; after 1 2 came 1 and 3.
    assert drafted([1, 2, 1, 2, 3, 1, 3, 0, 1], limit=1) == Continuation([2], 2 / 3)


def test_the_later_of_equally_frequent_followers_is_drafted() -> None:
    assert drafted([1, 2, 0, 1, 3, 0, 5, 1], limit=1).tokens == [3]


def test_a_draft_ends_when_it_is_no_longer_likely_enough() -> None:
    text = [1, 2, 3, 0, 1, 2, 4, 0, 5, 1]
    assert drafted(text, min_prob=0.6) == Continuation([2], 1.0)
    assert drafted(text, limit=2, min_prob=0.5) == Continuation([2, 4], 1.5)


def test_a_longer_match_of_higher_probability_is_drafted() -> None:
    # 2 is followed by 7, 7 and 5, but 1 2 always by 5.
    assert drafted([2, 7, 2, 7, 1, 2, 5, 0, 1, 2], limit=1) == Continuation([5], 1.0)


def test_a_shorter_match_of_higher_probability_is_drafted() -> None:
    # 1 2 is followed by 5 and 6, but 2 by 7 in three of five places.
    text = [2, 7, 2, 7, 2, 7, 1, 2, 5, 1, 2, 6, 0, 1, 2]
    assert drafted(text, limit=1) == Continuation([7], 3 / 5)


def test_probabilities_multiply_along_a_draft() -> None:
    # After 1 came 2, 2 and 5; after 1 2 came 3 and, later, 4.
    draft = drafted([1, 2, 3, 0, 1, 2, 4, 0, 1, 5, 1], limit=2)
    assert draft.tokens == [2, 4]
    assert draft.score == pytest.approx(2 / 3 + 2 / 3 * 1 / 2)


def test_a_draft_ends_at_the_limit_for_its_match_length() -> None:
    growth = Growth(SuffixTree(8))
    growth.extend([4, 1, 2, 3, 5, 6, 0, 1, 2])
    draft = growth.tree.draft(growth.ends, lambda num_matched: num_matched, 0.0)
    assert draft.tokens == [3, 5]  # two tokens, 1 2, match


def test_a_text_of_one_repeated_token_drafts_that_token() -> None:
    assert drafted([7, 7, 7, 7], limit=1).tokens == [7]


@pytest.mark.parametrize("text", [[], [5], [1, 2, 3, 4]])
def test_a_text_without_repeats_drafts_nothing(text: list[int]) -> None:
    assert drafted(text) == Continuation([], 0.0)


def test_a_match_as_deep_as_the_tree_continues_like_the_text() -> None:
    assert drafted([1, 2, 3, 4, 5, 6, 7, 1, 2, 3], depth=3).tokens == [4, 5, 6, 7]


def test_a_removed_text_is_not_drafted_at_any_depth() -> None:
    tree = SuffixTree(3)
    first, _ = tree.add([1, 2, 3, 4, 5]), tree.add([1, 2, 3, 6])
    cursor = Cursor(tree, [1, 2, 3])
    assert tree.draft(cursor.ends, lambda _: 3, 0.0).tokens == [4, 5]
    tree.remove(first)
    assert tree.draft(cursor.ends, lambda _: 3, 0.0).tokens == [6]


def num_nodes(node: Node) -> int:
    return 1 + sum(num_nodes(child) for child in (node.children or {}).values())


def test_the_tree_of_a_text_without_repetition_has_one_node_a_token() -> None:
    tree = SuffixTree(24)
    tree.add(range(1000))
    assert num_nodes(tree.root) == 1001
