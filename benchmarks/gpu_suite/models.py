"""The models of the suite: made up on the device, so that nothing need be downloaded."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoConfig, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from benchmarks.gpu_suite.machine import Machine
from specbench.drafters.draft_model import DraftModel
from specbench.drafters.registry import Parts
from specbench.engines.model_pool import ModelPool
from specbench.files.model_spec import ModelSpec
from specbench.forward.runner import Runner
from specbench.inputs.pairing import DrafterSpec, Target
from specbench.models.loading import LoadedModel
from specbench.models.weights import fill, make_skeleton
from specbench.shipped import PACKAGE
from specbench.stats.rounds import bytes_per_forward

_SHAPES = PACKAGE / "shapes"
_FAMILIES = {
    "Llama": (LlamaConfig, {}),
    "Mistral": (MistralConfig, {"sliding_window": 24}),
    "Qwen2": (Qwen2Config, {}),
    "Qwen3": (Qwen3Config, {}),
}
FAMILIES = tuple(_FAMILIES)


def shape(name: str, machine: Machine) -> Any:
    """The config of a shape, such as llama-8b; where all is small, a few tiny layers of it."""
    config = AutoConfig.from_pretrained(str(_SHAPES / name))
    if machine.small:
        layers = 2 if name == "llama-1b" else 6
        return _shrink(config, layers=layers, hidden=64, mlp=128, heads=4, kv_heads=2)
    return config


def medium(layers: int, machine: Machine, *, family: str = "Llama") -> Any:
    """The config of a model that is large enough for a GPU's own kernels, and no larger."""
    kind, own = _FAMILIES[family]
    size = 64 if machine.small else 1024
    heads = 4 if machine.small else 16
    return kind(
        vocab_size=512 if machine.small else 32_000,
        hidden_size=size,
        intermediate_size=2 * size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=size // heads,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        **own,
    )


def make_model(config: Any, dtype: torch.dtype, device: torch.device, *, seed: int = 0) -> Any:
    """A model of that config with made-up weights."""
    model = make_skeleton(config, dtype, seed=seed)
    fill(model, device, seed=seed, scheme=None)
    return model.requires_grad_(False).eval()


def make_draft(target: Any, layers: int) -> Any:
    """The target's first layers, its embedding and its head, as a model with its own memory."""
    config = type(target.config)(**target.config.to_dict())
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    draft = make_model(config, target.dtype, target.device)
    own = draft.state_dict()
    draft.load_state_dict({name: v for name, v in target.state_dict().items() if name in own})
    return draft


def agree(target: Any, draft: Any, share: float, *, num_tokens: int = 512) -> tuple[float, float]:
    """Scale down what the target's later layers add until both pick the same token so often.

    Returns the scale and the share of positions of a made-up text in which they then agree.
    Acceptance is real then, and the same whichever engine decodes the pair.
    """
    generator = torch.Generator().manual_seed(1)
    vocab = target.config.vocab_size
    ids_1T = torch.randint(1, vocab, (1, num_tokens), generator=generator).to(target.device)
    with torch.inference_mode():
        guess_1T = draft(input_ids=ids_1T, use_cache=False).logits.argmax(-1)
    later = target.model.layers[draft.config.num_hidden_layers :]
    low, high, scale, agreed = 0.0, 1.0, 1.0, 0.0
    for _ in range(9):
        new = (low + high) / 2
        for layer in later:
            for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
                linear.weight.data.mul_(new / scale)
        scale = new
        with torch.inference_mode():
            own_1T = target(input_ids=ids_1T, use_cache=False).logits.argmax(-1)
        agreed = float((own_1T == guess_1T).float().mean())
        low, high = (scale, high) if agreed > share else (low, scale)
    return scale, agreed


def draft_of(target: Runner, draft: Runner) -> DraftModel:
    """The drafting method over a draft model's runner."""
    return DraftModel(Parts(target=target, draft_runner=lambda: draft), tree=())


def read_bytes(model: Any) -> int:
    """Bytes of weights that a forward reads: all but an embedding table that is looked up."""
    held: dict[int, int] = {p.data_ptr(): p.nbytes for p in model.parameters()}
    table: Tensor = model.get_input_embeddings().weight
    is_tied = table.data_ptr() == model.get_output_embeddings().weight.data_ptr()
    return sum(held.values()) - (0 if is_tied else table.nbytes)


def forward_bytes(model: Any, num_rows: int, context: int) -> int:
    """Bytes that a forward reads: weights, and keys and values of so many tokens a row."""
    config = model.config
    kv = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return bytes_per_forward(read_bytes(model), num_rows, context, kv * model.dtype.itemsize)


class HeldPool(ModelPool):
    """A pool of models that are there already, for both engines over the same weights."""

    def __init__(self, device: torch.device, models: Mapping[ModelSpec, Any]) -> None:
        super().__init__(device)
        self._held = {spec: _loaded(model) for spec, model in models.items()}

    def load(
        self,
        spec: ModelSpec,
        role: Literal["target", "draft"] = "target",  # noqa: ARG002
    ) -> LoadedModel:
        return self._held[spec]

    def release(self, spec: ModelSpec) -> None:
        """It is kept as long as the pool."""


def made_up_pair(target: Any, draft: Any) -> tuple[Target, DrafterSpec, HeldPool]:
    """Two models as the engines take them: named, and on a pool."""
    specs = [ModelSpec(source=f"shape:{name}") for name in ("target", "draft")]
    drafter = DrafterSpec(name="draft", method="draft_model", model=specs[1])
    pool = HeldPool(target.device, dict(zip(specs, (target, draft), strict=True)))
    return Target(name="target", model=specs[0], drafters=(drafter,)), drafter, pool


def random_prompt(num_tokens: int, vocab_size: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(1, vocab_size, (num_tokens,), generator=generator).tolist())


def _loaded(model: Any) -> LoadedModel:
    held = {p.data_ptr(): p.nbytes for p in (*model.parameters(), *model.buffers())}
    return LoadedModel(
        model=model,
        dtype=str(model.dtype).removeprefix("torch."),
        num_parameters=sum(p.numel() for p in model.parameters()),
        weights_bytes=sum(held.values()),
        revision=None,
        content_sha256="made up",
    )


def _shrink(config: Any, *, layers: int, hidden: int, mlp: int, heads: int, kv_heads: int) -> Any:
    config.num_hidden_layers = layers
    config.hidden_size, config.intermediate_size = hidden, mlp
    config.num_attention_heads, config.num_key_value_heads = heads, kv_heads
    config.head_dim = hidden // heads
    config.vocab_size = 512
    return config
