"""A draft model with another tokenizer in the built-in engine: loaded, identified, and timed."""

from pathlib import Path

import pytest
import torch

from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import RoundForward, Work
from specbench.engines.model_pool import ModelPool
from specbench.errors import CompatibilityError
from specbench.files.model_spec import ModelSpec
from specbench.inputs.config import load_pairings
from specbench.inputs.pairing import DrafterSpec, Target
from specbench.models.tokenizer import ChatTokenizer
from specbench.records import Request, Sampling
from tests.other_tokenizers import revocabularied, write_pieces
from tests.tiny_pair import make_pair, write_pair

REQUEST = Request(
    prompt_ids=(40, 41, 42, 43), max_new_tokens=16, sampling=Sampling(), seed=0, stop_at_eos=False
)
METHODS = ("token_intersection", "string_match")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A tiny byte-level target, with a draft of pieces in the folder `other` next to it."""
    folder = tmp_path_factory.mktemp("pair")
    file = write_pair(folder)
    tokenizer = ChatTokenizer(str(folder / "target"), revision=None, trust_remote_code=False)
    pieces = write_pieces(folder / "other", 300)
    _, draft = make_pair()
    revocabularied(draft, tokenizer, pieces).save_pretrained(folder / "other")
    return load_pairings(file).targets[0]


def drafter_of(pair: Target, method: str) -> DrafterSpec:
    folder: Path = pair.model.folder.parent / "other"
    return DrafterSpec(
        name="other", method=method, model=ModelSpec(source="./other", folder=folder)
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_draft_with_another_tokenizer_loads_and_leaves_the_text_unchanged(
    pair: Target, method: str
) -> None:
    engine = BuiltinEngine(pair, ModelPool(torch.device("cpu")))
    identity = engine.add_drafter(drafter_of(pair, method))

    assert identity is not None
    assert identity.tokenizer_sha256 != engine.tokenizer.sha256
    assert any("tokens in common" in note for note in engine.record.notes)
    plain = engine.generate(REQUEST, engine.baseline)
    drafted = engine.generate(REQUEST, Work(drafter="other", method=method, k=3))
    assert drafted.output_ids == plain.output_ids
    assert sum(drafted.rounds.num_accepted) > 0
    target, *passes = engine.forwards("other", 3)
    assert target == RoundForward(role="target", num_tokens=4, times=1)
    assert sum(forward.times for forward in passes) == 3
    assert engine.weights_bytes("other") > engine.weights_bytes("none")


def test_a_draft_with_another_tokenizer_is_refused_as_draft_model(pair: Target) -> None:
    engine = BuiltinEngine(pair, ModelPool(torch.device("cpu")))
    with pytest.raises(CompatibilityError, match="method token_intersection drafts these"):
        engine.add_drafter(drafter_of(pair, "draft_model"))
