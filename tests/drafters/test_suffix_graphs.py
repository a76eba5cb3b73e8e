"""Suffix decoding with graphs: on the host it does not see what they replay."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from specbench.decode.decoder import Decoder
from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK, Policy
from specbench.decode.state import State
from specbench.drafters.registry import build_drafter
from specbench.drafters.suffix import Suffix
from specbench.methods import find_method
from specbench.records import Request, Sampling
from tests.decoding.fake_graphs import FakeGraphs
from tests.decoding.fakes import CountingClock
from tests.decoding.graph_bench import (
    GREEDY,
    WARM,
    Bench,
    Cycle,
    Subject,
    make_subject,
    some_requests,
)
from tests.decoding.lossless import assert_texts, parts_of
from tests.decoding.models import random_prompt

T = TypeVar("T")


@pytest.fixture(scope="module")
def llama() -> Subject:
    return make_subject()


class Deaf(Suffix):
    """Sees nothing of what a graph replays, as nothing on the host does."""

    is_replaying = False

    def observe(self, state: State, outcome: Any) -> None:
        if not self.is_replaying:
            super().observe(state, outcome)


class ReplaysOfTheDevice(FakeGraphs):
    def __init__(self, drafter: Deaf) -> None:
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
    eager = Decoder(
        llama.target,
        build_drafter("suffix", parts_of(llama.target), {}),
        eos_ids=(),
        clock=CountingClock(),
    )
    expected = eager.serve(requests, Sampler(sampling), policy(), num_rows=num_rows).results
    drafter = Deaf(parts_of(llama.target), **find_method("suffix").settings({}))
    bench = Bench(llama, drafter, graphs=ReplaysOfTheDevice(drafter))

    results = bench.serve(requests, policy(), num_rows, sampling)

    assert_texts(results, [result.output_ids for result in expected])
    assert bench.launcher.graph == "step"
    # Reports that come late leave a row idle for a round before the next request, so that only
    # what was there from the start meets the same K and the same earlier answers.
    logs = [result.rounds.num_drafted for result in results[:num_rows]]
    assert logs == [result.rounds.num_drafted for result in expected[:num_rows]]
    assert sum(logs[0]) > 0
