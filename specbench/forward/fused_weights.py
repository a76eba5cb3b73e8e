"""The weights of dense Llama-family layers, joined so that a layer needs four matrix products.

No matrix is stored twice. The matrices are joined once, layer by layer, and the modules' parameters
become views of them, so that the model's forward still runs.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
_FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
_NEEDS_LENGTH = ("dynamic", "longrope")


class FusedLayer(NamedTuple):
    """One layer; matrices are transposed views [in, out], ready for a product from the right."""

    input_norm: Tensor | None  # None: the input is not normalized
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norm: Tensor | None  # [query heads + key heads, D], Qwen 3
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    window: int | None  # tokens that a position attends to, including itself; None: all


class FusedWeights(NamedTuple):
    """All layers, the embedding [V, F], the final norm and the transposed head [F, V]."""

    embedding: Tensor
    layers: tuple[FusedLayer, ...]
    final_norm: Tensor
    head: Tensor


def unfused_reason(model: Any) -> str | None:
    """The reason why the fused forward cannot compute this model; None if it can."""
    name = type(model).__name__
    if name not in _ARCHITECTURES:
        return f"{name} is not one of {', '.join(_ARCHITECTURES)}"
    decoder, head = model.model, model.lm_head
    reason = _reason(model.config, decoder.layers, decoder.rotary_emb, [head], model.parameters())
    if reason is None and head.bias is not None:
        return "its lm_head has a bias"
    return reason


def unfused_layers_reason(config: Any, layers: Sequence[Any], rotary: Any) -> str | None:
    """The reason why decoder layers without a model, such as a head's, cannot be fused, or None."""
    for layer in layers:
        for part, kind in ((layer.self_attn, "Attention"), (layer.mlp, "MLP")):
            if (name := type(part).__name__) not in [f"{family}{kind}" for family in _FAMILIES]:
                return f"{name} is not that of {', '.join(_FAMILIES)}"
    rope_type = (config.rope_parameters or {}).get("rope_type")
    if rope_type in _NEEDS_LENGTH:
        return f"its rotary positions ({rope_type}) change with the length of the text"
    parameters = (parameter for layer in layers for parameter in layer.parameters())
    return _reason(config, layers, rotary, (), parameters)


def _reason(
    config: Any,
    layers: Sequence[Any],
    rotary: Any,
    other_linears: Iterable[Any],
    parameters: Iterable[nn.Parameter],
) -> str | None:
    """The reason against fusing; `other_linears` are linear layers outside `layers`."""
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    linears = [module for layer in layers for module in _linears(layer)]
    if odd := {type(module).__name__ for module in (*linears, *other_linears)} - {"Linear"}:
        return f"its linear layers are {', '.join(sorted(odd))} (quantized or adapted)"
    tensors = list(parameters)
    # Plain linear layers may have quantized weights: tensors made of other tensors.
    if odd := {type(t).__name__ for t in tensors if hasattr(t, "__tensor_flatten__")}:
        return f"its weights are {', '.join(sorted(odd))} (quantized)"
    if len(devices := {str(tensor.device) for tensor in tensors}) > 1:
        return f"it is spread over {', '.join(sorted(devices))}"
    if len(dtypes := {str(tensor.dtype) for tensor in tensors}) > 1:
        return f"its weights are of several dtypes: {', '.join(sorted(dtypes))}"
    for group in (group for layer in layers for group in _joinable_linears(layer)):
        if len({linear.bias is None for linear in group}) > 1:
            return "some of the linear layers to be joined have a bias and others have none"
    if 2 * len(rotary.inv_freq) != layers[0].self_attn.head_dim:
        return "its rotary positions turn only a part of each head"
    return None


def fuse(model: Any, *, mirrored: bool) -> FusedWeights:
    """Join a model's weights in place; a second call returns the same tensors.

    If `mirrored`, the weights of norms are followed by as many zeros.
    """
    decoder = model.model
    windows = [_window(model.config, layer.self_attn) for layer in decoder.layers]
    return FusedWeights(
        embedding=decoder.embed_tokens.weight.detach(),
        layers=fuse_layers(model.config, decoder.layers, windows, mirrored=mirrored),
        final_norm=_norm(decoder.norm, mirrored=mirrored),
        head=model.lm_head.weight.detach().t(),
    )


def fuse_layers(
    config: Any, layers: Iterable[Any], windows: Sequence[int | None], *, mirrored: bool
) -> tuple[FusedLayer, ...]:
    """Join the weights of layers in place; a layer whose norm is an Identity does not normalize."""
    fused = []
    for layer, window in zip(layers, windows, strict=True):
        attention, mlp, first = layer.self_attn, layer.mlp, layer.input_layernorm
        qkv, gate_up = _joinable_linears(layer)
        fused.append(
            FusedLayer(
                input_norm=None if type(first) is nn.Identity else _norm(first, mirrored=mirrored),
                qkv=_join([linear.weight for linear in qkv]).t(),
                qkv_bias=_join_biases(qkv),
                head_norm=_head_norm(config, attention),
                output=attention.o_proj.weight.detach().t(),
                output_bias=_join_biases([attention.o_proj]),
                mlp_norm=_norm(layer.post_attention_layernorm, mirrored=mirrored),
                gate_up=_join([linear.weight for linear in gate_up]).t(),
                gate_up_bias=_join_biases(gate_up),
                down=mlp.down_proj.weight.detach().t(),
                down_bias=_join_biases([mlp.down_proj]),
                window=window,
            )
        )
        if attention.o_proj.weight.is_cuda:
            # The next joined matrices do not fit where the separate ones of this layer were.
            torch.cuda.empty_cache()
    return tuple(fused)


def without_queries(layer: FusedLayer, num_queries: int) -> FusedLayer:
    """The part of a layer that makes keys and values, without the first `num_queries` heads."""
    width = len(layer.output)  # of all query heads
    return layer._replace(
        qkv=layer.qkv[:, width:],
        qkv_bias=None if layer.qkv_bias is None else layer.qkv_bias[width:],
        head_norm=None if layer.head_norm is None else layer.head_norm[num_queries:],
    )


def _joinable_linears(layer: Any) -> tuple[list[Any], list[Any]]:
    """The groups of linear layers that read the same input, and so become one product each."""
    attention, mlp = layer.self_attn, layer.mlp
    return (
        [attention.q_proj, attention.k_proj, attention.v_proj],
        [mlp.gate_proj, mlp.up_proj],
    )


def _linears(layer: Any) -> Iterator[Any]:
    for group in _joinable_linears(layer):
        yield from group
    yield layer.self_attn.o_proj
    yield layer.mlp.down_proj


def _join(parameters: Sequence[nn.Parameter]) -> Tensor:
    """One tensor with all rows of the parameters, which become views of it."""
    first = parameters[0].detach()
    if len(parameters) == 1:
        return first
    sizes = [len(parameter) for parameter in parameters]
    num_elements = sum(parameter.numel() for parameter in parameters)
    if first.untyped_storage().nbytes() == num_elements * first.element_size():
        whole = first.as_strided((sum(sizes), *first.shape[1:]), first.stride(), 0)
        parts = zip(parameters, torch.split(whole, sizes), strict=True)
        if all(parameter.is_set_to(part) for parameter, part in parts):
            return whole
    whole = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, part in zip(parameters, torch.split(whole, sizes), strict=True):
        parameter.data = part
    return whole


def _join_biases(linears: Sequence[Any]) -> Tensor | None:
    if linears[0].bias is None:
        return None
    return _join([linear.bias for linear in linears])


def _norm(norm: Any, *, mirrored: bool) -> Tensor:
    """The norm's weight [F]; if `mirrored`, followed by F zeros, for TorchSteps.norm."""
    weight: Tensor = norm.weight.detach()
    if not mirrored:
        return weight
    size = len(weight)
    if weight.untyped_storage().nbytes() == 2 * size * weight.element_size():
        return weight.as_strided((2 * size,), (1,), 0)
    whole = torch.cat([weight, torch.zeros_like(weight)])
    norm.weight.data = whole[:size]
    return whole


def _head_norm(config: Any, attention: Any) -> Tensor | None:
    if not hasattr(attention, "q_norm"):
        return None
    norms = (
        attention.q_norm.weight.detach().expand(config.num_attention_heads, -1),
        attention.k_norm.weight.detach().expand(config.num_key_value_heads, -1),
    )
    return torch.cat(norms)


def _window(config: Any, attention: Any) -> int | None:
    """The window of the model (Mistral) or the layer (Qwen), in tokens; None: no limit."""
    is_windowed = config.model_type == "mistral" or getattr(attention, "sliding_window", None)
    window: int | None = config.sliding_window if is_windowed else None
    return window
