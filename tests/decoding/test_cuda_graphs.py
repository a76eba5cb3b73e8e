"""The checks of test_graphs.py on a real GPU."""

from collections.abc import Sequence

import pytest
import torch

from specbench.decode.clock import make_clock
from specbench.decode.decoder import Decoder
from specbench.decode.drafter import Drafter, Proposal
from specbench.decode.graphs import GraphLauncher, Launchers
from specbench.decode.sampling import Sampler
from specbench.decode.scheduler import FixedK
from specbench.decode.state import State
from specbench.drafters.ngram import Ngram
from specbench.forward.runner import StockRunner
from specbench.records import Request, Sampling
from tests.decoding.lossless import make_drafter, parts_of, texts_of
from tests.decoding.models import random_prompt, tiny_llama

pytestmark = pytest.mark.gpu

WARM = Sampling(temperature=0.8, top_p=0.95)
REQUESTS = [
    Request(prompt_ids=random_prompt(5 + 3 * i, seed=i), max_new_tokens=12 + 5 * i, seed=i)
    for i in range(6)
]


@pytest.fixture
def target() -> StockRunner:
    return StockRunner(tiny_llama(seed=0).to("cuda"))


@pytest.fixture
def draft() -> StockRunner:
    return StockRunner(tiny_llama(seed=1).to("cuda"))


def make_decoder(target: StockRunner, drafter: Drafter, graph: str) -> Decoder:
    return Decoder(
        target,
        drafter,
        eos_ids=(3,),
        clock=make_clock(target.device),
        make_launcher=Launchers(graph, target.device),
    )


def texts(
    decoder: Decoder, k: int, *, num_rows: int = 4, sampling: Sampling = WARM
) -> Sequence[tuple[int, ...]]:
    served = decoder.serve(REQUESTS, Sampler(sampling), FixedK(k), num_rows=num_rows)
    return texts_of(served.results)


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("graph", ["round", "step"])
@pytest.mark.parametrize(("method", "k"), [("none", 0), ("ngram", 3), ("draft_model", 4)])
def test_replayed_rounds_give_the_texts_of_eager_ones(
    target: StockRunner, draft: StockRunner, method: str, k: int, graph: str, sampling: Sampling
) -> None:
    drafter = make_drafter(method, target, draft)
    expected = texts(make_decoder(target, drafter, "off"), k, sampling=sampling)
    decoder = make_decoder(target, drafter, graph)

    for _ in range(2):
        assert texts(decoder, k, sampling=sampling) == expected
    assert decoder.launcher is not None
    assert (decoder.launcher.graph, decoder.launcher.reason) == (graph, None)
    assert decoder.launcher.reserved_bytes > 0


class ReadsAnItem(Ngram):
    """Waits for the device in the middle of a round."""

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        proposal = super().propose(state, k, span, sampler)
        proposal.tokens_BK.sum().item()
        return proposal


def test_a_round_that_syncs_runs_eagerly_with_the_reason(
    target: StockRunner, draft: StockRunner
) -> None:
    drafter = ReadsAnItem(parts_of(target, draft), max_ngram=3, min_ngram=1)
    expected = texts(make_decoder(target, drafter, "off"), 3)
    decoder = make_decoder(target, drafter, "round")

    for _ in range(2):
        assert texts(decoder, 3) == expected
    assert decoder.launcher is not None
    assert decoder.launcher.graph == "off"
    assert "be captured" in (decoder.launcher.reason or "")
    torch.cuda.empty_cache()  # fails if a failed capture left its pool open


def test_a_launcher_works_after_a_failed_capture_of_another(
    target: StockRunner, draft: StockRunner
) -> None:
    launchers = Launchers("round", target.device)
    failing, sound = (
        Decoder(
            target, drafter, eos_ids=(3,), clock=make_clock(target.device), make_launcher=launchers
        )
        for drafter in (
            ReadsAnItem(parts_of(target, draft), max_ngram=3, min_ngram=1),
            make_drafter("draft_model", target, draft),
        )
    )
    expected = texts(make_decoder(target, sound.drafter, "off"), 4)
    texts(failing, 3)

    for _ in range(2):
        assert texts(sound, 4) == expected
    assert sound.launcher is not None
    assert (sound.launcher.graph, sound.launcher.reason) == ("round", None)


def test_graphs_are_made_again_in_new_memory_after_all_of_them_have_ended(
    target: StockRunner, draft: StockRunner
) -> None:
    decoder = make_decoder(target, make_drafter("draft_model", target, draft), "round")
    expected = texts(decoder, 4)
    target.allocate(9, 1024)

    assert texts(decoder, 4) == expected
    assert isinstance(decoder.launcher, GraphLauncher)
    assert decoder.launcher.reason is None
