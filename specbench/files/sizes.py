"""Sizes that a config.json may tell: what no model has is refused before anyone counts by it."""

from collections.abc import Mapping

from specbench.errors import ModelError
from specbench.files.fields import MOST_LAYERS, Fields
from specbench.files.head_files import HeadFiles
from specbench.files.headers import TensorHeader, is_embedding, is_head, same_bytes
from specbench.files.layer_config import layer_shapes
from specbench.files.model import ModelFiles

# Far above any model; a number beyond is a slip of the pen or a trap.
_MOST: Mapping[str, int] = {
    "hidden_size": 2**20,
    "intermediate_size": 2**24,
    "num_hidden_layers": MOST_LAYERS,
    "num_attention_heads": 2**14,
    "num_key_value_heads": 2**14,
    "head_dim": 2**16,
    "vocab_size": 2**24,
}
_MOST_PIECES = 4  # of two tables that are compared: the first rows tell
_TAKE = "take the config.json that the weights came with"
_MAY_BE_ZERO = ("intermediate_size", "num_key_value_heads")  # of layers that have none


def require_sizes(model: ModelFiles) -> None:
    """ModelError with field and value for a size, or one of a list per layer, that no model has."""
    for name, most in _MOST.items():
        value = model.field(name)
        least = 0 if name in _MAY_BE_ZERO else 1
        for one in value if isinstance(value, list) else [value]:
            Fields(source=model.spec.source, values={name: one}).whole(name, least, most)


def require_weights(model: ModelFiles) -> None:
    """ModelError if config.json lacks a size, which a library default would replace, or the weights
    are not its own."""
    source = model.spec.source
    parts = [part for part in model.config.values() if isinstance(part, dict)]
    # A part's class has defaults of its own, and so has a model's own code.
    is_flat = not (model.needs_code or any("model_type" in part for part in parts))
    for name in ("hidden_size", "num_hidden_layers", "vocab_size") if is_flat else ():
        if model.field(name) is None:
            model.must(name)
    tensors, width = model.tensors, model.size("hidden_size")
    if not tensors or width is None or model.field("quantization_config") is not None:
        return
    if not any(width in one.shape for one in tensors.values()):
        raise ModelError(
            f"{source}: with this config.json hidden_size is {width}, which no tensor of its "
            f"weights has; {_TAKE}"
        )
    if not is_flat:
        return
    table = min(filter(is_embedding, tensors), key=len, default=None)
    head = min(filter(is_head, tensors), key=len, default=None)
    is_tied = model.field("tie_word_embeddings")
    if is_tied is False and head is None and table is not None:
        raise ModelError(
            f"{source}: config.json: tie_word_embeddings is false, and its files have no "
            "lm_head.weight; download it again, or set it to true if the model has no head"
        )
    if is_tied and head and table and not same_bytes(tensors[head], tensors[table], _MOST_PIECES):
        raise ModelError(
            f"{source}: config.json: tie_word_embeddings is true, and {head} differs from {table}: "
            "which of them is the head is not clear; set it to false to use both"
        )
    if model.dense_kind is not None:
        _require_dense(model, tensors)


def _require_dense(model: ModelFiles, tensors: Mapping[str, TensorHeader]) -> None:
    """ModelError for tensors of a dense model that are missing, or of another shape."""
    source = f"{model.spec.source}: config.json"
    fields = Fields(source=source, values=model.config)
    prefix = "" if "embed_tokens.weight" in tensors else "model."
    table = (model.vocab_size, model.hidden_size)
    shapes = {f"{prefix}embed_tokens.weight": table, f"{prefix}norm.weight": table[1:]}
    if "lm_head.weight" in tensors:
        shapes["lm_head.weight"] = table
    shapes |= layer_shapes(fields, tensors.keys(), prefix, kind=model.dense_kind)
    known = {name: tensor for name, tensor in tensors.items() if name in shapes}
    try:
        HeadFiles(source=source, config=model.config, tensors=known).require(shapes, frozenset())
    except ModelError as error:
        raise ModelError(f"{error}; {_TAKE}, or download the model again") from error
