"""What a draft head takes beside its target, counted from the headers of its files."""

import math
from collections.abc import Mapping

from specbench.errors import ModelError
from specbench.files.head_files import HeadFiles
from specbench.files.headers import TensorHeader, same_bytes
from specbench.files.layer_config import head_size, layer_fields
from specbench.files.model import ModelFiles
from specbench.fit.weights import DTYPE_BYTES, Weights, kv_elements_per_token
from specbench.methods import HeadFacts

Files = HeadFiles[TensorHeader]
_NOT_KEPT = ("d2t", "t2d")  # of EAGLE-3: a table of ids, and a mask that only training needs


def head_weights(
    target: ModelFiles, head: ModelFiles, facts: HeadFacts, dtype: str
) -> Weights | None:
    """Its tensors in the target's dtype, without copies of the target's; None for a pickle.
    ModelError."""
    try:
        files = head.head
    except ModelError:
        if head.pickles:
            return None
        raise
    size = DTYPE_BYTES[dtype]
    if facts.kept_shapes is not None:
        shapes = facts.kept_shapes(files, target).values()
        return _weights(sum(map(math.prod, shapes)), size, kv_elements=0)
    kept = _without_copies(facts.tensors(files), target)
    if facts.num_model_layers is not None:
        per_layer = (kv_elements_per_token(head) or 0) // head.num_layers
        kv_elements = per_layer * facts.num_model_layers(files)
        return _weights(_floats(kept), size, kv_elements=kv_elements)
    own = {name: header for name, header in kept.items() if name.endswith("embed_tokens.weight")}
    return _weights(_floats(kept), size, kv_elements=_layers_kv(files), looked_up=_floats(own))


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
    """Without an embedding that is the target's, bit by bit, and without what is not kept."""
    of_target = target.tensors or {}
    tables = [header for name, header in of_target.items() if name.endswith("embed_tokens.weight")]
    heads = [header for name, header in of_target.items() if name.endswith("lm_head.weight")]
    return {
        name: header
        for name, header in tensors.items()
        if name not in _NOT_KEPT
        and not name.endswith("rotary_emb.inv_freq")
        and not (name.endswith("embed_tokens.weight") and _is_copy(header, tables))
        and not (name.endswith("shared_head.head.weight") and _is_copy(header, heads or tables))
    }


def _is_copy(header: TensorHeader, of: list[TensorHeader]) -> bool:
    try:
        return any(same_bytes(header, other) for other in of)
    except OSError as error:
        raise ModelError(f"{header.file} cannot be read: {error}") from error


def _layers_kv(files: Files) -> int:
    """Numbers that a token takes in the layers of a head."""
    fields = layer_fields(files)
    kv_heads = fields.whole("num_key_value_heads") or fields.must("num_attention_heads")
    return (fields.whole("num_hidden_layers") or 1) * 2 * kv_heads * head_size(fields)


def _floats(tensors: Mapping[str, TensorHeader]) -> int:
    return sum(header.num_elements for header in tensors.values() if header.is_float)
