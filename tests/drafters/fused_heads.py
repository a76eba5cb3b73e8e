"""Every kind of head whose layers can run fused, with biases and norms that matter."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.drafters.registry import build_drafter, drafter_class
from specbench.forward.runner import Runner
from specbench.forward.tree import Branches, ancestors_of
from specbench.models.checkpoint import Checkpoint
from tests.decoding.lossless import parts_of
from tests.drafters.changed_heads import with_config, with_tensors

SPAN = 64
Change = Callable[[Checkpoint], Checkpoint]


class Kind(NamedTuple):
    method: str
    options: Mapping[str, Any] = MappingProxyType({})  # of a new head
    change: Change = lambda checkpoint: checkpoint


def qwen3(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with layers of Qwen 3, which have head norms."""
    size = checkpoint.config["head_dim"]
    norms = {f"layers__0__self_attn__{name}__weight": torch.ones(size) for name in NORMS}
    return with_config(with_tensors(checkpoint, **norms), model_type="qwen3")


def biased(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with biases in attention, as some heads' files have them."""
    attention = "layers.0.self_attn."
    biases = {
        name.replace("weight", "bias").replace(".", "__"): torch.zeros(len(tensor))
        for name, tensor in checkpoint.tensors.items()
        if name.startswith(attention)
    }
    return with_tensors(checkpoint, **biases)


def with_two_layers(checkpoint: Checkpoint) -> Checkpoint:
    """The second layer is like the first, but its norm comes before attention as usual."""
    first = "layers.0."
    first_layer = {n: t for n, t in checkpoint.tensors.items() if n.startswith(first)}
    tensors = {n.replace(first, "layers.1."): t.flip(0) for n, t in first_layer.items()}
    size = checkpoint.config["hidden_size"]
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = tensors[f"layers.1.self_attn.{name}.weight"]
        tensors[f"layers.1.self_attn.{name}.weight"] = weight[:, :size].clone()
    tensors.pop("layers.1.hidden_norm.weight", None)
    tensors["layers.1.input_layernorm.weight"] = torch.ones(size)
    changed = replace(checkpoint, tensors={**checkpoint.tensors, **tensors})
    return with_config(changed, num_hidden_layers=2)


def with_a_window(checkpoint: Checkpoint) -> Checkpoint:
    """The first layer sees 5 tokens."""
    kinds = ["sliding_attention", "full_attention"]
    count = checkpoint.config["num_hidden_layers"]
    return with_config(checkpoint, layer_types=kinds[:count], sliding_window=5)


NORMS = ("q_norm", "k_norm")
KINDS = {
    "eagle": Kind("eagle"),
    "eagle, head norms": Kind("eagle", change=qwen3),
    "eagle, two layers": Kind("eagle", change=with_two_layers),
    "eagle, window": Kind("eagle", change=with_a_window),
    "eagle3": Kind("eagle3"),
    "eagle3, biases": Kind("eagle3", change=biased),
    "eagle3, norm before residual": Kind(
        "eagle3", {"norm_before_residual": True, "norm_output": True, "fc_norm": True}
    ),
    "eagle3, two layers": Kind("eagle3", change=with_two_layers),
    "mtp": Kind("mtp"),
    "peagle": Kind("peagle"),
    "dflash": Kind("dflash", {"num_layers": 2}),
    "dflash, one window": Kind("dflash", {"num_layers": 2}, with_a_window),
}


def checkpoint_of(kind: Kind, target: Runner, seed: int = 0) -> Checkpoint:
    """Norms and biases differ from their initial ones and zeros, and attention is sharper."""
    made = drafter_class(kind.method).new_checkpoint(target.model.config, 1, **kind.options)
    made = kind.change(made)
    generator = torch.Generator("cpu").manual_seed(seed)
    sharper = 1 if kind.method == "eagle" else 2  # its attention inputs had no norm before

    def drawn(name: str, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        noise = torch.randn(tensor.shape, generator=generator)
        if tensor.ndim == 1:
            return tensor + 0.3 * noise
        return sharper * tensor if name.endswith(("q_proj.weight", "k_proj.weight")) else tensor

    tensors = {name: drawn(name, tensor) for name, tensor in sorted(made.tensors.items())}
    return replace(made, tensors=tensors)


def head_of(kind: Kind, target: Runner, *, is_stock: bool) -> Any:
    """The head's model code over layers that run fused, or as transformers has them."""
    parts = parts_of(target, checkpoint=checkpoint_of(kind, target))
    head = build_drafter(kind.method, parts, {}).head
    if is_stock:
        head.layers.run_stock("it is compared with")
    return head


def logits_over_slots(head: Any) -> Tensor:
    """Logits of two ragged rows, the last two of three: known tokens, wrong ones, a tree."""
    generator = torch.Generator("cpu").manual_seed(3)
    head.layers.allocate(3, SPAN)
    at_T = torch.arange(SPAN)
    starts_B1 = torch.tensor([[6], [4]])

    def drawn(T: int, size: int) -> Tensor:
        return torch.randn(2, T, size, generator=generator).to(head_dtype(head))

    def tokens(T: int) -> Tensor:
        return torch.randint(0, 60, (2, T), generator=generator)

    if hasattr(head, "add_context"):
        size = head.layers.layers[0].self_attn.o_proj.out_features
        for positions in (at_T[:8].expand(2, -1), starts_B1 + at_T[:3]):
            features = tuple(drawn(positions.shape[1], size) for _ in head.features)
            head.add_context(features, positions, SPAN, 1)
        logits: Tensor = head.logits(tokens(1), starts_B1 + 3 + at_T[:4], SPAN, 1)
        return logits

    def step(positions_BT: Tensor, branches: Branches | None = None) -> Tensor:
        T = positions_BT.shape[1]
        fused = head.fuse(tuple(drawn(T, head.feature_size) for _ in head.features))
        states = head.step(tokens(T), fused, positions_BT, SPAN, first_row=1, branches=branches)
        logits: Tensor = head.logits(states)
        return logits

    chain = step(at_T[:8].expand(2, -1)), step(starts_B1 + at_T[:3])
    length_B1 = starts_B1 + 3
    seen_BNN, depths_BN = ancestors_of(torch.tensor([[0, 0, 1], [0, 1, 0]]), 3)
    places_BN = length_B1 + depths_BN
    tree = step(places_BN, Branches(length_B1, length_B1 + at_T[:4], seen_BNN, places_BN))
    return torch.cat([*chain, tree], 1)


def head_dtype(head: Any) -> torch.dtype:
    weight: Tensor = next(iter(head.weights))
    return weight.dtype
