"""How each family of models names its MTP layers, and how such a layer reads its inputs.

Sources: vLLM's deepseek_mtp, glm4_moe_mtp, mimo_mtp and qwen3_next_mtp; transformers' MtpLayer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specbench.errors import ModelError
from specbench.files.config import (
    DENSE,
    LAYER_NEEDS,
    SIZES,
    Fields,
    layer_shapes,
    require_layers,
    require_routing,
)
from specbench.files.head_files import (
    SPECULATORS,
    AnyFiles,
    Fit,
    HeadFiles,
    HeadTarget,
    Shaped,
    packed,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One family's layout; `files` maps prefixes of tensor names in its files to ours.

    {i} numbers MTP layers, with shared modules in layer 0; {n} continues after the target's layers.
    """

    decoder: str  # transformers' model type of the decoder layer inside an MTP layer
    files: Mapping[str, str]
    fields: Mapping[str, Any] = field(default_factory=dict)  # of a decoder layer's config
    is_state_first: bool = False  # it joins [state, token] instead of [token, state]
    recycles_normed: bool = False  # the final norm is applied to the state for the next step
    num_axes: int = 1  # axes of a token's rotary position; in text all have the same value

    @property
    def shared(self) -> frozenset[str]:
        """Modules that all MTP layers share."""
        ours = (name.split(".") for name in self.files.values())
        return frozenset(module for number, module, _ in ours if number == "0")


_AFTER_THE_LAYERS = {  # DeepSeek's
    "model.layers.{n}.embed_tokens.": "{i}.embedding.",
    "model.layers.{n}.enorm.": "{i}.token_norm.",
    "model.layers.{n}.hnorm.": "{i}.state_norm.",
    "model.layers.{n}.eh_proj.": "{i}.join.",
    "model.layers.{n}.shared_head.norm.": "{i}.out_norm.",
    "model.layers.{n}.shared_head.head.": "{i}.head.",
    "model.layers.{n}.": "{i}.block.",
}
_MIMO = {
    "model.mtp_layers.{i}.token_layernorm.": "{i}.token_norm.",
    "model.mtp_layers.{i}.hidden_layernorm.": "{i}.state_norm.",
    "model.mtp_layers.{i}.input_proj.": "{i}.join.",
    "model.mtp_layers.{i}.final_layernorm.": "{i}.out_norm.",
    "model.mtp_layers.{i}.": "{i}.block.",
}
_SPECULATORS = {name.removeprefix("model."): ours for name, ours in _MIMO.items()}
_QWEN = {
    "mtp.pre_fc_norm_embedding.": "0.token_norm.",
    "mtp.pre_fc_norm_hidden.": "0.state_norm.",
    "mtp.fc.": "0.join.",
    "mtp.norm.": "0.out_norm.",
    "mtp.layers.{i}.": "{i}.block.",
}
_ALL_EXPERTS = {"first_k_dense_replace": 0}
_EVERY_EXPERT = {"mlp_only_layers": [], "decoder_sparse_step": 1}

# By the model type in the target's config.
FAMILIES: Mapping[str, Family] = {
    "deepseek_v3": Family(decoder="deepseek_v3", files=_AFTER_THE_LAYERS, fields=_ALL_EXPERTS),
    "glm4_moe": Family(decoder="glm4_moe", files=_AFTER_THE_LAYERS, fields=_ALL_EXPERTS),
    "mimo": Family(decoder="qwen2", files=_MIMO, is_state_first=True, recycles_normed=True),
    "qwen3_next": Family(
        decoder="qwen3_next", files=_QWEN, fields=_EVERY_EXPERT, recycles_normed=True
    ),
    "qwen3_5": Family(decoder="qwen3_5_text", files=_QWEN, recycles_normed=True, num_axes=3),
    "qwen3_5_moe": Family(
        decoder="qwen3_5_moe_text", files=_QWEN, recycles_normed=True, num_axes=3
    ),
}
# The families that speculators 0.9 writes, with one MTP layer. Source: its models/mtp.
SPECULATORS_FAMILIES: Mapping[str, Family] = {
    "qwen3": Family(decoder="qwen3", files=_SPECULATORS, recycles_normed=True),
    **{
        name: replace(FAMILIES[name], files=_SPECULATORS)
        for name in ("qwen3_next", "qwen3_5", "qwen3_5_moe")
    },
}
_MTP_SIZES = ("moe_intermediate_size", "shared_expert_intermediate_size")
_MOST_MTP_LAYERS = 64  # each has names of its own
_OF_PACKED = ("_scale", "_scale_inv", "_packed")  # tensors that plain weights do not have
_COUNTS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")


def text_fields(files: HeadFiles[Shaped]) -> Fields:
    """The config of the language model, which may be nested in that of a larger model."""
    within = (files.fields.section(name) for name in ("transformer_layer_config", "text_config"))
    return next(filter(None, within), files.fields)


def family_name(model_type: object) -> str:
    """The family of a model type; a whole model and its language model have the same."""
    return str(model_type).removesuffix("_text")


def family_of(files: HeadFiles[Shaped]) -> Family:
    """The family of these files; ModelError lists the known families."""
    families, config = FAMILIES, files.config
    if files.fields.has(SPECULATORS):
        families, config = SPECULATORS_FAMILIES, text_fields(files).values
    kind = family_name(config.get("model_type"))
    if kind not in families:
        raise ModelError(
            f"{files.source}: no MTP layers of model type {kind} are known; those of "
            f"{', '.join(families)} are"
        )
    return families[kind]


def num_mtp_layers(files: HeadFiles[Shaped]) -> int:
    """The number in the config; some families have no such field and one layer."""
    fields = files.fields if files.fields.has(SPECULATORS) else text_fields(files)
    declared = (fields.whole(name, most=_MOST_MTP_LAYERS) for name in _COUNTS)
    counts = [count for count in declared if count is not None]
    if 0 in counts:
        raise ModelError(f"{files.source}: its config says that it has no MTP layers")
    return counts[0] if counts else 1


def layer_tensors(files: AnyFiles) -> AnyFiles:
    """The files with only the MTP layers' tensors; ModelError if there are none, or quantized."""
    mark = "mtp/"  # no tensor's name begins with this
    names = list(prefixes(files))
    layer_files = files.renamed({name: mark + name for name in names}).under(mark)
    if not layer_files.tensors:
        raise ModelError(
            f"{files.source}: no MTP layers (no tensor is named like {names[0]}weight); "
            "transformers does not save them: use the files that the model's authors published"
        )
    tensors = layer_files.tensors
    marked = [name for name in tensors if name.endswith(_OF_PACKED)]
    if quantized := (*packed(tensors, tensors), *marked):
        raise ModelError(
            f"{files.source}: its MTP layers are stored quantized ({quantized[0]}); name a copy "
            "in plain weights with `model:`"
        )
    return layer_files


def file_name(files: HeadFiles[Shaped], name: str) -> str:
    """The name in the files of a tensor, from our name for it."""
    named = prefixes(files).items()
    old, new = next((old, new) for old, new in named if name.startswith(new))
    return old + name.removeprefix(new)


def prefixes(files: HeadFiles[Shaped]) -> dict[str, str]:
    """Our prefix for each prefix of tensor names in the files."""
    first = text_fields(files).whole("num_hidden_layers") or 0
    return {
        old.format(i=i, n=first + i): new.format(i=i)
        for i in range(num_mtp_layers(files))
        for old, new in family_of(files).files.items()
    }


def mtp_fit(files: HeadFiles[Shaped], target: HeadTarget) -> Fit:
    """The sizes of MTP layers that must equal the target's. ModelError."""
    fields = text_fields(files)
    for name in (*SIZES, *_MTP_SIZES):
        fields.whole(name, least=1)
    require_routing(fields)
    if family_of(files).decoder in DENSE:
        fields.require(*LAYER_NEEDS)
    require_layers(fields)
    return {
        "hidden_size": (fields.whole("hidden_size", least=1), target.hidden_size),
        "num_hidden_layers": (fields.whole("num_hidden_layers", least=1), target.num_layers),
        "vocab_size": (fields.whole("vocab_size", least=1), target.vocab_size),
    }


def require_mtp_tensors(files: HeadFiles[Shaped], F: int) -> None:
    """Raise ModelError for tensors that are missing or have the wrong shape.

    Those of a mixture's or a hybrid's decoder layer are known to its modules only: see
    `HeadFacts.needs_modules`.
    """
    shapes = {"token_norm": (F,), "state_norm": (F,), "join": (F, 2 * F), "out_norm": (F,)}
    needed = {}
    for i in range(num_mtp_layers(files)):
        for module, shape in shapes.items():
            if i == 0 or module not in family_of(files).shared:
                needed[file_name(files, f"{i}.{module}.weight")] = shape
        for name, shape in _dense_shapes(files).items():
            needed[file_name(files, f"{i}.block.{name}")] = shape
    layer_files = layer_tensors(files)
    if family_of(files).decoder not in DENSE:
        needed = {name: layer_files.shape(name) for name in layer_files.tensors} | needed
    layer_files.require(needed, frozenset())


def _dense_shapes(files: HeadFiles[Shaped]) -> dict[str, tuple[int, ...]]:
    """Shapes of a decoder layer's tensors in a dense family; empty for other families."""
    if (kind := family_of(files).decoder) not in DENSE:
        return {}
    values = {**text_fields(files).values, "num_hidden_layers": 1}
    shapes = layer_shapes(Fields(source=files.source, values=values), (), kind=kind)
    return {name.removeprefix("layers.0."): shape for name, shape in shapes.items()}
