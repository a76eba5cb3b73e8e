"""Several samples of one prompt: it is prefilled once, and nothing else differs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from specbench.decode.drafter import Drafter, NoDrafter, Proposal
from specbench.decode.rows import PrefillRequest
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.forward.runner import StockRunner
from specbench.records import Request, Result, Sampling
from tests.decoding.conftest import MakeRunner
from tests.decoding.fakes import CountingRunner, Wrapped
from tests.decoding.lossless import GREEDY, decode, deepest, filled_rows, make_drafter, texts_of
from tests.decoding.models import exact_llama, ragged_prompts, random_prompt
from tests.drafters.variants import VARIANTS, Variant

WARM = Sampling(temperature=0.8)
REPETITIVE = random_prompt(7, seed=1) * 3
NUM_SAMPLES = 4


@cache
def models() -> tuple[StockRunner, StockRunner]:
    return StockRunner(exact_llama(seed=0)), StockRunner(exact_llama(seed=1))


class DraftRecorder(Wrapped):
    """Stores the drafts of each proposal; -1 at places without a defined token."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        self.drafts: list[list[list[int]]] = []

    def change(self, proposal: Proposal) -> Proposal:
        places_K = torch.arange(proposal.tokens_BK.shape[1])
        is_active_BK = places_K < proposal.num_drafted_B[:, None]
        if proposal.tree is not None:
            is_active_BK = proposal.tree.is_active_BK
        self.drafts.append(proposal.tokens_BK.where(is_active_BK, -1).tolist())
        return proposal


def samples(
    prompt: tuple[int, ...] = REPETITIVE, seeds: Sequence[int] = range(NUM_SAMPLES)
) -> list[Request]:
    return [
        Request(prompt_ids=prompt, max_new_tokens=12, seed=seed, is_sample=True) for seed in seeds
    ]


def apart(requests: Sequence[Request]) -> list[Request]:
    return [replace(request, is_sample=False) for request in requests]


def samples_of(prompts: Sequence[tuple[int, ...]]) -> list[Request]:
    return [
        Request(prompt_ids=p, max_new_tokens=8, seed=row, is_sample=True)
        for row, p in enumerate(prompts)
    ]


@pytest.mark.parametrize("prefill_chunk", [512, 4])
def test_a_shared_prompt_is_prefilled_once_and_copied(prefill_chunk: int) -> None:
    runner = CountingRunner()
    prompt = tuple(range(10))

    filled_rows(runner, NoDrafter(), samples_of([prompt] * 5), prefill_chunk=prefill_chunk)

    assert [len(positions_BT) for positions_BT in runner.fed] == [1] * -(-10 // prefill_chunk)


def test_only_new_samples_of_equal_prompts_share_a_prefill() -> None:
    first, second = tuple(range(10)), tuple(range(3, 9))

    def rows_fed(wanted: Sequence[Request], num_cached: int = 0) -> int:
        runner = CountingRunner()
        rows = filled_rows(runner, NoDrafter(), wanted)
        runner.fed.clear()
        fills = [PrefillRequest(row, request, num_cached) for row, request in enumerate(wanted)]
        rows.fill(fills, Sampler(GREEDY))
        return sum(len(positions_BT) for positions_BT in runner.fed)

    wanted = samples_of([first, second, first, second, first])
    assert rows_fed(wanted) == 2
    assert rows_fed(apart(wanted)) == 5
    assert rows_fed(samples_of([first] * 3), num_cached=4) == 3


def test_rows_that_are_not_adjacent_can_be_copied(make_runner: MakeRunner) -> None:
    first, second, third = ragged_prompts()
    runner = make_runner(exact_llama(seed=0))
    wanted = samples_of([first, second, first, first, third, second])

    together, alone = (
        filled_rows(runner, NoDrafter(), requests).state.tokens_BC.clone()
        for requests in (wanted, apart(wanted))
    )

    for row, request in enumerate(wanted):
        length = len(request.prompt_ids) + 1
        assert together[row, :length].tolist() == alone[row, :length].tolist()


@pytest.mark.sampled(one_in=2, every=["make_runner", "k", "prefill_chunk"])
@pytest.mark.slow
@pytest.mark.parametrize("prefill_chunk", [512, 4])
@pytest.mark.parametrize("k", [0, 3])
def test_texts_are_those_of_separate_prefills(
    make_runner: MakeRunner, k: int, prefill_chunk: int
) -> None:
    target, draft = make_runner(exact_llama(seed=0)), make_runner(exact_llama(seed=1))
    drafter = make_drafter("draft_model" if k else "none", target, draft)
    for prompt in (*ragged_prompts(), REPETITIVE):
        wanted = samples(prompt)
        alone, together = (
            decode(target, drafter, requests, k=k, sampling=WARM, prefill_chunk=prefill_chunk)
            for requests in (apart(wanted), wanted)
        )

        assert texts_of(together) == texts_of(alone)
        assert len(set(texts_of(together))) > 1, "each sample has noise of its own"


@pytest.mark.sampled(one_in=4, every=["variant.method", "prefill_chunk"])
@pytest.mark.slow
@pytest.mark.parametrize("prefill_chunk", [512, 4])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_drafts_after_a_joint_prefill_equal_those_after_separate_ones(
    variant: Variant, prefill_chunk: int
) -> None:
    target, draft = models()
    # Lookahead begins with tokens drawn from the prompt by the row's seed: its copies share them.
    seeds = [0] * NUM_SAMPLES if variant.method == "lookahead" else range(NUM_SAMPLES)

    def drafts(requests: Sequence[Request]) -> tuple[list[list[list[int]]], list[Result]]:
        inner = make_drafter(variant.method, target, draft, **variant.parameters)
        noting = DraftRecorder(inner)
        results = decode(
            target,
            noting,
            requests,
            k=deepest(inner, 3),
            sampling=WARM,
            prefill_chunk=prefill_chunk,
        )
        return noting.drafts, results

    together, texts_together = drafts(samples(seeds=seeds))
    alone, texts_alone = drafts(apart(samples(seeds=seeds)))

    assert texts_of(texts_together) == texts_of(texts_alone)
    # Suffix decoding reads the other samples and drafts more: tests/drafters/test_suffix.py.
    assert alone != []
    assert together == alone or variant.method == "suffix"


def test_a_row_is_copied_before_it_has_a_first_token() -> None:
    """A drafter that remembers first tokens must not give one row's to another."""
    seen: list[tuple[str, int]] = []

    class Remembering(NoDrafter):
        def begin(self, state: State, predictions: Sequence[Sequence[int]]) -> None:
            seen.extend(("begin", state.first_row + i) for i in range(len(predictions)))

        def copy_row(self, source: int, destination: int, num_tokens: int) -> None:
            assert (source, num_tokens) == (0, 10)
            seen.append(("copy", destination))

        def observe(self, state: State, outcome: Any) -> None:  # noqa: ARG002
            seen.extend(("observe", state.first_row + i) for i in range(state.num_rows))

    requests = samples_of([tuple(range(10))] * 3)
    filled_rows(CountingRunner(), Remembering(), requests, Sampler(WARM))

    begun = [("begin", 0), ("begin", 1), ("begin", 2)]
    assert seen == [*begun, ("copy", 1), ("copy", 2), *(("observe", i) for i in range(3))]
