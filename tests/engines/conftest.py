"""A tiny pair on disk and the peer over it."""

import pytest
import torch

from specbench.engines.shelf import Shelf
from specbench.engines.transformers import TransformersEngine
from specbench.inputs.config import Target, load_pairings
from tests.tiny_pair import write_pair


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Target:
    return load_pairings(write_pair(tmp_path_factory.mktemp("pair"))).targets[0]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf(torch.device("cpu"))


def peer_over(target, shelf) -> TransformersEngine:
    engine = TransformersEngine(target, shelf)
    for drafter in target.drafters:
        engine.add_drafter(drafter)
    return engine


@pytest.fixture(scope="module")
def engine(target) -> TransformersEngine:
    """With both of the target's drafters, `draft` and `ngram`; tests may add others."""
    return peer_over(target, Shelf(torch.device("cpu")))


@pytest.fixture
def own_engine(target, shelf) -> TransformersEngine:
    """As `engine`, over the test's own shelf."""
    return peer_over(target, shelf)
