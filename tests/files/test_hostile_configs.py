"""A head with any config is loaded, or refused by the field's name; it never crashes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.drafters.registry import build_drafter, drafter_class
from specbench.engines.builtin import BuiltinEngine
from specbench.engines.model_pool import ModelPool
from specbench.errors import ModelError, SpecbenchError
from specbench.files.model import ModelFiles, is_all_fp8, require_config
from specbench.files.model_spec import ModelSpec
from specbench.fit.compatibility import check_drafter
from specbench.forward.runner import StockRunner
from specbench.inputs.pairing import DrafterSpec, Target
from specbench.models.checkpoint import Checkpoint
from tests.cli.calls import specbench
from tests.decoding.lossless import parts_of
from tests.decoding.models import tiny_llama
from tests.tiny_models import VOCAB_SIZE, change_config, files_of, write_head, write_model

METHODS = (
    *("eagle", "eagle3", "peagle", "medusa"),
    *("dflash", "dflash2", "dspark", "mtp", "gemma4_mtp"),
)
IDS = "eagle_aux_hidden_state_layer_ids"
DFLASH2: dict[str, Any] = {
    **{"target_layer_ids": [1], "mask_token_id": 1, "conv_kernel_size": 2},
    **{"conv_group_size": 4, "selector_rank": 16, "selector_top_k": 8},
}
# Method, what its config says, the field that the refusal names.
HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    ("eagle", {"hidden_size": "32"}, "hidden_size"),
    ("eagle", {"hidden_size": -32}, "hidden_size"),
    ("eagle", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
    ("eagle", {"num_key_value_heads": 3}, "num_key_value_heads"),
    ("eagle", {"rms_norm_eps": [1]}, "rms_norm_eps"),
    ("eagle", {"bias": "no"}, "bias"),
    ("eagle", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("eagle", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ("eagle", {"rope_parameters": 3}, "rope_parameters"),
    ("eagle3", {"layer_types": ["sliding_attention"]}, "sliding_window"),
    ("eagle3", {"layer_types": ["sliding_attention"], "sliding_window": "8"}, "sliding_window"),
    ("eagle3", {"layer_types": ["chunked_attention"]}, "layer_types"),
    ("eagle3", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ("dflash", {"kv_lora_rank": 8}, "kv_lora_rank"),
    ("eagle3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ("eagle3", {"query_pre_attn_scalar": 7}, "query_pre_attn_scalar"),
    ("peagle", {"mask_token_id": None}, "mask_token_id"),
    ("peagle", {"mask_token_id": 10**6}, "mask_token_id"),
    ("eagle3", {"eagle_config": {"parallel_draft_step": 4}}, "parallel_draft_step"),
    ("eagle3", {IDS: ["a"]}, IDS),
    ("eagle3", {IDS: 3}, IDS),
    ("eagle3", {IDS: [0.0, 1.0, 1.0]}, IDS),
    ("eagle3", {"eagle_config": [1]}, "eagle_config"),
    ("eagle3", {"transformer_layer_config": [1]}, "transformer_layer_config"),
    ("eagle3", {"draft_vocab_size": "x"}, "draft_vocab_size"),
    ("eagle3", {"logit_scale": "x"}, "logit_scale"),
    ("eagle3", {"norm_before_fc": "yes"}, "norm_before_fc"),
    ("dflash", {"dflash_config": 3}, "dflash_config"),
    ("dflash", {"dflash_config": {"target_layer_ids": 1, "mask_token_id": 1}}, "target_layer"),
    ("dflash", {"dflash_config": {"target_layer_ids": ["a"], "mask_token_id": 1}}, "target_layer"),
    ("dflash", {"dflash_config": {"target_layer_ids": [-2], "mask_token_id": 1}}, "target_layer"),
    ("dflash", {"dflash_config": {"target_layer_ids": [1], "mask_token_id": -1}}, "mask_token_id"),
    ("dflash", {"block_size": 1}, "block_size"),
    ("dflash", {"output_multiplier": True}, "output_multiplier"),
    *(
        ("dflash2", {"dflash_config": {**DFLASH2, name: value}}, name)
        for name in DFLASH2
        for value in (["a"], None)
    ),
    *(
        ("dflash2", {"dflash_config": {**DFLASH2, name: 10**9}}, named)
        for name, named in (
            ("conv_kernel_size", "base_kernel"),
            ("conv_group_size", "conv_group_size"),
            ("selector_rank", "candidate_selector"),
            ("selector_top_k", "selector_top_k"),
        )
    ),
    ("dspark", {"markov_rank": "x"}, "markov_rank"),
    ("dspark", {"markov_rank": 10**9}, "markov_w1"),
    ("dspark", {"markov_head_type": "rnn"}, "markov_head_type"),
    ("dspark", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ("dspark", {"target_layer_ids": [99]}, "target_layer_ids"),
    ("mtp", {"num_nextn_predict_layers": "x"}, "num_nextn_predict_layers"),
    ("mtp", {"num_nextn_predict_layers": -1}, "num_nextn_predict_layers"),
    ("mtp", {"text_config": [1]}, "text_config"),
    ("mtp", {"vocab_size": "x"}, "vocab_size"),
    ("gemma4_mtp", {"backbone_hidden_size": "x"}, "backbone_hidden_size"),
    ("gemma4_mtp", {"backbone_hidden_size": -1}, "backbone_hidden_size"),
    ("gemma4_mtp", {"text_config": [1]}, "text_config"),
    ("gemma4_mtp", {"text_config": {"hidden_size": 10**9}}, "intermediate_size"),
    ("gemma4_mtp", {"use_ordered_embeddings": 3}, "use_ordered_embeddings"),
    ("gemma4_mtp", {"use_ordered_embeddings": True, "num_centroids": 3}, "num_centroids"),
    ("gemma4_mtp", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
]
VALUES: tuple[Any, ...] = (
    *("x", "", -1, 0, 1.5, 1e300, 10**30, True, False, [], [1], ["a"], [[]], {}, {"a": 1}),
    *({"rope_type": "x"}, {"rope_type": "yarn"}, {"rope_type": [1]}, {"type": 3, "factor": "x"}),
)
BESIDE = (
    *("eagle_config", "dflash_config", "rope_parameters", "rope_scaling", "text_config"),
    *("medusa_head_accuracies", "transformer_layer_config", "speculators_model_type"),
)
NOT_OF_THE_HEADS = ("use_cache", "transformers_version")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with a head of every method."""
    folder = tmp_path_factory.mktemp("heads")
    target = write_model(folder / "target", num_hidden_layers=3)
    for method in METHODS:
        write_head(folder / method, method, target)
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> BuiltinEngine:
    spec = ModelSpec(source="./target", folder=folder / "target")
    return BuiltinEngine(
        Target(name="target", model=spec, drafters=()), ModelPool(torch.device("cpu"))
    )


@pytest.fixture
def head(folder: Path) -> Any:
    """Set fields of a head's config, which is restored afterwards."""
    kept: dict[Path, str] = {}

    def change(method: str, fields: dict[str, Any]) -> ModelFiles:
        file = folder / method / "config.json"
        file.write_text(kept.setdefault(file, file.read_text()))
        return change_config(files_of(folder / method), **fields)

    yield change
    for file, content in kept.items():
        file.write_text(content)


@pytest.mark.parametrize("method", METHODS)
def test_an_unchanged_head_is_loaded_and_planned(engine, folder, method):
    spec = ModelSpec(source=f"./{method}", folder=folder / method)
    engine.add_drafter(DrafterSpec(name=method, method=method, model=spec))
    engine.remove_drafter(method)
    ran = specbench("pair", "./target", "--draft", f"./{method}", "--dry-run", cwd=folder)
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize(("method", "fields", "named"), HOSTILE)
def test_a_hostile_head_config_is_refused_with_its_field(
    engine, folder, head, method, fields, named
):
    files = head(method, fields)
    spec = ModelSpec(source=f"./{method}", folder=files.folder)
    drafter = DrafterSpec(name=method, method=method, model=spec)
    with pytest.raises(ModelError, match=named) as refused:
        engine.add_drafter(drafter)
    assert str(files.folder.name) in str(refused.value)
    planned = check_drafter(files_of(folder / "target"), drafter).of_level("refused")
    assert any(named in finding.reason for finding in planned)


@pytest.mark.sampled(one_in=6)
@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_head_config_with_any_wrong_value_is_read_or_refused(folder, head, method):
    target, model = files_of(folder / "target"), tiny_llama(vocab_size=VOCAB_SIZE)
    runner = StockRunner(model)
    whole: Checkpoint = drafter_class(method).new_checkpoint(model.config, 0)
    known = (*whole.config, *BESIDE)
    num_refused = 0
    for name in known:
        if name in NOT_OF_THE_HEADS:
            continue
        for value in VALUES:
            wrong = replace(whole, config={**whole.config, name: value})
            try:
                build_drafter(method, parts_of(runner, checkpoint=wrong), {})
            except SpecbenchError:
                num_refused += 1
    assert num_refused > len(VALUES) // 2
    for name in known:
        for value in VALUES[::3]:
            check_drafter(
                target,
                DrafterSpec(
                    name="head",
                    method=method,
                    model=ModelSpec(source="./h", folder=head(method, {name: value}).folder),
                ),
            )


FP8, INT4 = ({"weights": {"type": kind, "num_bits": n}} for kind, n in (("float", 8), ("int", 4)))


@pytest.mark.parametrize(
    ("groups", "is_fp8"),
    [
        ({"a": FP8}, True),
        ({"a": FP8, "b": FP8}, True),
        ({"a": FP8, "b": INT4}, False),
        *(
            (hostile, False)
            for hostile in (
                *(None, {}, [FP8], "all", 8, {"a": None}, {"a": [FP8]}, {"a": {"weights": 8}}),
                *(
                    {"a": {}},
                    {"a": FP8, "b": None},
                    {"a": {"weights": {"type": [], "num_bits": 8}}},
                ),
            )
        ),
    ],
)
def test_a_checkpoint_is_fp8_only_if_every_group_is(groups, is_fp8):
    stored = {"quant_method": "compressed-tensors", "config_groups": groups}
    assert is_all_fp8(stored) is is_fp8
    assert not is_all_fp8({**stored, "quant_method": "gptq"})


@pytest.mark.parametrize(
    "fields",
    [
        {"num_experts": 4, "moe_topk": [2, 2]},  # HunYuan: a number per layer
        {"num_experts": 1, "num_experts_per_tok": 2},  # Jamba without a mixture
        {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": None, "topk_group": None},
        {"n_routed_experts": 4, "n_group": 0, "topk_method": "greedy"},  # of DeepSeek-V2 Lite
        {"n_group": 0},  # of a dense model, whose layers do not read it
    ],
)
def test_routing_that_transformers_can_build_is_accepted(tmp_path: Path, fields: dict[str, Any]):
    require_config(change_config(write_model(tmp_path), **fields))
