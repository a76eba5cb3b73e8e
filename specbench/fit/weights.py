"""Memory of a model's or a head's weights and KV cache, from its config and headers.

Shape suffixes: F hidden size, V vocabulary.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from specbench.errors import ModelError
from specbench.files.config import DENSE, FULL, Fields, head_size, layer_fields, layer_shapes
from specbench.files.gemma4_mtp import kv_heads
from specbench.files.head_files import ID_TABLES, OLD_ROTARY, HeadFiles
from specbench.files.headers import TensorHeader, is_embedding, is_head, same_bytes
from specbench.files.model import DTYPE_BYTES, ModelFiles, is_all_fp8
from specbench.footprint import Sizes
from specbench.methods import HeadFacts


def text_tensors(model: ModelFiles) -> tuple[Collection[str], tuple[str, ...]]:
    """The names of the tensors of the text part, and of the modules that are left out.

    The text part is the module that contains the embedding, and a head. It is the whole model if
    the config has no separate part for text, or if no tensor is an embedding.
    """
    names = model.tensors or {}
    embedding = next(filter(is_embedding, names), None)
    if embedding is None or not isinstance(model.config.get("text_config"), dict):
        return tuple(names), ()
    path = tuple(embedding.split(".")[:-2])
    kept = [n for n in names if is_head(n) or tuple(n.split(".")[: len(path)]) == path]
    dropped = {_parting(path, tuple(n.split("."))) for n in names.keys() - set(kept)}
    return kept, tuple(sorted(dropped))


def _parting(path: tuple[str, ...], other: tuple[str, ...]) -> str:
    """The module's path up to the first part that differs from the text part's path."""
    shared = next((i for i, (a, b) in enumerate(zip(path, other, strict=False)) if a != b), 0)
    return ".".join(other[: shared + 1])


_PACKED_BITS: Mapping[str, float] = {"int8": 8, "fp8": 8, "int4": 4.25}  # docs/pairings.md
PER_LAYER_TABLE = "embed_tokens_per_layer.weight"  # of Gemma 3n and 4
_ROUTED = re.compile(r"\.experts\.|block_sparse_moe\.(input|output)_linear\.")  # also of Granite


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """The memory of a model or a head when it is loaded; bytes are those of its tensors."""

    num_parameters: int
    nbytes: int  # without buffers that no file has: a rotary table, less than a KiB
    read_bytes: int  # read by a forward pass of one token, at least
    kv_bytes_per_token: int
    is_exact: bool  # False: packed, or stored in a format whose size only loading shows
    basis: Literal["config", "headers", "built"]  # the source of the counts
    state_bytes: int = 0  # a row's recurrent state after one token


def half_dtype(compute_capability: tuple[int, int] | None) -> str:
    """The dtype of two bytes for a GPU: float16 below compute capability 8.0, where bfloat16 is
    emulated; None: unknown, or no NVIDIA GPU.

    Source: NVIDIA's CUDA programming guide, arithmetic instructions.
    """
    is_old = compute_capability is not None and compute_capability < (8, 0)
    return "float16" if is_old else "bfloat16"


def planned_dtype(
    model: ModelFiles,
    device: Literal["cpu", "cuda"],
    requested: str | None,
    compute_capability: tuple[int, int] | None = None,
) -> str:
    """The dtype that loading will choose: by default float32 on a CPU, else the checkpoint's, or
    float16 on a GPU that emulates bfloat16."""
    chosen = requested or model.spec.dtype
    if chosen != "auto":
        return chosen
    if device == "cpu" and not _stays_packed(model, "float32"):
        return "float32"
    stored = model.stored_dtype
    return half_dtype(compute_capability) if stored == "bfloat16" else stored


def dtype_note(
    model: ModelFiles, requested: str | None, compute_capability: tuple[int, int] | None
) -> str | None:
    """What a user should know if `planned_dtype` replaces bfloat16 on a GPU, else None."""
    default = planned_dtype(model, "cuda", requested)
    if planned_dtype(model, "cuda", requested, compute_capability) == default:
        return None
    return (
        f"{model.spec.source} is saved in bfloat16, which GPUs below compute capability 8.0 "
        "emulate, and runs in float16: values above 65,504, which Gemma 2 and 3 are known for, "
        "become infinite; if the text is wrong, use --dtype float32"
    )


def model_weights(model: ModelFiles, dtype: str) -> Weights | None:
    """A whole model's weights; None if neither its config nor its files show them. ModelError."""
    kv = kv_elements_per_token(model)
    if kv is None:
        return None
    size = DTYPE_BYTES[dtype]
    if _stays_packed(model, dtype):
        return _as_stored(model, kv * size)
    count = dense_parameters(model)
    basis: Literal["config", "headers"] = "config"
    if count is None and model.field("quantization_config") is not None:
        return _as_stored(model, kv * size)  # the count of packed numbers is not that of weights
    if count is None:
        count, basis = _from_headers(model), "headers"
    if count is None:
        return None
    nbytes = (count.total - count.in_linears) * size + count.float32_buffers * 4
    scheme = model.spec.quantization
    packed = _PACKED_BITS[scheme] / 8 if scheme else size
    nbytes += round(count.in_linears * packed)
    return Weights(
        num_parameters=count.total,
        nbytes=nbytes,
        read_bytes=nbytes - count.looked_up * size - round(count.unrouted * packed),
        kv_bytes_per_token=kv * size,
        is_exact=scheme is None and model.field("quantization_config") is None,
        basis=basis,
    )


def _stays_packed(model: ModelFiles, dtype: str) -> bool:
    """Whether it runs packed, as stored; compressed-tensors are unpacked, except fp8 on GPUs."""
    stored = model.field("quantization_config")
    if not isinstance(stored, dict):
        return stored is not None
    if stored.get("dequantize"):  # transformers unpacks it
        return False
    is_on_cpu = dtype == "float32"  # as loading plans it
    return stored.get("quant_method") != "compressed-tensors" or (
        is_all_fp8(stored) and not is_on_cpu
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterCount:
    """Numbers of parameters: `in_linears` are in the blocks' matrices, `looked_up` in tables that
    only serve for lookups, `unrouted` in the experts that a token does not use. `float32_buffers`
    stay in float32 whatever the dtype."""

    total: int
    in_linears: int
    looked_up: int
    float32_buffers: int
    unrouted: int = 0


def sizes_of(model: ModelFiles) -> Sizes | None:
    """The sizes that determine the layers' shapes; None if the config lacks them."""
    defaults = DENSE.get(model.dense_kind or "", {})
    kv_heads = model.size("num_key_value_heads") or defaults.get("num_key_value_heads")
    if kv_heads is None and model.field("multi_query"):
        # Falcon 40B repeats its keys for all heads before it stores them.
        kv_heads = None if model.field("new_decoder_architecture") else 1
    heads = model.size("num_attention_heads")
    hidden, mlp = model.size("hidden_size"), model.field("intermediate_size")
    widths = [width for width in mlp if type(width) is int] if isinstance(mlp, list) else []
    mlp = max(widths, default=0) or model.size("intermediate_size")
    if heads is None or hidden is None:
        return None
    head = model.size("head_dim") or defaults.get("head_dim") or hidden // heads
    return Sizes(
        hidden=hidden,
        query_heads=heads,
        kv_heads=kv_heads if isinstance(kv_heads, int) else heads,
        head=head if isinstance(head, int) else hidden // heads,
        mlp=mlp or 4 * hidden,
    )


def dense_parameters(model: ModelFiles) -> ParameterCount | None:
    """Parameters of a dense Llama (Llama, Mistral, Qwen 2, Qwen 3); None for other families."""
    kind, sizes = model.dense_kind, sizes_of(model)
    if kind is None or sizes is None or model.size("intermediate_size") is None:
        return None
    fields = Fields(source=model.spec.source, values=model.config)
    shapes = layer_shapes(fields, (), kind=kind).values()
    table = model.vocab_size * sizes.hidden
    is_tied = bool(model.field("tie_word_embeddings"))
    return ParameterCount(
        total=sum(map(math.prod, shapes)) + sizes.hidden + table * (1 if is_tied else 2),
        in_linears=sum(math.prod(shape) for shape in shapes if len(shape) == 2),
        looked_up=0 if is_tied else table,
        float32_buffers=2 * (sizes.head // 2),  # rotary frequencies, and a copy of them
    )


def kv_elements_per_token(model: ModelFiles) -> int | None:
    """Numbers in one token's keys and values in all layers; None if unknown."""
    layers, sizes = model.size("num_hidden_layers"), sizes_of(model)
    if layers is None or sizes is None:
        return None
    latent, rotated = model.size("kv_lora_rank"), model.size("qk_rope_head_dim")
    if latent is not None and rotated is not None:
        return layers * (latent + rotated)  # for all heads: transformers expands it after reading
    reused = model.field("num_kv_shared_layers")  # by the last layers, from earlier ones
    if type(reused) is int and 0 < reused <= layers:
        layers -= reused
    if str(model.field("model_type")).startswith("gemma4") and (of := kv_heads(model.field)):
        kinds = model.field("layer_types") or [FULL] * layers
        return sum(2 * of[str(kind)].num * of[str(kind)].size for kind in kinds[:layers])
    return layers * 2 * sizes.kv_heads * sizes.head


def _from_headers(model: ModelFiles) -> ParameterCount | None:
    """Counts the tensors that loading reads from the files; a tied head counts once."""
    tensors = _loaded(model)
    if tensors is None:
        return None
    floats = {name: header for name, header in tensors.items() if header.is_floating_point()}
    sizes = {name: header.num_elements for name, header in floats.items()}
    matrices = sum(
        header.num_elements
        for name, header in floats.items()
        if len(header.shape) == 2
        and not (is_embedding(name) or is_head(name) or name.endswith(PER_LAYER_TABLE))
    )
    return ParameterCount(
        total=sum(sizes.values()),
        in_linears=matrices,
        looked_up=_looked_up(sizes),
        float32_buffers=0,
        unrouted=unrouted(model, sizes),
    )


def _looked_up(sizes: Mapping[str, int]) -> int:
    """The total of the tables that only serve for lookups: Gemma's for each layer, and the
    embedding if the head has its own tensor."""
    has_head = any(map(is_head, sizes))
    return sum(
        size
        for name, size in sizes.items()
        if name.endswith(PER_LAYER_TABLE) or (has_head and is_embedding(name))
    )


def unrouted(model: ModelFiles, sizes: Mapping[str, int]) -> int:
    """The total of the experts that a token does not use; `sizes` are of tensors by name."""
    if (experts := model.experts) is None:
        return 0
    routed = sum(size for name, size in sizes.items() if _ROUTED.search(name))
    return routed * (experts.num - experts.per_token) // experts.num


def _as_stored(model: ModelFiles, kv_bytes: int) -> Weights | None:
    """Weights with the bytes of the files, for a checkpoint that is stored quantized."""
    tensors = _loaded(model)
    if tensors is None:
        return None
    sizes = {name: header.nbytes for name, header in tensors.items()}
    nbytes = sum(sizes.values())
    return Weights(
        num_parameters=sum(header.num_elements for header in tensors.values()),
        nbytes=nbytes,
        read_bytes=nbytes - _looked_up(sizes) - unrouted(model, sizes),
        kv_bytes_per_token=kv_bytes,
        is_exact=False,
        basis="headers",
    )


def _loaded(model: ModelFiles) -> dict[str, TensorHeader] | None:
    """The tensors that transformers loads for text: no MTP layers, old rotary tables, tied head, or
    parts for images, video and sound."""
    if model.tensors is None:
        return None
    layers = model.num_layers
    beyond = tuple(f"model.layers.{i}." for i in range(layers, layers + 8))
    is_tied = bool(model.field("tie_word_embeddings"))
    return {
        name: model.tensors[name]
        for name in text_tensors(model)[0]
        if not name.startswith(("mtp.", "model.mtp", *beyond))
        and not name.endswith(OLD_ROTARY)
        and not (is_tied and is_head(name))
    }


def head_weights(
    target: ModelFiles, head: ModelFiles, facts: HeadFacts, dtype: str
) -> Weights | None:
    """Weights of a head in the target's dtype, without copies of the target's tensors; None for a
    pickle. ModelError."""
    try:
        files = head.head
    except ModelError:
        if head.head_pickle:
            return None
        raise
    size = DTYPE_BYTES[dtype]
    if facts.kept_shapes is not None:
        shapes = facts.kept_shapes(files, target).values()
        total, unread = sum(map(math.prod, shapes)), facts.num_unread(files)
        return _weights(total, size, kv_elements=0, looked_up=unread)
    kept = _without_copies(facts.tensors(files), target)
    if facts.num_model_layers is not None:
        per_layer = (kv_elements_per_token(head) or 0) // head.num_layers
        kv_elements = per_layer * facts.num_model_layers(files)
        return _weights(_floats(kept), size, kv_elements=kv_elements)
    tables = ("embed_tokens.weight", "markov_w1.weight")
    embedding = {name: header for name, header in kept.items() if name.endswith(tables)}
    return _weights(
        _floats(kept), size, kv_elements=_layers_kv(files), looked_up=_floats(embedding)
    )


def _weights(num_elements: int, size: int, *, kv_elements: int, looked_up: int = 0) -> Weights:
    return Weights(
        num_parameters=num_elements,
        nbytes=num_elements * size,
        read_bytes=(num_elements - looked_up) * size,
        kv_bytes_per_token=kv_elements * size,
        is_exact=True,
        basis="headers",
    )


def _without_copies(
    tensors: Mapping[str, TensorHeader], target: ModelFiles
) -> dict[str, TensorHeader]:
    """The tensors that stay loaded, without bitwise copies of the target's embedding and head."""
    of_target = target.tensors or {}
    tables = [header for name, header in of_target.items() if name.endswith("embed_tokens.weight")]
    heads = [header for name, header in of_target.items() if name.endswith("lm_head.weight")]
    return {
        name: header
        for name, header in tensors.items()
        if name not in ID_TABLES
        and not name.endswith(OLD_ROTARY)
        and not (name.endswith("embed_tokens.weight") and _is_copy(header, tables))
        and not (name.endswith("shared_head.head.weight") and _is_copy(header, heads or tables))
    }


def _is_copy(header: TensorHeader, of: list[TensorHeader]) -> bool:
    try:
        return any(same_bytes(header, other) for other in of)
    except OSError as error:
        raise ModelError(f"{header.file} cannot be read: {error}") from error


def _layers_kv(files: HeadFiles[TensorHeader]) -> int:
    """Numbers in one token's keys and values in a head's layers."""
    fields = layer_fields(files.fields)
    kv_heads = fields.whole("num_key_value_heads") or fields.must("num_attention_heads")
    return (fields.whole("num_hidden_layers") or 1) * 2 * kv_heads * head_size(fields)


def _floats(tensors: Mapping[str, TensorHeader]) -> int:
    return sum(header.num_elements for header in tensors.values() if header.is_floating_point())
