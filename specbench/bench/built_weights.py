"""Counts the weights of a model of any architecture by building it on the meta device."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from specbench.files.config import is_hybrid
from specbench.files.model import DTYPE_BYTES, ModelFiles
from specbench.fit.weights import PER_LAYER_TABLE, Weights, kv_elements_per_token, unrouted
from specbench.forward.state_layers import cache_bytes, cache_of
from specbench.models.loading import load_skeleton
from specbench.models.quantization import packable

_INT4_GROUP = 128  # inputs that share a scale, as models/quantization.py packs them


def built_weights(files: ModelFiles, dtype: str) -> Weights | None:
    """Weights of a model with only a config; None if the size of its KV cache is unknown.

    ModelError if it cannot be built.
    """
    spec = files.spec
    model = load_skeleton(replace(spec, folder=files.folder), dtype)
    if not is_hybrid(files.field) and kv_elements_per_token(files) is None:
        return None
    embedding = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    is_tied = head is not None and head.weight is embedding
    nbytes = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    if spec.quantization is not None:
        nbytes += sum(
            _packed_bytes(linear, spec.quantization) - linear.weight.nbytes
            for linear in packable(model)
        )
    sizes = {name: parameter.nbytes for name, parameter in model.named_parameters()}
    unread = sum(size for name, size in sizes.items() if name.endswith(PER_LAYER_TABLE))
    unread += unrouted(files, sizes) + (0 if is_tied else embedding.nbytes)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    kv_bytes, state_bytes = _cache_and_state_bytes(files, dtype, model)
    return Weights(
        num_parameters=num_parameters,
        nbytes=nbytes,
        read_bytes=nbytes - unread,
        kv_bytes_per_token=kv_bytes,
        is_exact=spec.quantization is None,
        basis="built",
        state_bytes=state_bytes,
    )


def _cache_and_state_bytes(files: ModelFiles, dtype: str, model: Any) -> tuple[int, int]:
    """A model's bytes of cache per token, and bytes of recurrent state per row.

    They follow from the config. Those of a hybrid model are measured by a forward pass on the meta
    device, which leaves the model unusable.
    """
    if not is_hybrid(files.field):
        return (kv_elements_per_token(files) or 0) * DTYPE_BYTES[dtype], 0
    model.to("meta")
    for module in model.modules():
        is_layer = hasattr(module, "layer_idx") or isinstance(module, nn.Conv1d)
        if not is_layer and any(w.ndim == 3 for w in module.parameters(recurse=False)):
            module.forward = _pass_through  # kernels of experts do not run on the meta device
    with torch.device("meta"), torch.inference_mode():
        out = model(input_ids=torch.zeros(1, 1, dtype=torch.long), use_cache=True)
    return cache_bytes(cache_of(out))


def _pass_through(states: Tensor, *_: Any, **__: Any) -> Tensor:
    return states


def _packed_bytes(linear: nn.Linear, scheme: str) -> int:
    """Bytes of a layer that torchao packed on a CPU; int4 on a GPU pads inputs to 1024."""
    outputs, inputs = linear.weight.shape
    match scheme:
        case "int8":
            return outputs * inputs + outputs * (4 + 1)  # a scale and a zero point
        case "fp8":
            return outputs * inputs + outputs * 4
    # Half a byte per weight; per group a scale and an offset in the model's dtype.
    groups = -(-inputs // _INT4_GROUP)
    return outputs * inputs // 2 + outputs * groups * 2 * linear.weight.itemsize
