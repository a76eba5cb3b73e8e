"""EAGLE's heads draft, round after round, the same as a plain forward over the text.

Shape suffixes: B rows, K drafts, F hidden size, V vocabulary.
"""

import pytest
import torch

from specbench.drafters.shared.feature_drafter import FeatureDrafter
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import StockRunner
from specbench.records import Sampling
from specbench.topology import EAGLE_STATIC
from tests.decoding.models import tiny_llama
from tests.drafters.feature_cases import (
    BEAM,
    METHODS,
    PROMPTS,
    Recorder,
    assert_chains,
    assert_dynamic_trees,
    assert_static_trees,
    run_rounds,
    subject,
)

pytestmark = pytest.mark.slow  # rounds compared with plain heads


@pytest.mark.parametrize("method", METHODS)
def test_chains_equal_the_reference_for_any_acceptance(method: str) -> None:
    case = subject(method)

    seen, kept = case.rounds([4] * 12, tree="chain")

    assert kept == {0, 1, 2, 3, 4}
    assert_chains(case.plain, seen)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("method", METHODS)
def test_static_trees_equal_the_reference_for_every_accepted_branch(method: str) -> None:
    case = subject(method)

    seen, kept = case.rounds([4] * 8, tree="static")

    assert kept == {0, 1, 2, 3, 4}
    assert_static_trees(case.plain, EAGLE_STATIC.cut(4), seen)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("method", METHODS)
def test_dynamic_trees_equal_the_reference_for_every_accepted_branch(method: str) -> None:
    case = subject(method)

    seen, kept = case.rounds([4] * 8, tree="dynamic", **BEAM)

    assert kept == {0, 1, 2, 3, 4}
    assert_dynamic_trees(case.plain, 3, 4, 8, seen)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("method", METHODS)
def test_a_beam_of_more_slots_than_drafts_stays_in_its_row(method: str) -> None:
    case = subject(method)

    assert_dynamic_trees(case.plain, 5, 6, 2, case.deep_beams())


@pytest.mark.parametrize("method", METHODS)
def test_draft_distributions_of_a_sampled_chain_equal_the_reference(method: str) -> None:
    case = subject(method)
    watched = Recorder(case.drafter(tree="chain"))

    run_rounds(case.target, watched, PROMPTS, [3] * 6, sampling=Sampling(temperature=0.7))

    for text, paths, probs in watched.seen:
        assert probs is not None
        for i, probs_V in enumerate(probs):
            logits_V = case.plain.logits(text, paths[-1][:i])
            torch.testing.assert_close(probs_V, (logits_V / 0.7).softmax(-1), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("tree", "draws"), [("static", True), ("dynamic", False)])
@pytest.mark.parametrize("method", METHODS)
def test_static_trees_are_drawn_and_dynamic_ones_are_matched(
    method: str, tree: str, draws: bool
) -> None:
    watched = Recorder(subject(method).drafter(tree=tree))

    run_rounds(subject(method).target, watched, PROMPTS, [4], sampling=Sampling(temperature=0.7))

    assert all((drafted.probs is not None) == draws for drafted in watched.seen)


@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_a_chunked_prefill_gives_the_states_of_the_reference_head(method: str) -> None:
    case = subject(method)
    text = torch.tensor([PROMPTS[2]])
    out = case.plain.model.model(text, use_cache=False, output_hidden_states=True)
    states_TF = case.plain.first([state_1TF[0] for state_1TF in out.hidden_states])[:-1]
    expected_TF = case.plain.next(case.plain.embedding_VF[text[0, 1:]], states_TF)
    drafter = case.drafter()
    assert isinstance(drafter, FeatureDrafter)
    head, T = drafter.head, text.shape[1] - 1
    drafter.allocate(1, 64)

    pieces = [
        head.step(
            text[:, 1:][:, piece_T],
            head.fuse(tuple(out.hidden_states[i][:, piece_T] for i in head.features)),
            piece_T[None],
            64,
        )
        for piece_T in torch.arange(T).split(4)
    ]

    torch.testing.assert_close(torch.cat(pieces, 1)[0], expected_TF, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_a_head_drafts_the_same_on_a_fused_target(method: str) -> None:
    case = subject(method)
    fused = case._replace(target=FusedRunner(tiny_llama(vocab_size=11, num_hidden_layers=3)))

    assert_chains(case.plain, fused.rounds([4] * 6, tree="chain")[0])


@pytest.mark.parametrize("method", METHODS)
def test_a_head_has_the_dtype_of_its_target(method: str) -> None:
    case = subject(method)
    model = tiny_llama(vocab_size=11, num_hidden_layers=3).bfloat16()
    half = case._replace(target=StockRunner(model))

    drafter = half.drafter()
    run_rounds(half.target, drafter, PROMPTS, [4] * 3)

    assert {tensor.dtype for tensor in drafter.resources.weights} == {torch.bfloat16}


def test_the_static_tree_is_the_published_one_of_25_nodes() -> None:
    assert EAGLE_STATIC.num_drafts == 25
    assert [len(level.ranks) for level in EAGLE_STATIC.levels] == [4, 8, 8, 3, 2]
    assert EAGLE_STATIC.is_gapless
