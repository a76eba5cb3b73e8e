"""A tiny pair on disk, and transformers' engine over it."""

import pytest
import torch

from specbench.engines.model_pool import ModelPool
from specbench.engines.transformers_engine import TransformersEngine
from specbench.inputs.config import load_pairings
from specbench.inputs.pairing import Target
from tests.tiny_pair import write_pair


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Target:
    return load_pairings(write_pair(tmp_path_factory.mktemp("pair"))).targets[0]


@pytest.fixture
def pool() -> ModelPool:
    return ModelPool(torch.device("cpu"))


def peer_over(target, pool) -> TransformersEngine:
    engine = TransformersEngine(target, pool)
    for drafter in target.drafters:
        engine.add_drafter(drafter)
    return engine


@pytest.fixture(scope="module")
def engine(target) -> TransformersEngine:
    """An engine with both of the target's drafters, `draft` and `ngram`; tests may add others."""
    return peer_over(target, ModelPool(torch.device("cpu")))


@pytest.fixture
def new_engine(target, pool) -> TransformersEngine:
    """Like `engine`, over the test's own pool."""
    return peer_over(target, pool)
