"""A pair that cannot be loaded is refused by every command, with the same error as loading."""

import json
import re
import shutil
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Work
from specbench.engines.model_pool import ModelPool
from specbench.errors import ModelError, SpecbenchError
from specbench.files import model as model_files
from specbench.files.headers import INDEX
from specbench.files.model import open_model, require_config
from specbench.fit.compatibility import check_drafter, check_target
from specbench.inputs.config import load_pairings
from specbench.records import Request, Sampling
from tests.cli.calls import CommandResult, specbench
from tests.cli.conftest import SMALL
from tests.gguf_files import write_gguf
from tests.tiny_models import VOCAB_SIZE, change_config, change_json, write_head, write_model

FEW_LABELS = 1_000  # the most that the cases allow: transformers names each
DRAFTED = 100  # of the target's tokens, by the heads with their own vocabulary
RUN = ("-w", "prompts.jsonl", "-k", "2", *SMALL, "--num-prompts", "2")


class Case(NamedTuple):
    """A fault of one of the pair's folders, and the text that every command must print for it."""

    method: str
    change: Callable[[Path], object]
    words: tuple[str, ...]
    is_target: bool = False
    is_of_installation: bool = False  # engines in other environments have the missing packages


def configure(**fields: object) -> Callable[[Path], None]:
    """Set fields of config.json; None removes one."""

    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | fields
        kept = {name: value for name, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(kept))

    return change


def add_to_tokenizer(**fields: object) -> Callable[[Path], None]:
    """Set fields of tokenizer_config.json."""

    def change(folder: Path) -> None:
        file = folder / "tokenizer_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))

    return change


def write_null(name: str) -> Callable[[Path], None]:
    """Set a field of config.json to null."""

    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {name: None}))

    return change


def rewrite(**changes: Callable[[torch.Tensor], torch.Tensor] | torch.Tensor | None):
    """Replace tensors; None removes one. Dots of a name are double underscores."""

    def change(folder: Path) -> None:
        file = folder / "model.safetensors"
        tensors = load_file(file)
        for key, new in changes.items():
            name = key.replace("__", ".")
            if new is None:
                del tensors[name]
            else:
                tensors[name] = new(tensors[name]) if callable(new) else new
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        save_file(tensors, file, metadata={"format": "pt"})

    return change


def remove(pattern: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for file in folder.glob(pattern):
            file.unlink()

    return change


def rename(pattern: str, name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (file,) = folder.glob(pattern)
        file.rename(folder / name)

    return change


def cut_off(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-64])


def split(folder: Path) -> None:
    """An index that names a missing second shard."""
    shard = (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    names = dict.fromkeys(load_file(shard), shard.name) | {"lm_head.weight": "model-2.safetensors"}
    (folder / INDEX).write_text(json.dumps({"weight_map": names}))


def lose_index(total: int, kept: int | None = None) -> Callable[[Path], None]:
    """Shards of `total`, the first `kept` of them, without their index."""

    def change(folder: Path) -> None:
        file = folder / "model.safetensors"
        tensors = load_file(file)
        file.unlink()
        for i in range(total if kept is None else kept):
            part = {name: tensors[name] for name in sorted(tensors)[i::total]}
            save_file(part, folder / f"model-{i + 1:05}-of-{total:05}.safetensors")

    return change


def misname(folder: Path) -> None:
    """An index with a tensor that its only shard lacks."""
    shard = (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    names = dict.fromkeys((*load_file(shard), "absent.weight"), shard.name)
    (folder / INDEX).write_text(json.dumps({"weight_map": names}))


def pack(dtype: torch.dtype, *scales: str, parts: str = "_proj.weight", quant_config: bool = False):
    """Weights in a dtype of 8 bits, each next to these scales; `quant_config`: with the file in
    which NVIDIA's modelopt names the format (vLLM, docs/features/quantization/modelopt.md)."""

    def change(folder: Path) -> None:
        file = folder / "model.safetensors"
        tensors = load_file(file)
        for name in [name for name in tensors if parts in name]:
            tensors[name] = tensors[name].to(dtype)
            tensors |= {name.removesuffix("weight") + scale: torch.ones(1) for scale in scales}
        save_file(tensors, file, metadata={"format": "pt"})
        if quant_config:
            said = {
                "quant_algo": "FP8",
                "kv_cache_quant_algo": None,
                "exclude_modules": ["lm_head"],
            }
            produced = {"producer": {"name": "modelopt"}, "quantization": said}
            (folder / "hf_quant_config.json").write_text(json.dumps(produced))

    return change


F8 = torch.float8_e4m3fn


def pack_as_gptq(folder: Path) -> None:
    """The tensors of a GPTQ layer (AutoGPTQ), without the quantization_config that names them."""
    layer = "model.layers.0.mlp.up_proj."
    whole = torch.zeros(4, 8, dtype=torch.int32)
    parts = {"qweight": whole, "qzeros": whole, "scales": whole.half(), "g_idx": whole[0]}
    new = {(layer + name).replace(".", "__"): tensor for name, tensor in parts.items()}
    rewrite(**new, **{f"{layer}weight".replace(".", "__"): None})(folder)


def second_set(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    """Shards with an index, next to a model.safetensors in which this was changed."""

    def write(folder: Path) -> None:
        file = folder / "model.safetensors"
        tensors = load_file(file)
        names = {}
        for i in range(2):
            shard = f"model-{i + 1:05}-of-00002.safetensors"
            part = {name: tensors[name] for name in sorted(tensors)[i::2]}
            save_file(part, folder / shard, metadata={"format": "pt"})
            names |= dict.fromkeys(part, shard)
        (folder / INDEX).write_text(json.dumps({"weight_map": names}))
        change(tensors)
        save_file(tensors, file, metadata={"format": "pt"})

    return write


def overlay(name: str) -> Callable[[Path], None]:
    """A shard that replaces a tensor of another one by the index alone, as abliterated checkpoints
    are published (JustVugg/colibri issue 1479)."""

    def change(folder: Path) -> None:
        shard, other = folder / "model-1.safetensors", folder / "model-0-overlay.safetensors"
        tensors = load_file((folder / "model.safetensors").rename(shard))
        save_file({name: tensors[name] + 1}, other)
        names = dict.fromkeys(tensors, shard.name) | {name: other.name}
        (folder / INDEX).write_text(json.dumps({"weight_map": names}))

    return change


def leave_out_of_index(folder: Path) -> None:
    """A shard with a norm that its index does not name; transformers reads it."""
    shard = (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    tensors = load_file(shard)
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, shard.name)}))
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(16)
    save_file(tensors, shard, metadata={"format": "pt"})


def alter(name: str) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors.update({name: tensors[name].flip(0).clone()})


def add_adapter(name: str = "adapter_model.safetensors") -> Callable[[Path], None]:
    """A LoRA adapter as peft writes it."""

    def change(folder: Path) -> None:
        layer = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
        tensors = {f"{layer}A.weight": torch.ones(2, 32), f"{layer}B.weight": torch.ones(32, 2)}
        if name.endswith(".safetensors"):
            save_file(tensors, folder / name)
        else:
            torch.save(tensors, folder / name)
        said = {"peft_type": "LORA", "base_model_name_or_path": "owner/base", "r": 2}
        (folder / "adapter_config.json").write_text(json.dumps(said))

    return change


IDS = torch.arange(DRAFTED) * 2
MARKS = torch.zeros(VOCAB_SIZE, dtype=torch.bool).index_fill(0, IDS, True)
SMALL_HEAD = {"lm_head__weight": lambda weight: weight[IDS]}


def small_vocabulary(d2t, t2d=MARKS, size: int | None = DRAFTED) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tables = {name: t for name, t in (("d2t", d2t), ("t2d", t2d)) if t is not None}
        rewrite(**SMALL_HEAD, **tables)(folder)
        configure(draft_vocab_size=size)(folder)

    return change


OFFSETS = IDS - torch.arange(DRAFTED)
ZEROS = torch.zeros(DRAFTED, dtype=torch.long)
FACTOR = {"rope_type": "linear"}
LISTS = {"rope_type": "longrope", "short_factor": [1.0] * 3, "long_factor": [1.0] * 3}
# Tensors of a head's layers, and of a whole model.
LAYERS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "an activation that is none": (configure(hidden_act="nosuch"), ("hidden_act", "nosuch")),
    "an epsilon of nothing": (configure(rms_norm_eps=0), ("rms_norm_eps", "above 0")),
    "positions of no kind": (
        configure(rope_parameters={"rope_type": "nosuch"}),
        ("rope_parameters.rope_type", "nosuch", "yarn"),
    ),
    "positions without a factor": (configure(rope_scaling=FACTOR), ("rope_scaling.factor",)),
    "words for numbers": (configure(rope_theta="x"), ("rope_theta", "number")),
    "positions of period 0": (
        configure(rope_parameters={"rope_theta": 0}),
        ("rope_parameters.rope_theta", "above 0"),
    ),
    "factors of some positions": (
        configure(rope_parameters=LISTS),
        ("rope_parameters.short_factor", "numbers above 0"),
    ),
    "a cut file": (cut_off, ("ends before its tensors", "download")),
}
HEADS = {
    "no d2t": Case("eagle3", small_vocabulary(None), ("d2t", "100", "272")),
    "no draft_vocab_size": Case("eagle3", small_vocabulary(OFFSETS, size=None), ("100",)),
    "ids for offsets": Case("eagle3", small_vocabulary(IDS + 60), ("d2t", "offsets")),
    "d2t beyond the vocabulary": Case("eagle3", small_vocabulary(OFFSETS + 99), ("272",)),
    "fractions in d2t": Case("eagle3", small_vocabulary(OFFSETS.float()), ("d2t", "integers")),
    "d2t of another length": Case("eagle3", small_vocabulary(OFFSETS[1:]), ("(99,)", "(100,)")),
    "d2t against t2d": Case("eagle3", small_vocabulary(OFFSETS, ~MARKS), ("d2t", "t2d")),
    "zeros": Case("eagle3", small_vocabulary(ZEROS, ~MARKS), ("d2t", "t2d")),
    "t2d without d2t": Case("eagle3", rewrite(t2d=MARKS), ("t2d", "d2t")),
    "a missing layer": Case("eagle3", rewrite(fc__weight=None), ("missing", "fc.weight")),
    "another width": Case("eagle", configure(hidden_size=64), ("hidden_size", "64", "32")),
    "no width": Case("eagle", configure(hidden_size=None), ("hidden_size",)),
    "a narrow product": Case(
        "eagle", rewrite(fc__weight=lambda w: w[:, 1:]), ("fc.weight", "(32, 63)", "(32, 64)")
    ),
    "another vocabulary": Case("medusa", lambda _: None, ("272", "300")),
    "a token map beyond": Case(
        "medusa", rewrite(token_map=torch.arange(300)), ("id 272", "272 ids")
    ),
    "a token map of two dimensions": Case(
        "medusa", rewrite(token_map=torch.arange(4).view(2, 2)), ("token_map", "ids")
    ),
    "fractions in a token map": Case(
        "medusa", rewrite(token_map=torch.ones(300)), ("token_map", "integers")
    ),
    "packed weights": Case(
        "eagle3", rewrite(fc__weight=lambda w: w.to(torch.int8)), ("fc.weight", "I8", "plain")
    ),
    "weights in F8": Case("eagle3", pack(F8), ("q_proj.weight", "F8_E4M3", "plain")),
    "weights in F8 with scales": Case(
        "eagle", pack(F8, "weight_scale", "input_scale", quant_config=True), ("F8_E4M3", "scale")
    ),
    "two sets of a head": Case("eagle3", second_set(alter("fc.weight")), ("fc.weight", INDEX)),
    "an overlay of a head": Case("eagle3", overlay("fc.weight"), ("fc.weight", "overlay", INDEX)),
    "a tensor that a head's index leaves out": Case(
        "eagle3", leave_out_of_index, ("unknown", "q_norm.weight")
    ),
    "MTP layers in F8": Case("mtp", pack(F8), ("stored quantized", "F8_E4M3")),
    "MTP layers with scales": Case(  # as in GLM-4.5-FP8, of compressed-tensors
        "mtp", pack(F8, "weight_scale"), ("stored quantized", "F8_E4M3")
    ),
    "MTP layers with inverse scales": Case(  # as in DeepSeek-V3
        "mtp", pack(torch.bfloat16, "weight_scale_inv"), ("stored quantized", "weight_scale_inv")
    ),
    "MTP layers in integers": Case("mtp", pack(torch.int8), ("stored quantized", "I8")),
    "an MTP layer with another norm": Case(
        "mtp",
        rewrite(model__mtp_layers__0__self_attn__q_norm__weight=torch.ones(16)),
        ("unknown", "q_norm.weight"),
    ),
    "a file of another name": Case(
        "eagle3", rename("*.safetensors", "x.safetensors"), ("x.safetensors is here", "rename")
    ),
    "shards without an index": Case("eagle3", lose_index(2), ("all 2 shards are here", INDEX)),
    "mrope of no factor": Case(
        "eagle3", configure(rope_scaling={"type": "mrope", "factor": 0}), ("factor", "above 0")
    ),
    "a pickle of another name": Case(
        "eagle", rename("*.safetensors", "x.pth"), ("no weights", "pytorch_model.bin")
    ),
    "a narrow MTP layer": Case(
        "mtp",
        rewrite(model__mtp_layers__0__mlp__up_proj__weight=lambda w: w[1:]),
        ("mlp.up_proj.weight", "(47, 32)", "(48, 32)"),
    ),
    "an MTP layer without a product": Case(
        "mtp", rewrite(model__mtp_layers__0__self_attn__q_proj__weight=None), ("missing", "q_proj")
    ),
    **{
        f"{method}: {name}": Case(method, change, words)
        for name, (change, words) in LAYERS.items()
        for method in ("eagle3", "mtp")
    },
}
TAKE = "config.json that the weights came with"
MODELS = {
    "no hidden_size": Case("draft_model", configure(hidden_size=None), ("has no hidden_size",)),
    "a width below 0": Case("draft_model", configure(hidden_size=-5), ("hidden_size is -5",)),
    "no vocab_size": Case("draft_model", configure(vocab_size=None), ("has no vocab_size",)),
    "no layers": Case("draft_model", configure(num_hidden_layers=None), ("num_hidden_layers",)),
    "types of layers that are a number": Case(
        "draft_model", configure(layer_types=3), ("layer_types is 3", "list of strings")
    ),
    "types of layers that are numbers": Case(
        "draft_model", configure(layer_types=[3]), ("layer_types is [3]", "list of strings")
    ),
    "an architecture that is a number": Case(
        "draft_model", configure(architectures=0), ("architectures is 0", "list of strings")
    ),
    "positions that are a list": Case(
        "draft_model", configure(rope_parameters=[4]), ("rope_parameters is [4]", "mapping")
    ),
    "no group of experts": Case(
        "draft_model", configure(n_routed_experts=4, n_group=0), ("n_group is 0", "1 to 4")
    ),
    "groups that experts do not fill": Case(
        "draft_model", configure(n_routed_experts=4, n_group=3), ("n_group is 3", "divisor", "4")
    ),
    "more experts per token than experts": Case(
        "draft_model",
        configure(num_experts=4, num_experts_per_tok=5),
        ("num_experts_per_tok is 5", "1 to 4"),
    ),
    "F8 of modelopt": Case(
        "draft_model",
        pack(F8, "weight_scale", "input_scale", quant_config=True),
        ("F8_E4M3", "hf_quant_config.json", "plain weights"),
    ),
    "F8 of AutoFP8 without its config": Case(  # as its README lists the tensors
        "draft_model",
        pack(F8, "weight_scale", "input_scale"),
        ("F8_E4M3", "no quantization_config"),
    ),
    "F8 without scales": Case("draft_model", pack(F8, parts="mlp.down_proj"), ("F8_E4M3",)),
    "an F8 head": Case("draft_model", pack(F8, parts="lm_head"), ("lm_head.weight", "F8_E4M3")),
    "integers with scales": Case(
        "draft_model", pack(torch.int8, "weight_scale"), ("I8", "no quantization_config")
    ),
    "scales of plain weights": Case(
        "draft_model", pack(torch.float32, "weight_scale"), ("unknown", "q_proj.weight_scale")
    ),
    "GPTQ without its config": Case(
        "draft_model", pack_as_gptq, ("missing", "up_proj.weight", "unknown", "up_proj.qweight")
    ),
    "norms of Qwen 3": Case(
        "draft_model",
        rewrite(model__layers__0__self_attn__q_norm__weight=torch.ones(16)),
        ("unknown", "q_norm.weight", TAKE),
    ),
    "biases of Qwen 2": Case(
        "draft_model",
        rewrite(model__layers__0__self_attn__k_proj__bias=torch.ones(16)),
        ("unknown", "k_proj.bias", TAKE),
    ),
    "a bias of the head": Case(  # as in Phi
        "draft_model", rewrite(lm_head__bias=torch.ones(VOCAB_SIZE)), ("unknown", "lm_head.bias")
    ),
    "fewer layers": Case(
        "draft_model",
        rewrite(model__layers__0__mlp__up_proj__weight=None),
        ("missing", "up_proj.weight", TAKE),
    ),
    "no embedding": Case(
        "draft_model", rewrite(model__embed_tokens__weight=None), ("missing", "embed_tokens.weight")
    ),
    "two sets": Case(
        "draft_model",
        second_set(alter("lm_head.weight")),
        ("lm_head.weight", "model.safetensors", INDEX),
    ),
    "two sets, one without a tensor": Case(
        "draft_model",
        second_set(lambda tensors: tensors.pop("model.layers.0.mlp.up_proj.weight")),
        ("up_proj.weight", INDEX),
    ),
    "two sets of other dtypes": Case(  # such as the float32 file next to half-precision shards
        "draft_model",
        second_set(lambda tensors: tensors.update({n: t.half() for n, t in tensors.items()})),
        ("differs", INDEX),
    ),
    "two sets of another format": Case(  # as in Blaizzy/mlx-vlm issue 1329
        "draft_model",
        second_set(lambda t: t.update({"lm_head.weight": t["lm_head.weight"].to(torch.uint8)})),
        ("lm_head.weight", INDEX),
    ),
    "an overlay": Case(
        "draft_model",
        overlay("model.embed_tokens.weight"),
        ("embed_tokens.weight", "model-0-overlay.safetensors", INDEX),
    ),
    "a tensor that the index leaves out": Case(
        "draft_model", leave_out_of_index, ("unknown", "q_norm.weight")
    ),
    "an adapter": Case("draft_model", add_adapter(), ("adapter_model.safetensors", "merge")),
    "an adapter in a pickle": Case(
        "draft_model", add_adapter("adapter_model.bin"), ("LoRA", "peft")
    ),
    "another width": Case("draft_model", configure(hidden_size=36), ("36", TAKE)),
    "fewer rows": Case("draft_model", configure(vocab_size=300), ("(272, 32)", "(300, 32)", TAKE)),
    "another MLP": Case(
        "draft_model", configure(intermediate_size=65), ("(48, 32)", "(65, 32)", TAKE)
    ),
    "more layers": Case(
        "draft_model", configure(num_hidden_layers=9), ("missing", "layers.", TAKE)
    ),
    "a missing shard": Case("draft_model", split, ("model-2.safetensors", "download")),
    "a tensor that no shard has": Case("draft_model", misname, ("absent.weight",)),
    "no weights: no index": Case("draft_model", lose_index(2), ("all 2 shards are here", INDEX)),
    "no weights: one shard": Case("draft_model", lose_index(1), ("all 1 shards are here", INDEX)),
    "no weights: lost shards": Case("draft_model", lose_index(3, 1), ("shard 2 of 3", "download")),
    "no weights: a variant": Case(
        "draft_model", rename("*.safetensors", "model.fp16.safetensors"), ("fp16", "rename it")
    ),
    "no weights: only an adapter": Case(
        "draft_model", rename("*.safetensors", "adapter_model.safetensors"), ("LoRA", "merge")
    ),
    "weights of MLX": Case(  # as mlx-lm writes it: both keys
        "draft_model",
        configure(
            quantization={"group_size": 64, "bits": 4},
            quantization_config={"group_size": 64, "bits": 4},
        ),
        ("packed by MLX", "came from"),
        is_of_installation=True,
    ),
    "weights of older MLX": Case(
        "draft_model",
        configure(quantization={"group_size": 32, "bits": 8, "mode": "affine"}),
        ("packed by MLX", "came from"),
        is_of_installation=True,
    ),
    "no weights": Case("draft_model", remove("*.safetensors"), ("model.safetensors",)),
    "a special token without text": Case(
        "draft_model", add_to_tokenizer(eos_token=2), ("eos_token is 2", "a string")
    ),
    "a cut tokenizer": Case(
        "draft_model",
        lambda folder: (folder / "tokenizer.json").write_text("{"),
        ("line 1 column 1",),
    ),
    "no tokenizer": Case("draft_model", remove("tokenizer*"), ("tokenizer.json is missing",)),
    "tied in config alone": Case(
        "draft_model",
        configure(tie_word_embeddings=True),
        ("tie_word_embeddings is true", "lm_head.weight"),
    ),
    "untied without a head": Case(
        "draft_model",
        rewrite(lm_head__weight=None),
        ("missing: lm_head.weight", "tie_word_embeddings"),
    ),
    "neither tied nor with a head": Case(
        "draft_model",
        lambda folder: [
            change(folder)
            for change in (configure(tie_word_embeddings=None), rewrite(lm_head__weight=None))
        ],
        ("missing: lm_head.weight", "tie_word_embeddings"),
    ),
    "biases without tensors": Case(
        "draft_model", configure(attention_bias=True), ("missing", "q_proj.bias", TAKE)
    ),
    "kinds of too many layers": Case(
        "draft_model",
        configure(layer_types=["full_attention"] * 9),
        ("layer_types", "(9)", "num_hidden_layers"),
    ),
    "positions in words": Case(
        "draft_model", configure(rope_parameters="yarn"), ("rope_parameters is", "a mapping")
    ),
    "kinds of no layers": Case("draft_model", configure(layer_types=[]), ("layer_types",)),
    "no key heads": Case("draft_model", configure(num_key_value_heads=0), ("is 0", "1 or more")),
    "null": Case("draft_model", write_null("hidden_act"), ("hidden_act", "None")),
    "code that is null": Case("draft_model", write_null("auto_map"), ("auto_map is null",)),
    "too many labels": Case("draft_model", configure(num_labels=FEW_LABELS + 1), ("num_labels",)),
    "a dtype that torch lacks": Case(
        "draft_model", configure(dtype="float7"), ("dtype is 'float7'", "bfloat16")
    ),
    "an end of text in words": Case("draft_model", configure(eos_token_id="x"), ("eos_token_id",)),
    "padding beyond the vocabulary": Case(
        "draft_model", configure(pad_token_id=999), ("pad_token_id", "999", "271")
    ),
    "a class that writes no text": Case(
        "draft_model", configure(architectures=["BertModel"]), ("BertModel", "no text")
    ),
    "an assistant that reads its target's states": Case(
        "draft_model", configure(backbone_hidden_size=64), ("backbone_hidden_size", "reads")
    ),
    "an assistant in a nested config without a cache of its own": Case(
        "draft_model",
        configure(
            text_config={"vocab_size": 272, "num_hidden_layers": 2, "num_kv_shared_layers": 2}
        ),
        ("num_kv_shared_layers", "reads"),
    ),
    "code of its own": Case(
        "draft_model",
        configure(model_type="own", auto_map={"AutoConfig": "code.Config"}),
        ("auto_map", "trust_remote_code: true"),
        is_of_installation=True,
    ),
    "an unknown model type": Case(
        "draft_model",
        configure(model_type="nosuch"),
        ("does not know the model_type",),
        is_of_installation=True,
    ),
    **{name: Case("draft_model", change, words) for name, (change, words) in LAYERS.items()},
    "a format without its reader": Case(
        "draft_model",
        configure(quantization_config={"quant_method": "gptq", "bits": 4}),
        ("gptq", "pip install gptqmodel"),
        is_of_installation=True,
    ),
    "an unknown format": Case(
        "draft_model",
        configure(quantization_config={"quant_method": "nonsense"}),
        ("nonsense",),
        is_of_installation=True,
    ),
    "a format without a name": Case(
        "draft_model",
        configure(quantization_config={"bits": 4}),
        ("unnamed",),
        is_of_installation=True,
    ),
}
CASES = (
    HEADS
    | MODELS
    | {
        f"target: {name}": case._replace(method="ngram", is_target=True)
        for name, case in MODELS.items()
    }
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, a draft model of its family, and heads made for them."""
    root = tmp_path_factory.mktemp("models")
    untied = {"tie_word_embeddings": False}
    target = write_model(root / "target", **untied)
    write_model(root / "draft_model", num_hidden_layers=1, **untied)
    for method in ("eagle", "eagle3", "mtp"):
        write_head(root / method, method, target)
    write_head(root / "medusa", "medusa", write_model(root / "wide", vocab_size=300))
    return root


def write_case(models: Path, folder: Path, case: Case) -> Path:
    """pairings.yaml with `case/x`, its folders with the fault, and some prompts."""
    shutil.copytree(models / "target", folder / "target")
    if case.method != "ngram":
        shutil.copytree(models / case.method, folder / "x")
    case.change(folder / ("target" if case.is_target else "x"))
    model = "" if case.method == "ngram" else ", model: ./x"
    (folder / "pairings.yaml").write_text(
        "targets:\n  case:\n    model: ./target\n    drafters:\n"
        f"      x: {{method: {case.method}{model}}}\n"
    )
    lines = (json.dumps({"id": f"p{i}", "turns": [f"prompt number {i}"]}) for i in range(6))
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    return folder


def plain(text: str) -> str:
    """The text without whitespace: lines may break anywhere."""
    return re.sub(r"\s+", "", text)


def doors(folder: Path) -> dict[str, CommandResult]:
    """The verdict of each command on the pair `case/x`."""
    pair = ("pair", "case", "--draft", "x", "--dry-run")
    return {
        "pair": specbench(*pair, cwd=folder),
        "doctor": specbench("doctor", "case/x", cwd=folder),
        "dry run": specbench("run", "case/x", *RUN, "--dry-run", cwd=folder),
        "export": specbench("export case/x --engine vllm -k 2", cwd=folder),
        "run": specbench("run", "case/x", *RUN, cwd=folder),
    }


@pytest.fixture(scope="module")
def sound_engine(models: Path, tmp_path_factory: pytest.TempPathFactory) -> BuiltinEngine:
    """An engine with the unchanged target."""
    folder = tmp_path_factory.mktemp("sound")
    return engine_of(write_case(models, folder, Case("draft_model", lambda _: None, ())))


def engine_of(folder: Path) -> BuiltinEngine:
    (target,) = load_pairings(folder / "pairings.yaml").targets
    return BuiltinEngine(target, ModelPool(torch.device("cpu")))


def refusal_of_loading(folder: Path, engine: BuiltinEngine | None = None) -> str:
    """The engine's own error, without a command's checks; `engine`: one with the same target."""
    (pairing,) = load_pairings(folder / "pairings.yaml").all
    with pytest.raises(SpecbenchError) as refused:
        (engine or engine_of(folder)).add_drafter(pairing.drafter)
    return str(refused.value)


@pytest.fixture
def few_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit whose labels transformers names at once, instead of in many seconds."""
    monkeypatch.setitem(model_files._MOST, "num_labels", FEW_LABELS)


def test_more_labels_than_any_model_has_are_refused(tmp_path: Path):
    model = change_config(write_model(tmp_path), num_labels=2**20)
    require_config(model)
    with pytest.raises(ModelError, match="num_labels"):
        require_config(change_config(model, num_labels=2**20 + 1))


@pytest.mark.usefixtures("few_labels")
@pytest.mark.sampled(one_in=6)  # loading and planning refuse every case below
@pytest.mark.parametrize("name", CASES)
def test_every_command_refuses_what_loading_refuses(
    models: Path, sound_engine: BuiltinEngine, tmp_path: Path, name: str
):
    case = CASES[name]
    folder = write_case(models, tmp_path, case)
    for door, ran in doors(folder).items():
        if door == "pair" and "no weights" in name:
            for word in case.words:  # a config is enough to plan
                assert plain(word) in plain(ran.out)
            continue
        if door == "export" and case.is_of_installation:
            assert ran.code == 0, ran
            continue
        assert ran.code == (1 if door == "doctor" else 2), (door, ran)
        for word in case.words:
            assert plain(word) in plain(ran.out + ran.err), (door, ran)
    assert not list(tmp_path.glob("reports/*/run.json"))  # nothing was started
    message = refusal_of_loading(folder, None if case.is_target else sound_engine)
    for word in case.words:
        assert word in message


@pytest.mark.usefixtures("few_labels")
@pytest.mark.parametrize("name", CASES)
def test_planning_and_loading_give_the_same_reason(
    models: Path, sound_engine: BuiltinEngine, tmp_path: Path, name: str
):
    case = CASES[name]
    folder = write_case(models, tmp_path, case)
    with chdir(folder):
        (pairing,) = load_pairings(Path("pairings.yaml")).all
        target = open_model(pairing.target.model)
        checked = (
            check_target(target)
            if case.is_target
            else check_drafter(target, pairing.drafter).findings
        )
        reasons = [finding.reason for finding in checked if finding.keeps_from_loading]
    assert len(reasons) == 1
    message = refusal_of_loading(folder, None if case.is_target else sound_engine).replace(
        f"{folder}/", ""
    )
    assert reasons[0].replace("./", "").replace(f"{folder}/", "") in message


def test_more_threads_than_cores_are_refused_with_the_number_of_cores(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = write_case(models, tmp_path, Case("draft_model", lambda _: None, ()))
    monkeypatch.setattr("specbench.probes.host.num_cores", lambda: 3)
    options = (*RUN, "--threads", "4")
    for command in ("run", "sweep-k"):
        ran = specbench(command, "case/x", *options, cwd=folder)
        assert ran.code == 2, ran
        assert "1 to 3" in ran.err
    ran = specbench("run", "case/x", *options, "--dry-run", cwd=folder)
    assert (ran.code, "1 to 3" in ran.err) == (0, True)
    all_cores = specbench("run", "case/x", *RUN, "--threads", "3", "--dry-run", cwd=folder)
    assert (all_cores.code, "1 to 3" in all_cores.err) == (0, False)
    assert not (folder / "reports").exists()


def test_prompts_beyond_the_context_are_named_by_every_dry_run(models: Path, tmp_path: Path):
    folder = write_case(models, tmp_path, Case("draft_model", lambda _: None, ()))
    with (folder / "prompts.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"id": "long", "turns": ["word " * 4000]}))
    options = ("-w", "prompts.jsonl", "--max-new-tokens", "12", "--dry-run")
    run = specbench("run", "case/x", *options, cwd=folder)
    pair = specbench("pair", "case", *options, cwd=folder)
    stored = json.loads(specbench("pair", "case", *options, "--json", cwd=folder).out)
    (note,) = (note for note in stored["machine"]["notes"] if "left out" in note)
    assert "1 of 7 prompts" in note
    assert all(plain(note) in plain(ran.out) for ran in (run, pair))


def test_a_format_for_a_server_needs_no_local_reader(models: Path, tmp_path: Path):
    folder = write_case(models, tmp_path, CASES["target: a format without its reader"])
    commands = {
        ("run", "case/x", *RUN, "--dry-run"): 2,
        ("run", "case/x", "-w", "prompts.jsonl", "-k", "2", "--dry-run", "--engine", "vllm"): 0,
        ("run", "case/x", *RUN, "--dry-run", "--engine", "builtin,vllm"): 0,
        ("pair", "case", "--dry-run"): 2,
        ("pair", "case", "--dry-run", "--gpu", "H100"): 0,
    }
    ran = {command: specbench(*command, cwd=folder) for command in commands}
    assert {command: result.code for command, result in ran.items()} == commands
    mixed = ("run", "case/x", *RUN, "--dry-run", "--engine", "builtin,vllm")
    assert "warning: case cannot" in ran[mixed].err


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("quantization: int8", ("quantization int8", "pip install torchao")),
        ("device_map: auto", ("device_map auto", "pip install accelerate")),
    ],
)
def test_a_missing_optional_package_is_reported_by_every_command(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, words: tuple[str]
):
    folder = write_case(models, tmp_path, Case("draft_model", lambda _: None, ()))
    file = folder / "pairings.yaml"
    file.write_text(file.read_text().replace("model: ./x", f"model: ./x, {entry}"))
    monkeypatch.setattr("specbench.files.model.find_spec", lambda _: None)
    ran = doors(folder)
    assert [result.code for result in ran.values()] == [2, 1, 2, 0, 2]
    texts = [plain(ran[door].out + ran[door].err) for door in ("pair", "doctor", "dry run", "run")]
    for word in words:
        assert all(plain(word) in text for text in (*texts, plain(refusal_of_loading(folder))))


def fewer_rows(folder: Path) -> None:
    rewrite(lm_head__weight=lambda w: w[:77], model__embed_tokens__weight=lambda w: w[:77])(folder)
    configure(vocab_size=77)(folder)


WARNED = {
    "added tokens": (
        "target",
        lambda folder: change_json(
            folder / "tokenizer.json",
            lambda content: content["added_tokens"].extend(
                {**content["added_tokens"][0], "id": 259 + i, "content": text, "special": False}
                for i, text in enumerate(("<think>", "</think>"))
            ),
        ),
        ("<think>", "</think>"),
    ),
    "a short context": ("x", configure(max_position_embeddings=16), ("trained on", "16")),
    "a head's context": ("x", configure(max_position_embeddings=16), ("trained on", "16")),
    "a short table": ("x", fewer_rows, ("77 embeddings", "(30%)")),
    "a repetition penalty": (
        "target",
        lambda folder: change_json(
            folder / "generation_config.json", lambda c: c.update(repetition_penalty=1.05)
        ),
        ("repetition_penalty 1.05",),
    ),
    "no repeated n-grams": (
        "target",
        lambda folder: change_json(
            folder / "generation_config.json", lambda c: c.update(no_repeat_ngram_size=3)
        ),
        ("no_repeat_ngram_size 3",),
    ),
    "an empty d2t": ("x", small_vocabulary(ZEROS, None), ("d2t is all 0",)),
    "a head's adapter": ("x", add_adapter(), ("LoRA adapter next to a head",)),
}


OF_HEADS = ("a head's context", "an empty d2t", "a head's adapter")


@pytest.mark.parametrize("name", WARNED)
def test_a_pair_that_loads_with_a_loss_gives_a_warning(models: Path, tmp_path: Path, name: str):
    changed, change, words = WARNED[name]
    method = "eagle3" if name in OF_HEADS else "draft_model"
    folder = write_case(models, tmp_path, Case(method, lambda _: None, ()))
    change(folder / changed)
    ran = doors(folder)
    assert [result.code for result in ran.values()][:-1] == [0, 0, 0, 0], ran
    for door in ("pair", "dry run", "run"):
        for word in words:
            assert word in ran[door].out + ran[door].err, (door, ran[door])
    assert "None" not in ran["pair"].out
    assert ran["run"].err.count(words[0]) == 1
    (report,) = (folder / "reports").glob("*/report.md")
    assert all(plain(word.strip("</>")) in plain(report.read_text()) for word in words)


def test_tokens_that_the_draft_does_not_know_change_no_text(models: Path, tmp_path: Path):
    """Two tokens that the target often emits: greedy texts with drafts equal those without."""
    changed, change, _ = WARNED["added tokens"]
    folder = write_case(models, tmp_path, Case("draft_model", lambda _: None, ()))
    change(folder / changed)
    file = folder / "target" / "model.safetensors"
    tensors = load_file(file)
    tensors["lm_head.weight"][259:261] = 3 * tensors["lm_head.weight"][100:102]
    save_file(tensors, file, metadata={"format": "pt"})
    engine, (pairing,) = engine_of(folder), load_pairings(folder / "pairings.yaml").all
    drafter = pairing.drafter
    engine.add_drafter(drafter)
    token_ids = set()
    for seed in range(8):
        request = Request(
            prompt_ids=tuple(range(3 + seed, 23 + seed)),
            max_new_tokens=24,
            sampling=Sampling(),
            seed=0,
        )
        plain_ids = engine.generate(request, engine.baseline).output_ids
        work = Work(drafter=drafter.name, method=drafter.method, k=3)
        assert engine.generate(request, work).output_ids == plain_ids
        token_ids |= set(plain_ids)
    assert token_ids & {259, 260}


@pytest.mark.parametrize("role", ["target", "draft", "head"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_nan_or_infinite_weights_are_refused_with_the_role_of_their_model(
    models: Path, tmp_path: Path, role: str, value: float
):
    method = "eagle3" if role == "head" else "draft_model"
    folder = write_case(models, tmp_path, Case(method, lambda _: None, ()))
    file = folder / ("target" if role == "target" else "x") / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("mlp.up_proj.weight"))
    tensors[name][1, 2] = value
    save_file(tensors, file, metadata={"format": "pt"})
    message = refusal_of_loading(folder)
    assert f"the {role} " in message
    assert "NaN or infinities" in message
    assert name in message
    ran = specbench("run", "case/x", *RUN, cwd=folder)
    assert ran.code == 2
    assert ran.err.count(name) == 1
    assert not list((folder / "reports").glob("*/run.json"))


@pytest.mark.parametrize("source", ["m.gguf", "ggufs", "owner/Some-7B-GGUF"])
def test_gguf_models_are_refused_with_a_hint_by_every_command(
    models: Path, tmp_path: Path, source: str
):
    folder = write_case(models, tmp_path, Case("draft_model", lambda _: None, ()))
    (folder / "ggufs").mkdir()
    for name in ("m.gguf", "ggufs/m-00001-of-00002.gguf"):
        write_gguf(folder / name)
    word = source if "/" in source else f"./{source}"
    commands = [
        ("pair", "./target", "--draft", word, "--dry-run"),
        ("run", "--target", word, "--draft", "ngram", *RUN),
        ("run", "--target", "./target", "--draft", word, *RUN, "--dry-run"),
        ("verify", "--target", "./target", "--draft", word, *RUN),
        ("inspect", "--target", word, "--draft", "ngram", "--prompt", "Hi"),
    ]
    change = (folder / "pairings.yaml").read_text().replace("./x", word)
    (folder / "pairings.yaml").write_text(change)
    commands += [("run", "case/x", *RUN), ("export", "case/x", "--engine", "vllm", "-k", "2")]
    for command in commands:
        ran = specbench(*command, cwd=folder)
        assert ran.code == 2, (command, ran)
        for expected in ("GGUF", "config.json", "--engine llama_cpp"):
            assert plain(expected) in plain(ran.out + ran.err), (command, ran)
