"""Rows that come and go: every text is that of its request by itself."""

import gc
import random
import tracemalloc
from collections.abc import Sequence

import pytest
import torch

from specbench.decode.adaptive_k import Controller, RoundCostModel, default_ks
from specbench.decode.drafter import NoDrafter
from specbench.decode.scheduler import FixedK, ObservedRound
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import StockRunner
from specbench.records import Request, Result
from tests.decoding.conftest import MakeRunner
from tests.decoding.fakes import CountingRunner, ScriptedDrafter
from tests.decoding.graph_bench import WARM, Cycle
from tests.decoding.lossless import assert_texts, make_drafter, serve, texts_of
from tests.decoding.models import exact_llama, generated, random_prompt, tiny_llama


def some_requests(num: int, longest: int = 12, seed: int = 0) -> list[Request]:
    draw = random.Random(seed)
    return [
        Request(
            prompt_ids=random_prompt(draw.randint(1, 12), seed=seed * 1000 + i),
            max_new_tokens=draw.randint(1, longest),
            seed=i,
        )
        for i in range(num)
    ]


@pytest.fixture(scope="module")
def texts() -> list[tuple[int, ...]]:
    """The text of `generate` for each of the requests."""
    model = exact_llama(seed=0)
    return [generated(model, r.prompt_ids, r.max_new_tokens) for r in some_requests(24)]


@pytest.mark.sampled(one_in=5, every=["make_runner", "num_rows", "ks"])
@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [1, 3, 8, 24, 40])
@pytest.mark.parametrize("ks", [(0,), (4,), (0, 3, 1, 0, 0, 5)])
def test_greedy_texts_do_not_depend_on_rows_or_k(
    make_runner: MakeRunner, texts: list[tuple[int, ...]], ks: tuple[int, ...], num_rows: int
) -> None:
    target = make_runner(exact_llama(seed=0))
    drafter = make_drafter("draft_model", target, make_runner(exact_llama(seed=1)))

    served = serve(target, drafter, some_requests(24), Cycle(*ks), num_rows)

    assert_texts(served.results, texts)


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [1, 6])
def test_greedy_texts_do_not_depend_on_a_controller_that_picks_k(
    make_runner: MakeRunner, texts: list[tuple[int, ...]], num_rows: int
) -> None:
    target = make_runner(exact_llama(seed=0))
    drafter = make_drafter("draft_model", target, make_runner(exact_llama(seed=1)))
    ks = default_ks(6)
    # Drafts of another model are seldom right; rounds of every K cost the same, so it keeps trying.
    costs = RoundCostModel({(rows, k): [1.0] for rows in (1, 6) for k in ks})
    controller = Controller(ks, costs)

    served = serve(target, drafter, some_requests(24), controller, num_rows)

    assert_texts(served.results, texts)
    assert len(set(served.timeline.num_speculative_tokens)) > 1


@pytest.mark.parametrize("seed", range(3))
def test_greedy_texts_do_not_depend_on_the_order_of_arrival(
    make_runner: MakeRunner, texts: list[tuple[int, ...]], seed: int
) -> None:
    target = make_runner(exact_llama(seed=0))
    drafter = make_drafter("ngram", target)
    order = random.Random(seed).sample(range(24), 24)

    served = serve(target, drafter, [some_requests(24)[i] for i in order], FixedK(3), 5)

    assert_texts(served.results, [texts[i] for i in order])


@pytest.mark.sampled(one_in=2, every=["make_runner", "method"])
@pytest.mark.slow
@pytest.mark.parametrize(("method", "k"), [("none", 0), ("ngram", 3), ("draft_model", 4)])
def test_a_sampled_text_is_the_same_in_one_row_and_in_eight(
    make_runner: MakeRunner, method: str, k: int
) -> None:
    target = make_runner(exact_llama(seed=0))
    drafter = make_drafter(method, target, make_runner(exact_llama(seed=1)))
    requests = some_requests(20)

    alone = serve(target, drafter, requests, FixedK(k), 1, WARM)
    together = serve(target, drafter, requests, FixedK(k), 8, WARM)

    assert_texts(together.results, texts_of(alone.results))


def test_two_hundred_requests_over_sixteen_rows_all_finish() -> None:
    draw = random.Random(0)
    lengths = [draw.randint(1, 40) for _ in range(200)]
    requests = [
        Request(prompt_ids=tuple(range(1, draw.randint(2, 30))), max_new_tokens=length)
        for length in lengths
    ]
    script = {i: i for i in range(200)}

    served = serve(CountingRunner(), ScriptedDrafter(script), requests, FixedK(2), 16)

    for request, result in zip(requests, served.results, strict=True):
        first = request.prompt_ids[-1] + 1
        assert result.output_ids == tuple(range(first, first + request.max_new_tokens))
    # Prefills begin in the order of the list.
    starts = [result.arrived_s + result.queue_s for result in served.results]
    assert starts == sorted(starts)
    timeline = served.timeline
    assert max(timeline.num_live) == 16
    busy = [live for live in timeline.num_live if live == 16]
    assert len(busy) > len(timeline) / 2
    assert sum(timeline.num_emitted) == sum(lengths) - 200


def assert_every_round_kept_the_deepest(results: Sequence[Result], ks: Sequence[int]) -> None:
    """Rounds of a draft that is always right, within its budget."""
    for result in results:
        left, log = len(result.output_ids) - 1, result.rounds
        for k, accepted in zip(ks, log.num_accepted, strict=False):
            assert accepted == min(k, left - 1)
            left -= accepted + 1
        assert left == 0


@pytest.mark.sampled(one_in=3, every=["make_runner", "tree", "ks"])
@pytest.mark.slow
@pytest.mark.parametrize("tree", [(), (2,), (3, 2)], ids=str)
@pytest.mark.parametrize("ks", [(4, *[0] * 20), (4, 0), (6, 2), (6, 1, 1, 0, 3)], ids=str)
def test_rows_catch_up_after_rounds_with_fewer_drafts_or_none(
    make_runner: MakeRunner, ks: tuple[int, ...], tree: tuple[int, ...]
) -> None:
    # The draft is the target: while its cache has no hole, one branch is right to its end.
    target = make_runner(exact_llama(seed=0))
    drafter = make_drafter("draft_model", target, make_runner(exact_llama(seed=0)), tree=tree)
    requests = [Request(prompt_ids=random_prompt(9, seed=i), max_new_tokens=40) for i in range(3)]

    served = serve(target, drafter, requests, Cycle(*ks), 3)

    assert_every_round_kept_the_deepest(served.results, ks * 40)


def test_open_loop_requests_wait_for_their_time_and_for_a_row() -> None:
    requests = [Request(prompt_ids=(1,), max_new_tokens=4, at_s=at_s) for at_s in (0.0, 0.0, 1.0)]

    served = serve(CountingRunner(), NoDrafter(), requests, FixedK(0), 2)

    late = served.results[2]
    assert late.arrived_s == 1.0
    assert late.queue_s > 0  # both rows were busy
    assert late.ttft_s > late.queue_s


def test_the_timeline_counts_what_the_requests_emitted(make_runner: MakeRunner) -> None:
    target = make_runner(exact_llama(seed=0))
    drafter = make_drafter("ngram", target)

    served = serve(target, drafter, some_requests(12), Cycle(2, 0), 4)

    timeline = served.timeline
    assert sum(timeline.num_emitted) == sum(sum(r.rounds.num_emitted) for r in served.results)
    assert set(timeline.num_speculative_tokens) == {0, 2}
    assert all(
        live <= rows for live, rows in zip(timeline.num_live, timeline.num_rows, strict=True)
    )
    assert list(timeline.at_s) == sorted(timeline.at_s)


def test_a_policy_observes_the_reported_round_and_not_a_later_one() -> None:
    """The K of the reported round, not of the one launched since."""
    seen: list[tuple[int, int]] = []

    class Noting(Cycle):
        def observe(self, ended: ObservedRound) -> None:
            seen.append((ended.k, ended.num_caught_up))

    runner = StockRunner(exact_llama(seed=0))
    drafter = ScriptedDrafter({})
    request = Request(prompt_ids=(1, 2, 3), max_new_tokens=24, seed=0)
    serve(runner, drafter, [request], Noting(2, 0, 0, 2, 0, 2), 1)
    assert seen[:7] == [(2, 0), (0, 0), (0, 0), (2, 2), (0, 0), (2, 1), (2, 0)]


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


@pytest.mark.parametrize("name", ["b", None])
def test_another_conversation_does_not_continue_from_an_equal_prompt(name: str | None) -> None:
    requests = [
        Request(prompt_ids=tuple(range(1, 11)), max_new_tokens=5, conversation=conversation)
        for conversation in ("a", name)
    ]
    runner = CountingRunner()

    serve(runner, NoDrafter(), requests, FixedK(0), 1)

    prefills = [positions for positions in runner.fed if positions.shape[1] > 1]
    assert [p[0].tolist() for p in prefills] == [list(range(10))] * 2


@pytest.mark.sampled(one_in=4, every=["num_left_out", "k", "tree"])
@pytest.mark.slow
@pytest.mark.parametrize("num_left_out", [0, 1, 2, 7])
@pytest.mark.parametrize(("k", "tree"), [(0, ()), (3, ()), (3, (2,))])
def test_a_kept_prefix_leaves_the_next_turns_text_as_it_was(
    make_runner: MakeRunner, k: int, tree: tuple[int, ...], num_left_out: int
) -> None:
    opening = random_prompt(8, seed=1)
    plain = exact_llama(seed=0)
    answer = generated(plain, opening, 12)
    follow_up = (*opening, *answer[: 12 - num_left_out], *random_prompt(4, seed=2))
    expected = generated(plain, follow_up, 12)
    target = make_runner(exact_llama(seed=0))
    drafter = make_drafter("draft_model", target, make_runner(exact_llama(seed=0)), tree=tree)
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


def test_turns_that_start_together_each_keep_their_own_prefix(make_runner: MakeRunner) -> None:
    plain = exact_llama(seed=0)
    openings = [random_prompt(9, seed=1), random_prompt(3, seed=2)]
    answers = [generated(plain, opening, 6) for opening in openings]
    follow_ups = [
        (*opening, *answer, *random_prompt(5, seed=3))
        for opening, answer in zip(openings, answers, strict=True)
    ]
    expected = [generated(plain, prompt, 6) for prompt in follow_ups]

    served = serve(
        make_runner(exact_llama(seed=0)),
        NoDrafter(),
        [
            Request(prompt_ids=prompt, max_new_tokens=6, conversation=str(i % 2))
            for i, prompt in enumerate([*openings, *follow_ups])
        ],
        FixedK(0),
        2,
    )

    assert_texts(served.results, [*answers, *expected])


@pytest.mark.slow
def test_memory_is_flat_while_requests_pass_through() -> None:
    def peak(num_requests: int) -> int:
        requests = [
            Request(prompt_ids=(1, 2, 3), max_new_tokens=8, seed=i) for i in range(num_requests)
        ]
        runner = StockRunner(tiny_llama(seed=0))
        serve(runner, NoDrafter(), requests[:4], FixedK(0), 4)
        slots_before = [layer.keys.data_ptr() for layer in runner.cache.layers]
        gc.collect()
        tracemalloc.start()
        serve(runner, NoDrafter(), requests, FixedK(0), 4)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert [layer.keys.data_ptr() for layer in runner.cache.layers] == slots_before
        return most

    # Four times the requests: what grows is the log of their rounds, a few KiB each.
    assert peak(80) - peak(20) < 60 * 8 * 1024


@pytest.mark.long
@pytest.mark.slow
def test_tensors_do_not_grow_with_the_requests_that_passed_through() -> None:
    """Memory that torch holds is not Python's."""

    class Weighing(FixedK):
        num_rounds = peak_bytes = 0

        def observe(self, _: object) -> None:
            self.num_rounds += 1
            if self.num_rounds % 7:  # four requests end in every seventh round
                return
            # Traced tensors have no size, and the compiler may hold them.
            real = (torch.Tensor, torch.nn.Parameter)
            tensors = {id(o): o for o in gc.get_objects() if type(o) in real}
            now = sum(tensor.nbytes for tensor in tensors.values())
            self.peak_bytes = max(self.peak_bytes, now)

    def peak_bytes(num_requests: int) -> int:
        requests = [
            Request(prompt_ids=(1, 2, 3), max_new_tokens=8, seed=i) for i in range(num_requests)
        ]
        gc.collect()
        policy = Weighing(0)
        serve(runner, NoDrafter(), requests, policy, 4)
        return policy.peak_bytes

    runner = StockRunner(tiny_llama(seed=0))
    peak_bytes(4)
    assert peak_bytes(40) == peak_bytes(8) > 0
