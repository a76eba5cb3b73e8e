"""Weights in 8 or 4 bits: packed by torchao when a model is loaded, or already stored quantized.

Only weights are quantized: activations keep the model's dtype. A packed target is another target,
whose baseline (K = 0) uses the same packed weights. Packing a draft model only changes how often
its drafts are accepted: they are verified like any others, so the text is still the target's.
"""

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from specbench.errors import ModelError
from specbench.files.model import format_name, is_all_fp8

# Input features per int4 scale: smaller groups are more accurate, but store more scales.
_INT4_GROUP = 128


def require_packable(scheme: str, device: torch.device, dtype: torch.dtype) -> None:
    """ModelError if torchao is missing or has no kernel for this device and dtype."""
    if find_spec("torchao") is None:
        raise ModelError(f"quantization {scheme} needs torchao; pip install torchao")
    if dtype is torch.float64:
        raise ModelError(f"quantization {scheme} has no float64 kernels; choose dtype float32")
    if scheme == "int4" and device.type == "cuda" and dtype is not torch.bfloat16:
        name = str(dtype).removeprefix("torch.")
        raise ModelError(
            f"quantization int4 on a GPU needs dtype bfloat16, not {name}, and compute capability "
            "8.0 or newer"
        )


def packable(model: Any) -> list[nn.Linear]:
    """The linear layers of the blocks, without embedding and head.

    ModelError if they have less than half of the blocks' parameters: the experts of transformers'
    mixture models and GPT-2's layers are not linear modules.
    """
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    linears = [m for m in model.modules() if type(m) is nn.Linear and m is not head]
    ends = {id(module.weight): module.weight.numel() for module in (head, embedding)}
    in_blocks = sum(parameter.numel() for parameter in model.parameters()) - sum(ends.values())
    if 2 * sum(linear.weight.numel() for linear in linears) < in_blocks:
        raise ModelError(
            f"{type(model).__name__} keeps most of its weights outside linear layers, which "
            "torchao cannot reach; leave `quantization` out, or name a checkpoint that is "
            "stored quantized"
        )
    return linears


def pack(linear: nn.Linear, scheme: str) -> None:
    """Replace a layer's weight with its packed form, in place, on its device.

    ModelError if torchao does not change the layer, about which it gives no error.
    """
    import_module("torchao.quantization").quantize_(linear, _config(scheme, linear.weight.device))
    if type(linear.weight) is nn.Parameter:
        raise ModelError(
            f"quantization {scheme!r} does not fit a layer with {linear.in_features} inputs"
            + (f": they must be a multiple of {_INT4_GROUP}" if scheme == "int4" else "")
        )


def inner_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """The parts of a packed tensor (values, scales, zero points), or the plain tensor itself."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from inner_tensors(getattr(tensor, name))


def stored_format(config: PretrainedConfig) -> str | None:
    """The format that a model runs in: `gptq`, `awq`, `torchao` ...; None: plain tensors."""
    stored: Any = getattr(config, "quantization_config", None)
    dequantize = stored.get("dequantize") if isinstance(stored, dict) else None
    if getattr(stored, "dequantize", dequantize):
        return None  # transformers unpacks it: its kernels cannot run here
    return named_format(config)


def named_format(config: PretrainedConfig) -> str | None:
    """The format of the files, including those that are unpacked when they are loaded."""
    stored: Any = getattr(config, "quantization_config", None)
    if stored is None:
        return None
    return format_name(stored if isinstance(stored, dict) else stored.to_dict())


def unpack_compressed(config: PretrainedConfig, device: torch.device | None = None) -> None:
    """Configure compressed-tensors to run in transformers' fp8 kernels if the device has them.

    Otherwise they are unpacked while they are loaded. By default, transformers unpacks them in the
    first forward, after the weights were counted.
    """
    stored: Any = getattr(config, "quantization_config", None)
    if isinstance(stored, dict) and stored.get("quant_method") == "compressed-tensors":
        has_kernels = (
            device is not None
            and device.type == "cuda"
            and torch.cuda.get_device_capability(device) >= (8, 9)
            and is_all_fp8(stored)
        )
        stored |= {"dequantize": not has_kernels, "use_optimized_inference": has_kernels}


def _config(scheme: str, device: torch.device) -> Any:
    """torchao's config, which leaves the compiler's settings unchanged.

    PyTorch's int4 kernels need another layout on a GPU than on a CPU.
    """
    torchao = import_module("torchao.quantization")
    match scheme:
        case "int8":
            return torchao.Int8WeightOnlyConfig(set_inductor_config=False)
        case "fp8":
            return torchao.Float8WeightOnlyConfig(set_inductor_config=False)
        case "int4" if device.type == "cpu":
            prototype = import_module("torchao.prototype.quantization.int4")
            return prototype.PrototypeInt4WeightOnlyConfig(
                group_size=_INT4_GROUP, set_inductor_config=False
            )
        case "int4":
            return torchao.Int4WeightOnlyConfig(
                group_size=_INT4_GROUP,
                int4_packing_format="tile_packed_to_4d",
                set_inductor_config=False,
            )
    raise ValueError(f"no scheme {scheme}")
