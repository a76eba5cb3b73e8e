"""A decoder over fake graphs, and the same decoder without graphs to compare it with."""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from specbench.decode.decoder import Decoder
from specbench.decode.drafter import Drafter
from specbench.decode.graphs import GraphLauncher
from specbench.decode.launcher import GraphKind
from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK, Policy
from specbench.forward.runner import StockRunner
from specbench.records import Request, Result, Sampling
from tests.decoding.fake_graphs import FakeGraphs, LateClock, LateCopies, graphed
from tests.decoding.lossless import make_drafter, texts_of
from tests.decoding.models import random_prompt, tiny_llama

GREEDY, WARM = Sampling(), Sampling(temperature=0.8, top_p=0.95)


class Subject(NamedTuple):
    target: StockRunner
    own_draft: StockRunner
    stranger: StockRunner

    def drafter(self, method: str) -> Drafter:
        return make_drafter(method, self.target, self.stranger)


def make_subject() -> Subject:
    """A target, a draft model that always agrees with it, and one that seldom does."""
    model, other = (tiny_llama(seed=seed, num_hidden_layers=1) for seed in (0, 1))
    return Subject(StockRunner(model), StockRunner(model), StockRunner(other))


class Cycle(FixedK):
    """The given K one after the other, repeatedly."""

    def __init__(self, *ks: int) -> None:
        super().__init__(max(ks))
        self._ks = itertools.cycle(ks)

    def choose(self, num_rows: int, num_live: int, num_behind: int) -> int:  # noqa: ARG002
        return next(self._ks)


def some_requests(num: int = 6) -> list[Request]:
    """Prompts of 3 to 18 tokens and texts of 4, 11, 7, 3, 10 and 6."""
    return [
        Request(
            prompt_ids=random_prompt(3 + 5 * (i % 4), seed=i),
            max_new_tokens=3 + (1 + 7 * i) % 11,
            seed=i,
        )
        for i in range(num)
    ]


def one_request(num_tokens: int = 20, prompt_length: int = 10) -> list[Request]:
    prompt = random_prompt(prompt_length, seed=prompt_length)
    return [Request(prompt_ids=prompt, max_new_tokens=num_tokens)]


class Bench:
    """A decoder over fake graphs."""

    def __init__(
        self,
        subject: Subject,
        drafter: Drafter,
        *,
        graph: GraphKind = "round",
        graphs: FakeGraphs | None = None,
        copies: type[LateCopies] = LateCopies,
        eos_ids: Sequence[int] = (),
        **limits: int,
    ) -> None:
        self.graphs = FakeGraphs() if graphs is None else graphs
        clock = LateClock()
        self.decoder = Decoder(
            subject.target,
            drafter,
            eos_ids=eos_ids,
            clock=clock,
            make_launcher=partial(graphed(self.graphs, clock, graph, copies), **limits),
        )

    @property
    def launcher(self) -> GraphLauncher:
        assert isinstance(self.decoder.launcher, GraphLauncher)
        return self.decoder.launcher

    def serve(
        self,
        requests: Sequence[Request],
        policy: Policy,
        num_rows: int = 1,
        sampling: Sampling = GREEDY,
    ) -> list[Result]:
        served = self.decoder.serve(requests, Sampler(sampling), policy, num_rows=num_rows)
        return served.results


def eager_texts(
    subject: Subject,
    drafter: Drafter,
    requests: Sequence[Request],
    policy: Policy,
    rows: int,
    sampling: Sampling = GREEDY,
    eos_ids: Sequence[int] = (),
) -> list[tuple[int, ...]]:
    decoder = Decoder(subject.target, drafter, eos_ids=eos_ids, clock=LateClock())
    served = decoder.serve(requests, Sampler(sampling), policy, num_rows=rows)
    return texts_of(served.results)
