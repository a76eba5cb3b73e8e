"""The files of MTP layers: what is taken from them, and what is refused.

Shape suffixes: F hidden size, V vocabulary.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, modeling_utils
from transformers.integrations import hub_kernels

from specbench.drafters.mtp import Mtp, MtpHead, _is_same
from specbench.errors import ModelError
from specbench.forward.attention import stock
from specbench.forward.runner import StockRunner
from tests.decoding.lossless import parts_of
from tests.decoding.models import build
from tests.drafters.changed_heads import with_config, with_tensors
from tests.drafters.mtp_families import checkpoint_for, dense_target, family_of


def test_an_lm_head_equal_to_the_targets_is_dropped() -> None:
    config, model = family_of("glm4_moe").config, dense_target()
    own = checkpoint_for("glm4_moe", config)
    copied_VF = own.tensors["model.layers.2.shared_head.head.weight"].clone()
    copy = replace(own, tensors={**own.tensors, "lm_head.weight": copied_VF})
    heads = [MtpHead(checkpoint, StockRunner(model)) for checkpoint in (own, copy)]

    sizes = [sum(weight.numel() for weight in head.weights) for head in heads]

    assert sizes[0] - sizes[1] == copied_VF.numel()


def test_other_tensors_of_the_targets_files_are_not_read() -> None:
    """Nothing but names is asked of them: a target's files may be larger than the memory."""
    checkpoint = checkpoint_for("mimo", family_of("mimo").config)

    class Files(dict[str, Tensor]):
        def __getitem__(self, name: str) -> Tensor:
            assert "mtp" in name, f"{name} was read"
            return super().__getitem__(name)

    others = {
        "model.layers.0.mlp.up_proj.weight": torch.zeros(1),
        "model.norm.weight": torch.ones(1),
    }
    MtpHead(replace(checkpoint, tensors=Files({**checkpoint.tensors, **others})), target_of("mimo"))


def target_of(name: str) -> StockRunner:
    return StockRunner(build(family_of(name).config))


AT = "model.mtp_layers.0."
WRONG: dict[str, tuple[dict[str, Any], dict[str, Tensor | None], str]] = {
    "another width": ({"hidden_size": 64}, {}, "hidden_size is 64, the target's is 32"),
    "another depth": ({"num_hidden_layers": 9}, {}, "num_hidden_layers is 9, the target's is 2"),
    "another vocabulary": ({"vocab_size": 60}, {}, "vocab_size is 60, the target's is 61"),
    "another family": (
        {"model_type": "llama"},
        {},
        "model type llama .* deepseek_v3, glm4_moe",
    ),
    "no layers by its config": ({"num_nextn_predict_layers": 0}, {}, "has no MTP layers"),
    "fewer layers": (
        {"num_nextn_predict_layers": 2},
        {},
        r"missing: model\.mtp_layers\.1\.final_layernorm",
    ),
    "a tensor less": (
        {},
        {f"{AT}input_proj.weight": None},
        r"missing: .*\.0\.input_proj\.weight",
    ),
    "a tensor more": (
        {},
        {f"{AT}gate.weight": torch.ones(1)},
        r"not known: model\.mtp_layers\.0\.gate\.weight",
    ),
    "another shape": (
        {},
        {f"{AT}input_proj.weight": torch.ones(32, 32)},
        r"0\.input_proj\.weight is \(32, 32\)",
    ),
    "quantized": ({}, {f"{AT}mlp.up_proj.weight_scale_inv": torch.ones(1)}, "stored quantized"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_head_that_does_not_fit_is_refused_with_what_differs(fault: str) -> None:
    fields, tensors, message = WRONG[fault]
    right = checkpoint_for("mimo", family_of("mimo").config)
    wrong = with_config(with_tensors(right, **tensors), **fields)

    with pytest.raises(ModelError, match=message):
        Mtp(parts_of(target_of("mimo"), checkpoint=wrong))


def test_files_that_lost_their_mtp_layers_are_refused_with_what_to_do() -> None:
    right = checkpoint_for("glm4_moe", family_of("glm4_moe").config)
    saved = replace(right, tensors={"model.norm.weight": torch.ones(32)})

    with pytest.raises(ModelError, match=r"model\.layers\.2"):
        Mtp(parts_of(target_of("glm4_moe"), checkpoint=saved))


IMPLEMENTATIONS = (
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_internal",
    "experts_implementation",
)


@pytest.mark.parametrize("name", ["mimo", "deepseek_v3", "glm4_moe"])
def test_a_kernel_named_in_a_config_is_not_downloaded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers would download and import the repository that a config names."""
    asked: list[object] = []

    def fetch(*arguments: object, **options: object) -> None:
        asked.append((arguments, options))
        raise AssertionError(f"a kernel was asked for: {arguments}")

    for module in (hub_kernels, modeling_utils):
        for loader in ("load_and_register_attn_kernel", "lazy_load_kernel", "get_kernel"):
            monkeypatch.setattr(module, loader, fetch, raising=False)
    target, own = target_of(name), checkpoint_for(name, family_of(name).config)
    before = MtpHead(own, target)
    kernel = f"someone/{name}"  # transformers 5.17 asks for each once in a process
    config = {**dict.fromkeys(IMPLEMENTATIONS, kernel), "auto_map": {"AutoModel": "own.Own"}}
    named = MtpHead(with_config(own, **config), target)

    assert not asked
    block: Any = named.layers.layers[0]
    assert block.self_attn.config._attn_implementation == stock.NAME
    assert [w.shape for w in named.weights] == [w.shape for w in before.weights]
    evil = AutoConfig.for_model("qwen2", attn_implementation=kernel)
    with torch.device("meta"), pytest.raises(AssertionError, match="a kernel was asked for"):
        AutoModel.from_config(evil)  # what the files' own config would have led to


@pytest.mark.parametrize("is_stored", [True, False], ids=["in its files", "in the model alone"])
def test_an_lm_head_shared_with_the_target_is_held_once(is_stored: bool) -> None:
    """If a target's files name its head otherwise, or tie it, only the model has it."""
    config = family_of("glm4_moe").config
    model = build(config)
    made = checkpoint_for("glm4_moe", config)
    name = "model.layers.2.shared_head.head.weight"
    head_VF = model.get_output_embeddings().weight.data.clone()
    tensors = {**made.tensors, name: head_VF}
    if is_stored:
        tensors["lm_head.weight"] = head_VF.clone()
    else:
        tensors.pop("lm_head.weight", None)
    same = MtpHead(replace(made, tensors=tensors), StockRunner(model))
    other = MtpHead(replace(made, tensors={**tensors, name: head_VF + 1}), StockRunner(model))
    sizes = [sum(weight.numel() for weight in head.weights) for head in (other, same)]
    assert sizes[0] - sizes[1] == head_VF.numel()


def test_only_a_plain_tensor_of_the_same_numbers_and_dtype_is_a_copy() -> None:
    class Packed(torch.Tensor):
        pass

    one = torch.ones(2, 3)
    assert _is_same(one, one.clone())
    assert _is_same(one, torch.nn.Parameter(one.clone()))
    others = (None, one + 1, one[:1], one.bfloat16(), one.clone().as_subclass(Packed))
    assert not any(_is_same(one, other) for other in others)
