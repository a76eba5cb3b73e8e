"""EAGLE-3's head: its layouts, its vocabulary, misfits, and the logits of other libraries.

The rounds that it drafts in are tested in test_feature_drafter.py. Shape suffixes: S steps, T
tokens, F hidden size, D tokens of the head's vocabulary, V the target's vocabulary.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from specbench.drafters.eagle3 import Eagle3, Eagle3Head, Eagle3Weights
from specbench.drafters.shared.layers import layer_config, shapes_of
from specbench.errors import ModelError
from specbench.files.eagle import Style, default_layer_ids
from specbench.forward.runner import StockRunner
from specbench.models.checkpoint import Checkpoint
from tests.decoding.models import VOCAB_SIZE, tiny_llama
from tests.drafters.changed_heads import with_config, with_tensors

REFERENCES = Path(__file__).parent / "reference"
IDS = tuple(range(3, 90, 3))


@cache
def target(num_layers: int = 6) -> StockRunner:
    return StockRunner(tiny_llama(num_hidden_layers=num_layers))


def new(target_ids: tuple[int, ...] = IDS, **changes: Any) -> Checkpoint:
    return Eagle3.new_checkpoint(target().model.config, 1, target_ids=target_ids, **changes)


@torch.no_grad()
def stepped(
    head: Eagle3Head, features: tuple[Tensor, ...], tokens: list[int], num_own: int = 0
) -> Tensor:
    """Logits [V] after the tokens: the last `num_own` follow the head's own states."""
    T = len(tokens) - num_own
    tokens_1T = torch.tensor([tokens])
    head.layers.allocate(1, 64)
    states = head.step(tokens_1T[:, :T], head.fuse(features), torch.arange(T)[None], 64)[:, -1:]
    for place in range(T, len(tokens)):
        at_11 = torch.tensor([[place]])
        states = head.step(tokens_1T[:, place : place + 1], states, at_11, 64, depth=1)
    return head.logits(states)[0, 0]


def head_logits(checkpoint: Checkpoint) -> Tensor:
    """The head's logits [V] after five tokens over random states."""
    head = Eagle3Head(checkpoint, target())
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(len(head.features), 1, 5, 32, generator=generator)
    return stepped(head, tuple(features), [4, 8, 15, 16, 23, 42], num_own=1)


@pytest.mark.parametrize("name", ["llama", "llama_deep", "qwen3"])
def test_logits_are_those_of_the_package_speculators(name: str) -> None:
    with safe_open(REFERENCES / f"eagle3_{name}.safetensors", "pt") as file:
        held = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no dict
        config = json.loads(file.metadata()["config"])
    tensors = {k.removeprefix("head."): t for k, t in held.items() if k.startswith("head.")}
    head = Eagle3Head(Checkpoint(source=name, config=config, tensors=tensors), target())
    tokens, ids_D = held["tokens_T"].tolist(), held["target_ids_D"]
    others_V = torch.ones(VOCAB_SIZE, dtype=torch.bool).index_fill(0, ids_D, False)

    for step, logits_TD in enumerate(held["logits_STD"]):
        for last in range(len(tokens) - step):
            seen_TF = held["states_TF"][None, : last + 1]
            features = seen_TF.chunk(len(head.features), -1)
            logits_V = stepped(head, features, tokens[: last + 1 + step], num_own=step)
            torch.testing.assert_close(logits_V[ids_D], logits_TD[last], atol=1e-4, rtol=1e-4)
            assert bool((logits_V[others_V] == -torch.inf).all())


def test_every_layout_of_tensor_names_gives_the_same_head() -> None:
    plain = new()
    expected_V = head_logits(plain)

    for prefixes in ({"layers.0.": "midlayer."}, {"": "model."}, {"layers.0.": "model.midlayer."}):
        renamed = plain.renamed(prefixes)
        torch.testing.assert_close(head_logits(renamed), expected_V)


def test_the_former_names_of_feature_norms_are_accepted() -> None:
    today = new(fc_norm=True)
    first = {f"fc_norm.{i}.": f"aux_norm_{word}." for i, word in enumerate(("low", "mid", "high"))}

    torch.testing.assert_close(head_logits(today.renamed(first)), head_logits(today))


@pytest.mark.parametrize(
    "option", ["norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"]
)
def test_every_norm_in_a_config_changes_the_output(option: str) -> None:
    assert not torch.allclose(head_logits(new(**{option: True})), head_logits(new()))


def test_d2t_offsets_map_draft_ids_to_target_ids() -> None:
    small, whole = new(), new(target_ids=())
    ids_D = torch.tensor(IDS)
    same = with_tensors(whole, **{
        name.replace(".", "__"): tensor
        for name, tensor in small.tensors.items()
        if name not in ("d2t", "t2d", "lm_head.weight")
    })  # fmt: skip
    table_VF = torch.zeros(VOCAB_SIZE, 32).index_copy(0, ids_D, small.tensors["lm_head.weight"])
    same = with_tensors(same, lm_head__weight=table_VF)

    said_V, all_V = head_logits(small), head_logits(same)

    torch.testing.assert_close(said_V[ids_D], all_V[ids_D])
    assert int((said_V > -torch.inf).sum()) == len(IDS)


def test_a_head_without_an_lm_head_uses_that_of_the_target() -> None:
    whole = new(target_ids=())
    own_VF = target().model.lm_head.weight

    said_V = head_logits(with_tensors(whole, lm_head__weight=None))

    torch.testing.assert_close(said_V, head_logits(with_tensors(whole, lm_head__weight=own_VF)))


def test_a_separate_embedding_is_used_and_a_copy_of_the_targets_is_dropped() -> None:
    own_VF = target().model.get_input_embeddings().weight.clone()
    copy = with_tensors(new(), embed_tokens__weight=own_VF)
    other = with_tensors(new(), embed_tokens__weight=own_VF.flip(0))

    assert Eagle3Head(copy, target())._embed == target().embed
    torch.testing.assert_close(head_logits(copy), head_logits(new()))
    assert not torch.allclose(head_logits(other), head_logits(new()))


def test_logits_of_a_reduced_vocabulary_take_the_configs_scale() -> None:
    scaled_V = head_logits(with_config(new(), logit_scale=0.5))
    torch.testing.assert_close(scaled_V, 0.5 * head_logits(new()))


@pytest.mark.parametrize(
    "rope",
    [
        # As in Qwen2.5-VL; in the current key; with the theta that the others take from the config.
        {"type": "mrope", "mrope_section": [16, 24, 24]},
        {"rope_type": "mrope", "mrope_section": [1, 1, 2], "mrope_interleaved": True},
        {"type": "mrope", "rope_type": "mrope", "mrope_section": [4], "rope_theta": 10_000.0},
    ],
)
def test_mrope_is_read_as_default_because_texts_have_one_position(rope: Mapping[str, Any]) -> None:
    plain = with_config(new(), rope_theta=10_000.0)
    for key in ("rope_scaling", "rope_parameters"):
        head = with_config(plain, **{key: rope})
        torch.testing.assert_close(head_logits(head), head_logits(plain))


def test_a_bias_in_the_files_changes_the_logits() -> None:
    biased = with_tensors(new(), fc__bias=torch.ones(32), layers__0__self_attn__q_proj__bias=None)

    assert not torch.allclose(head_logits(biased), head_logits(new()))


def test_the_shapes_are_those_of_the_published_head_of_llama_3_1_8b() -> None:
    config = {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "draft_vocab_size": 32000,
    }
    checkpoint = Checkpoint(source="a head", config=config, tensors={})
    style = Style.of(checkpoint, 32)

    with torch.device("meta"):
        shapes = shapes_of(Eagle3Weights(layer_config(checkpoint), style, (), 4096))

    assert style.layer_ids == (2, 16, 29)
    assert {name: shapes[f"{name}.weight"] for name in ("fc", "lm_head", "norm")} == {
        "fc": (4096, 12288),
        "lm_head": (32000, 4096),
        "norm": (4096,),
    }
    attention = {n: shapes[f"layers.0.self_attn.{n}_proj.weight"] for n in "qkvo"}
    assert attention == {
        "q": (4096, 8192),
        "k": (1024, 8192),
        "v": (1024, 8192),
        "o": (4096, 4096),
    }
    assert {n for n in shapes if n.startswith("layers.") and "norm" in n} == {
        "layers.0.input_layernorm.weight",
        "layers.0.hidden_norm.weight",
        "layers.0.post_attention_layernorm.weight",
    }


@pytest.mark.parametrize(("num_layers", "ids"), [(32, (2, 16, 29)), (6, (2, 3, 3)), (1, (0, 0, 0))])
def test_default_eagle3_layers_follow_the_paper(num_layers: int, ids: tuple[int, ...]) -> None:
    assert default_layer_ids(num_layers) == ids


@pytest.mark.parametrize("is_inner", [False, True])
def test_an_eagle3_config_selects_the_feature_layers(is_inner: bool) -> None:
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 4, 5]}
    config = {**new().config, "eagle_aux_hidden_state_layer_ids": None}
    config |= {"eagle_config": ids} if is_inner else ids

    # In `eagle_config` they are the layers whose outputs are read.
    expected = (2, 5, 7) if is_inner else (1, 4, 5)
    assert Eagle3Head(replace(new(), config=config), target()).features == expected


def test_eagle_config_layer_ids_that_start_at_2_are_input_ids() -> None:
    ids = {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}
    config = {**new().config, "eagle_aux_hidden_state_layer_ids": None, "eagle_config": ids}

    assert Eagle3Head(replace(new(), config=config), target()).features == (2, 4, 5)


def test_an_unfilled_table_of_draftable_tokens_is_ignored() -> None:
    whole = new(target_ids=())
    unfilled = with_tensors(
        whole, d2t=torch.zeros(97, dtype=torch.long), t2d=torch.zeros(97, dtype=torch.bool)
    )

    torch.testing.assert_close(head_logits(unfilled), head_logits(whole))


REFUSED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "hidden size": ({"target_hidden_size": 64}, "target_hidden_size is 64, the target's is 32"),
    "vocabulary": ({"vocab_size": 99}, "vocab_size is 99, the target's is 97"),
    "layers": (
        {"eagle_aux_hidden_state_layer_ids": [2, 3, 7]},
        r"eagle_aux_hidden_state_layer_ids are \[2, 3, 7\].* from 0 to 5",
    ),
    "number of states": ({"num_aux_hidden_states": 4}, "num_aux_hidden_states is 4"),
    "another kind": ({"speculators_model_type": "peagle"}, "speculators_model_type is peagle"),
    "no states": ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state"),
    "a window of no size": ({"layer_types": ["sliding_attention"]}, "sliding_window is None"),
    "chunks": ({"layer_types": ["chunked_attention"]}, "layer_types is"),
    "all at once": ({"parallel_drafting": True}, "write `method: peagle`"),
    "dynamic positions": ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
    "no size": ({"intermediate_size": None}, "config.json has no intermediate_size"),
    "a word for a number": ({"intermediate_size": "many"}, "intermediate_size is 'many'"),
    "a norm it has no weights for": ({"norm_before_fc": True}, "missing: input_norm.weight"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_config_that_does_not_fit_is_refused_by_name(case: str) -> None:
    changes, message = REFUSED[case]

    with pytest.raises(ModelError, match=message):
        Eagle3Head(with_config(new(), **changes), target())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm__weight": None}, "missing: norm.weight"),
        ({"mask_hidden": torch.ones(1)}, "unknown: mask_hidden"),
        (
            {"d2t": torch.zeros(29, dtype=torch.long).index_fill(0, torch.tensor(3), -1)},
            "29 different tokens",
        ),
        ({"t2d": torch.zeros(97)}, "t2d must contain integers"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    changes: dict[str, Tensor | None], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        Eagle3Head(with_tensors(new(), **changes), target())
