"""A head with its target in the built-in engine: its memory, its identity, its largest K."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig

from specbench.drafters.medusa import Medusa
from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Load, RoundForward, Work
from specbench.engines.model_pool import ModelPool
from specbench.errors import CompatibilityError, ModelError, UsageError
from specbench.files.model_spec import ModelSpec
from specbench.forward.layer_stack import LayerStack
from specbench.inputs.config import load_pairings
from specbench.inputs.pairing import DrafterSpec, Target
from specbench.records import Request, Sampling
from specbench.settings import DecoderSettings
from specbench.settings.groups import ModelImplementation
from specbench.topology import MC_SIM_7B_63
from tests import tiny_models
from tests.tiny_models import change_config, write_model
from tests.tiny_pair import make_tokenizer, write_pair

NUM_HEADS, WIDTH, VOCAB = 3, 32, 272
PARAMETERS = NUM_HEADS * (WIDTH * WIDTH + WIDTH + VOCAB * WIDTH)
REQUEST = Request(
    prompt_ids=(40, 41, 42, 43), max_new_tokens=12, sampling=Sampling(), seed=0, stop_at_eos=False
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A tiny target with a folder `head` next to it."""
    folder = tmp_path_factory.mktemp("pair")
    file = write_pair(folder)
    config = AutoConfig.from_pretrained(folder / "target")
    write_head(folder / "head", config)
    return load_pairings(file).targets[0]


def write_head(folder: Path, config: object) -> None:
    head = Medusa.new_checkpoint(config, 0, num_heads=NUM_HEADS)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(head.config))
    save_file(dict(head.tensors), folder / "model.safetensors")


def head_of(pair: Target, **changes: object) -> DrafterSpec:
    folder = pair.model.folder.parent / "head"
    spec = replace(ModelSpec(source="./head", folder=folder), **changes)
    return DrafterSpec(name="medusa", method="medusa", model=spec)


@pytest.fixture(scope="module")
def engine(pair: Target) -> BuiltinEngine:
    engine = BuiltinEngine(pair, ModelPool(torch.device("cpu")))
    engine.add_drafter(head_of(pair))
    return engine


def work(k: int, *, adaptive: bool = False) -> Work:
    return Work(drafter="medusa", method="medusa", k=k, adaptive=adaptive)


@pytest.mark.parametrize("k", [1, 3])
def test_a_head_leaves_the_targets_text_unchanged(engine: BuiltinEngine, k: int) -> None:
    wanted = engine.generate(REQUEST, engine.baseline).output_ids
    assert engine.generate(REQUEST, work(k)).output_ids == wanted


def test_a_head_is_counted_in_memory_and_in_the_identity(
    pair: Target, engine: BuiltinEngine
) -> None:
    alone = BuiltinEngine(pair, ModelPool(torch.device("cpu")))
    identity = alone.add_drafter(head_of(pair))

    assert identity is not None
    assert (identity.name, identity.source, identity.dtype) == ("medusa", "head", "float32")
    assert identity.num_parameters == PARAMETERS
    assert identity.tokenizer_sha256 == alone.tokenizer.sha256
    assert len(identity.content_sha256) == 64
    assert engine.weights_bytes("medusa") - engine.weights_bytes("none") == 4 * PARAMETERS
    engine.generate(REQUEST, work(2))
    assert engine.kv_bytes_per_token("medusa") == engine.kv_bytes_per_token("none")


def test_a_round_reads_the_heads_that_its_k_needs(
    engine: BuiltinEngine,
) -> None:
    target, heads = engine.forwards("medusa", 2)

    num_nodes = 1 + sum(len(path) <= 2 for path in MC_SIM_7B_63)
    assert target == RoundForward(role="target", num_tokens=num_nodes, times=1)
    assert heads == RoundForward(role="drafter", num_tokens=1, times=1, part="2 of 3 heads")
    assert engine.bytes_read("medusa", heads, rows=4, context=100) == 4 * PARAMETERS * 2 // 3
    engine.generate(REQUEST, work(2))
    weights = engine.bytes_read("medusa", target, rows=1, context=0)
    cached = engine.bytes_read("medusa", target, rows=2, context=100) - weights
    assert cached == 200 * engine.kv_bytes_per_token("none")


def test_a_head_that_does_not_state_its_forwards_has_no_lower_bound(
    pair: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = BuiltinEngine(pair, ModelPool(torch.device("cpu")))
    monkeypatch.setattr(Medusa, "_forwards", lambda _, k: ())  # noqa: ARG005
    engine.add_drafter(head_of(pair))

    assert engine.forwards("medusa", 2) == ()
    assert len(engine.forwards("none", 0)) == 1


def test_a_k_that_is_too_deep_is_refused_before_anything_runs(engine: BuiltinEngine) -> None:
    assert engine.record.max_k == {"medusa": NUM_HEADS}
    with pytest.raises(UsageError, match=r"3.*`tree: auto`.*-k 3"):
        engine.generate(REQUEST, work(4))


def test_an_adaptive_k_is_limited_to_the_number_of_heads(engine: BuiltinEngine) -> None:
    served = engine.serve([REQUEST] * 2, work(8, adaptive=True), Load(concurrency=2))
    assert max(served.rounds.num_speculative_tokens) <= NUM_HEADS
    assert served.results[0].output_ids == engine.generate(REQUEST, engine.baseline).output_ids


def test_only_a_separate_tokenizer_is_compared(pair: Target, tmp_path: Path) -> None:
    engine = BuiltinEngine(pair, ModelPool(torch.device("cpu")))
    write_head(tmp_path / "head", AutoConfig.from_pretrained(pair.model.folder))
    make_tokenizer().save_pretrained(tmp_path / "head")
    engine.add_drafter(head_of(pair, folder=tmp_path / "head"))  # the same: fine

    file = tmp_path / "head" / "tokenizer.json"
    file.write_text(file.read_text().replace('"A":', '"new":'))
    other = BuiltinEngine(pair, ModelPool(torch.device("cpu")))
    with pytest.raises(CompatibilityError, match="cannot draft for"):
        other.add_drafter(head_of(pair, folder=tmp_path / "head"))


def test_a_head_is_not_packed(pair: Target, engine: BuiltinEngine) -> None:
    with pytest.raises(ModelError, match="leave out `quantization: int8`"):
        engine.add_drafter(replace(head_of(pair, quantization="int8"), name="packed"))


def test_a_removed_head_frees_its_memory(pair: Target) -> None:
    engine = BuiltinEngine(pair, ModelPool(torch.device("cpu")))
    engine.add_drafter(head_of(pair))
    engine.generate(REQUEST, work(2))
    engine.remove_drafter("medusa")
    with pytest.raises(KeyError):
        engine.generate(REQUEST, work(2))
    engine.remove_drafter("medusa")


def test_dummy_weights_include_the_head(pair: Target) -> None:
    engine = BuiltinEngine(pair, ModelPool(torch.device("cpu"), dummy=True))
    identity = engine.add_drafter(head_of(pair))
    assert identity is not None
    assert identity.content_sha256.startswith("dummy:")
    wanted = engine.generate(REQUEST, engine.baseline).output_ids
    assert engine.generate(REQUEST, work(2)).output_ids == wanted


def test_drafting_with_the_first_layer_reads_that_layer_and_the_head(pair: Target) -> None:
    engine = BuiltinEngine(pair, ModelPool(torch.device("cpu")))
    engine.add_drafter(
        DrafterSpec(
            name="self", method="self_speculation", model=None, parameters={"num_layers": 1}
        )
    )
    config = AutoConfig.from_pretrained(pair.model.folder)
    engine.generate(REQUEST, engine.baseline)
    target, draft = engine.forwards("self", 4)
    read, own_read = (engine.bytes_read("self", forward, 1, 0) for forward in (target, draft))
    layer = (read - own_read) / (config.num_hidden_layers - 1)

    assert (draft.num_tokens, draft.times, draft.part) == (1, 4, "")
    assert engine.weights_bytes("self") == engine.weights_bytes("none")
    rest = 4 * (VOCAB * WIDTH + WIDTH)  # the head and the final norm
    frequencies = 64  # of the rotary positions
    assert own_read == layer + rest + frequencies
    # It reads the target's keys and values of one layer.
    cached = engine.bytes_read("self", draft, 1, 100) - own_read
    assert cached == 100 * engine.kv_bytes_per_token("none") // config.num_hidden_layers


def test_equally_wide_tree_levels_are_one_kind_of_forward(pair: Target) -> None:
    engine = BuiltinEngine(pair, ModelPool(torch.device("cpu")))
    parameters = {"num_layers": 1, "tree": (2, 1)}
    engine.add_drafter(
        DrafterSpec(name="self", method="self_speculation", model=None, parameters=parameters)
    )

    target, first, later = engine.forwards("self", 4)

    assert (target.num_tokens, target.times) == (9, 1)
    assert (first.num_tokens, first.times) == (1, 1)
    assert (later.num_tokens, later.times) == (2, 3)


def test_a_head_trained_for_another_target_is_reported(pair: Target) -> None:
    builtin = BuiltinEngine(pair, ModelPool(torch.device("cpu")))
    head = head_of(pair)
    place = Path(head.model.location) / "training.json"
    try:
        for sha256, is_told in ((builtin.identity.content_sha256, False), ("0" * 64, True)):
            place.write_text(json.dumps({"target": {"sha256": sha256}}))
            engine = BuiltinEngine(pair, ModelPool(torch.device("cpu")))
            engine.add_drafter(head)
            notes = [note for note in engine.record.notes if "different target" in note]
            assert bool(notes) is is_told
        place.write_text('{"target": [1]}')
        BuiltinEngine(pair, ModelPool(torch.device("cpu"))).add_drafter(head)
    finally:
        place.unlink()


@pytest.mark.parametrize("forward", ["auto", "stock"])
def test_a_heads_layers_follow_the_model_implementation(
    tmp_path: Path, forward: ModelImplementation
) -> None:
    files = write_model(tmp_path / "target")
    head = tiny_models.write_head(tmp_path / "head", "eagle", files)
    target = Target(name="tiny", model=files.spec, drafters=())
    engine = BuiltinEngine(target, ModelPool(torch.device("cpu")), DecoderSettings(forward=forward))
    engine.add_drafter(DrafterSpec(name="e", method="eagle", model=head.spec))
    layers = engine.drafting("e").resources.cached_layers

    assert isinstance(layers, LayerStack)
    assert (layers.fused is None) is (forward == "stock")
    assert not [note for note in engine.record.notes if note.startswith("e:")]
    drafted = engine.generate(REQUEST, Work(drafter="e", method="eagle", k=2))
    assert drafted.output_ids == engine.generate(REQUEST, engine.baseline).output_ids


def test_a_head_whose_layers_cannot_run_fused_says_why(tmp_path: Path) -> None:
    files = write_model(tmp_path / "target")
    head = tiny_models.write_head(tmp_path / "head", "eagle", files)
    change_config(head, hidden_act="gelu")
    target = Target(name="tiny", model=files.spec, drafters=())
    drafter = DrafterSpec(name="e", method="eagle", model=head.spec)
    engine = BuiltinEngine(target, ModelPool(torch.device("cpu")))
    engine.add_drafter(drafter)

    (note,) = [note for note in engine.record.notes if note.startswith("e:")]
    assert {"stock", "gelu,", "silu"} <= set(note.split())
    settings = DecoderSettings(forward="fused")
    with pytest.raises(ModelError, match=r"e: .*fused.*gelu"):
        BuiltinEngine(target, ModelPool(torch.device("cpu")), settings).add_drafter(drafter)
