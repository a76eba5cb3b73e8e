"""The number of drafts and forwards per round that a method declares, against its drafter's."""

import pytest

from specbench.inputs.pairing import DrafterSpec
from specbench.methods import RoundShape, find_method
from specbench.topology import EAGLE_STATIC

TREE = {"top_k": 3, "max_drafts": 10}
FORWARDS = [
    ("draft_model", 3, {}, 3),
    ("draft_model", 3, {"tree": (3, 2)}, 3),
    ("self_speculation", 3, {"num_layers": 2}, 3),
    ("eagle", 3, {"tree": "chain"}, 3),
    ("eagle", 3, {"tree": "static"}, 3),
    ("eagle3", 3, {"tree": "dynamic", **TREE}, 3),
    ("eagle3", 2, {"tree": "static"}, 2),
    ("medusa", 3, {"tree": "chain"}, 1),
    ("mtp", 3, {}, 3),
    ("dflash", 3, {}, 2),
    ("ngram", 3, {}, 0),
    ("suffix", 3, {}, 0),
    ("token_intersection", 3, {}, 3),
    ("string_match", 3, {}, 3),
    ("lookahead", 3, {}, 0),
    ("token_recycling", 3, {}, 0),
]


def drafting(drafter: DrafterSpec, k: int) -> RoundShape:
    return find_method(drafter.method).shape(drafter.parameters, k)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "k", "parameters", "forwards"), FORWARDS, ids=lambda value: str(value)
)
def test_a_drafters_own_layers_run_as_often_as_is_planned(tiny, method, k, parameters, forwards):
    drafter = tiny.drafter(method, **parameters)
    engine = tiny.decoded(drafter, k)
    passes = [forward for forward in engine.forwards(method, k) if forward.role == "drafter"]

    assert drafting(drafter, k).num_forwards == forwards == sum(f.times for f in passes)


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
@pytest.mark.parametrize(("k", "num_drafts"), [(1, 4), (2, 12), (3, 20), (4, 23), (5, 25)])
def test_eagles_static_tree_is_cut_to_k_levels(tiny, method, k, num_drafts):
    shape = drafting(tiny.drafter(method, tree="static"), k)

    assert shape == RoundShape(num_drafts, k)
    assert num_drafts == EAGLE_STATIC.cut(k).num_drafts
    assert EAGLE_STATIC.depth == 5


def test_a_static_tree_drafts_nothing_beyond_its_last_level(tiny):
    static = tiny.drafter("eagle", tree="static")
    assert drafting(static, 9) == drafting(static, 5)


def test_without_speculation_nothing_is_drafted(tiny):
    assert drafting(tiny.drafter("eagle", tree="static"), 0) == RoundShape(0, 0)
