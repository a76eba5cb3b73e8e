"""Suffix decoding: its tree by hand, drafts from earlier answers, and its graphs."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
import torch

from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK, Policy
from specbench.decode.state import State
from specbench.drafters.registry import build_drafter
from specbench.drafters.suffix import Continuation, Cursor, Growth, Node, Suffix, SuffixTree
from specbench.errors import UsageError
from specbench.methods import find_method
from specbench.records import Request, Result, Sampling
from tests.decoding.fake_graphs import FakeGraphs
from tests.decoding.fakes import CountingRunner
from tests.decoding.graph_bench import (
    WARM,
    Bench,
    Cycle,
    Subject,
    make_subject,
    some_requests,
)
from tests.decoding.lossless import assert_texts, parts_of, serve, texts_of
from tests.decoding.models import random_prompt

T = TypeVar("T")
GREEDY = Sampling()


def suffix(target: Any = None, **parameters: Any) -> Suffix:
    settings = find_method("suffix").settings(parameters)
    return Suffix(parts_of(target or CountingRunner()), **settings)


def counted_up(drafter: Suffix, *prompts: Sequence[int], **given: Any) -> list[Result]:
    """Answers of 12 tokens, each one more than the last, in `num_rows` rows."""
    num_rows, k = given.pop("num_rows", 1), given.pop("k", 4)
    requests = [Request(prompt_ids=tuple(p), max_new_tokens=12, **given) for p in prompts]
    return serve(CountingRunner(), drafter, requests, FixedK(k), num_rows).results


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
    # The third prompt is the first one's, which ends in the middle of it, and its row is reused.
    requests = [([50, 9], 12), ([70, 39], 4), ([50, 9], 12), ([80, 60], 12)]
    inputs = [Request(prompt_ids=tuple(p), max_new_tokens=n) for p, n in requests]
    *_, result, _ = serve(CountingRunner(), suffix(), inputs, FixedK(4), 2).results
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
        return serve(llama.target, drafter, requests, FixedK(4), num_rows, sampling).results

    alone, together = served(1), served(5)

    assert_texts(together, texts_of(alone))
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
        sampling = Sampling(temperature=0.2)
        return serve(llama.target, drafter, requests, FixedK(4), 4, sampling).results

    apart, together = served(is_sample=False), served(is_sample=True)

    assert_texts(together, texts_of(apart))
    kept, kept_apart = (
        sum(sum(result.rounds.num_accepted) for result in results) for results in (together, apart)
    )
    assert kept > kept_apart, (kept, kept_apart)  # 35 against 26


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

    *_, last = serve(target, drafter, requests, FixedK(3), 2).results

    # After 16, the token of prefill, the earlier output continues with 17.
    assert last.rounds.num_accepted[0] == 1


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"max_spec_factor": 0.0}, "max_spec_factor 0.0; it must be above 0"),
        ({"min_token_prob": 1.5}, "min_token_prob 1.5; it must be 0 to 1"),
    ],
)
def test_invalid_suffix_parameters_are_refused(parameters: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        suffix(**parameters)


DEPTH = 5
SEEDS = range(40)
String = tuple[int, ...]


def counted(texts: Sequence[list[int]]) -> tuple[Counter[String], Counter[String]]:
    """How often each string of up to DEPTH tokens occurs, and how often a token follows it."""
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
        texts = [tree.add(some_text(rng, 30, vocab_size=3)) for _ in range(2)]
        text: list[int] = []
        cursor = Cursor(tree, text)
        for _ in range(30):
            text += some_text(rng, rng.choice([1, 1, 4, 9]), vocab_size=4)
            if rng.random() < 0.2 and texts:
                tree.remove(texts.pop())
            if rng.random() < 0.2:
                texts.append(tree.add(some_text(rng, 12, vocab_size=3)))
            seen, _ = counted(texts)
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


def test_a_text_that_repeats_one_token_continues_with_it() -> None:
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


class BlindSuffix(Suffix):
    """Sees nothing of a graph's replay, as nothing on the host does."""

    is_replaying = False

    def observe(self, state: State, outcome: Any) -> None:
        if not self.is_replaying:
            super().observe(state, outcome)


class ReplaysOfTheDevice(FakeGraphs):
    def __init__(self, drafter: BlindSuffix) -> None:
        super().__init__()
        self._drafter = drafter

    def _replay(self, run: Callable[[], T], output: T) -> None:
        self._drafter.is_replaying = True
        super()._replay(run, output)
        self._drafter.is_replaying = False


@pytest.mark.sampled(one_in=4, every=["policy", "num_rows", "sampling"])
@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("policy", [lambda: FixedK(4), lambda: Cycle(4, 0, 0, 0, 4, 0, 1, 2)])
def test_suffix_decoding_drafts_the_same_with_and_without_graphs(
    llama: Subject, policy: Callable[[], Policy], num_rows: int, sampling: Sampling
) -> None:
    repeating = (Request(prompt_ids=random_prompt(3, i) * 6, max_new_tokens=30) for i in range(4))
    requests = [*repeating, *some_requests()]
    eager = build_drafter("suffix", parts_of(llama.target), {})
    expected = serve(llama.target, eager, requests, policy(), num_rows, sampling).results
    drafter = BlindSuffix(parts_of(llama.target), **find_method("suffix").settings({}))
    bench = Bench(llama, drafter, graphs=ReplaysOfTheDevice(drafter))

    results = bench.serve(requests, policy(), num_rows, sampling)

    assert_texts(results, texts_of(expected))
    assert bench.launcher.graph == "step"
    # Late reports leave a row idle for a round before the next request, so that only
    # requests there from the start meet the same K and the same earlier answers.
    logs = [result.rounds.num_drafted for result in results[:num_rows]]
    assert logs == [result.rounds.num_drafted for result in expected[:num_rows]]
    assert sum(logs[0]) > 0
