"""The common part of heads made of decoder layers: their config, modules, weights and embedding.

The layers are those of Llama or Qwen 3 in transformers, for any target. Shape suffixes:
B rows, T tokens, F hidden size, V vocabulary, D the tokens that a head can draft.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from specbench.errors import ModelError, first_line
from specbench.files.config import (
    FULL,
    LAYER_NEEDS,
    SLIDING,
    layer_fields,
    layer_windows,
)
from specbench.files.head_files import MISFIT, OLD_ROTARY, misfits, token_ids
from specbench.forward.layer_stack import LayerStack
from specbench.forward.runner import Runner
from specbench.methods import find_method
from specbench.models.checkpoint import Checkpoint

# Errors that transformers raises if it cannot build layers from a config.
WRONG_CONFIG = (
    *(StrictDataclassError, ValueError, TypeError, LookupError, AttributeError),
    *(ArithmeticError, RuntimeError, NotImplementedError, ImportError),
)
Embed = Callable[[Tensor], Tensor]

_OPTIONAL = (
    *("num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "num_hidden_layers"),
    *("max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters", "mlp_bias"),
)


def layer_config(checkpoint: Checkpoint) -> Any:
    """The config of a head's layers, also from a checkpoint of speculators. ModelError if a field
    is missing or the config is invalid."""
    given = layer_fields(checkpoint.fields)
    fields = {name: given.values[name] for name in (*LAYER_NEEDS, *_OPTIONAL) if given.has(name)}
    make = Qwen3Config if given.text("model_type") == "qwen3" else LlamaConfig
    try:
        config = make(**{"num_hidden_layers": 1, **fields})
    except WRONG_CONFIG as error:
        raise ModelError(
            f"{checkpoint.source}: its config is wrong: {first_line(error)}"
        ) from error
    windows = layer_windows(given)
    config.layer_types = [SLIDING if window else FULL for window in windows]
    config.sliding_window = next(filter(None, windows), None)
    return config


def fitting(checkpoint: Checkpoint, target: Runner, method: str) -> Checkpoint:
    """A head's checkpoint with the current tensor names of its method; ModelError names every field
    that does not fit the target, as `pair` does."""
    facts = find_method(method).head
    assert facts is not None
    checkpoint = checkpoint.renamed(facts.tensor_names)
    if differing := misfits(facts.fit(checkpoint, target)):
        differences = "; ".join(
            f"{name} is {value}, the target's is {wanted}"
            for name, (value, wanted) in differing.items()
        )
        raise ModelError(f"{checkpoint.source}: {differences}: {MISFIT}")
    return checkpoint


def decoder_layer(config: Any, i: int, names: Collection[str], width: int | None = None) -> Any:
    """Decoder layer i, with the attention biases that `names` contains. `width` is the input size
    of its attention, by default the hidden size."""
    layer = (Qwen3DecoderLayer if config.model_type == "qwen3" else LlamaDecoderLayer)(config, i)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        linear = getattr(layer.self_attn, name)
        # Configs of heads have many names for biases; the names of tensors are reliable.
        has_bias = f"layers.{i}.self_attn.{name}.bias" in names
        inputs = linear.in_features if name == "o_proj" else width or linear.in_features
        setattr(layer.self_attn, name, nn.Linear(inputs, linear.out_features, bias=has_bias))
    return layer


def layer_stack(config: Any, layers: nn.ModuleList, target: Runner) -> LayerStack:
    """The layers with their own slots and the config's rotary embedding; ModelError if that is
    unknown."""
    try:
        rotary = LlamaRotaryEmbedding(config).to(target.device)
    except WRONG_CONFIG as error:
        raise ModelError(
            f"a head's config is wrong: rope_parameters are {config.rope_parameters}: "
            f"{first_line(error)}"
        ) from error
    windows = [config.sliding_window if kind == SLIDING else None for kind in config.layer_types]
    return LayerStack(config, list(layers), rotary, target, windows)


def shapes_of(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def load(
    module: nn.Module, checkpoint: Checkpoint, target: Runner, separate: Collection[str]
) -> dict[str, Tensor]:
    """Load a checkpoint into a module without weights; return the tensors named in `separate`.

    Tensors whose device and dtype are already the target's are not copied.
    """
    tensors = {
        name: tensor.to(target.device, target.dtype if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in checkpoint.without(OLD_ROTARY).tensors.items()
    }
    taken = {name: tensors.pop(name) for name in separate if name in tensors}
    module.load_state_dict(tensors, assign=True)
    module.requires_grad_(False).eval()
    return taken


def token_embedding(target: Runner, weight_VF: Tensor | None) -> Embed:
    """The head's own embedding, or the target's if the head has none or an equal copy."""
    if weight_VF is None or _is_targets(target, weight_VF):
        return target.embed
    return partial(embedding, weight=weight_VF)


def token_table(checkpoint: Checkpoint, D: int, target: Runner) -> Tensor | None:
    """The target's ids [D] of the tokens that a head can draft; None if it can draft all V."""
    ids = token_ids(checkpoint, D, target.vocab_size)
    return None if ids is None else torch.tensor(ids, device=target.device)


def to_target_vocab(logits_BTD: Tensor, target_ids_D: Tensor | None, V: int) -> Tensor:
    """Logits over the target's vocabulary [B, T, V]; -inf for tokens that a head cannot draft."""
    if target_ids_D is None:
        return logits_BTD
    none_BTV = logits_BTD.new_full((*logits_BTD.shape[:2], V), -torch.inf)
    return none_BTV.index_copy(-1, target_ids_D, logits_BTD)


def weights_of(module: nn.Module, embed: Embed) -> tuple[Tensor, ...]:
    """A head's own tensors: those of its module, and its embedding if it has one."""
    embedding = (embed.keywords["weight"],) if isinstance(embed, partial) else ()
    return (*tensors_of(module), *embedding)


def tensors_of(*modules: nn.Module) -> tuple[Tensor, ...]:
    """All parameters and buffers of the modules."""
    return tuple(t for module in modules for t in (*module.parameters(), *module.buffers()))


def output_weights(target: Runner) -> tuple[Tensor, ...]:
    """The tensors that `target.logits` reads."""
    return tensors_of(target.model.get_output_embeddings())


@torch.no_grad()
def _is_targets(target: Runner, weight_VF: Tensor) -> bool:
    if weight_VF.shape[1] != target.hidden_size:
        return False
    ids_1V = torch.arange(len(weight_VF), device=weight_VF.device)[None]
    pieces = (slice(start, start + 4096) for start in range(0, len(weight_VF), 4096))
    return all(torch.equal(target.embed(ids_1V[:, p])[0], weight_VF[p]) for p in pieces)


def new_layer_fields(config: Any, architecture: str) -> dict[str, Any]:
    """The config of a new head with one layer, as wide as the layers of a target with `config`.

    Servers recognize the head by the class name `architecture`.
    """
    text = config.get_text_config()
    heads = text.num_attention_heads
    rope = getattr(text, "rope_parameters", None) or {}
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "vocab_size": text.vocab_size,
        "hidden_size": text.hidden_size,
        "intermediate_size": getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(text, "num_key_value_heads", None) or heads,
        "head_dim": getattr(text, "head_dim", None) or text.hidden_size // heads,
        "hidden_act": "silu",
        "rms_norm_eps": getattr(text, "rms_norm_eps", None) or 1e-5,
        "max_position_embeddings": getattr(text, "max_position_embeddings", None) or 2048,
        "rope_theta": rope.get("rope_theta") or 10_000.0,
        "tie_word_embeddings": False,
        "initializer_range": getattr(text, "initializer_range", None) or 0.02,
    }


def random_weights(module: nn.Module, seed: int, deviation: float) -> dict[str, Tensor]:
    """Normally distributed weights for a module that has none; the weights of norms are 1."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return {
        name: torch.ones(shape, device="cpu")
        if "norm" in name
        else torch.randn(shape, generator=generator, device="cpu") * deviation
        for name, shape in shapes_of(module).items()
    }
