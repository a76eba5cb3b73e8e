"""What a fused layer computes beside its attention: products, and small operations between them.

In torch's own operations anywhere, or the small ones in Triton kernels in a third of the launches.
Shape suffixes: N tokens, F hidden size, M width of the MLP, D head size, P positions,
W what a first product reads.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import silu

from specbench.footprint import Sizes
from specbench.forward.fused_weights import FusedLayer
from specbench.forward.workspace import Kept, Workspace


class LayerSteps(Protocol):
    """What a layer computes beside its attention, over a workspace.

    The hidden state [N, F] is handed from step to step: it may be the workspace's own or not.
    """

    name: str

    def places(self, rope_P: Tensor, positions_N: Tensor, slots_N: Tensor) -> Any:
        """How far each token's heads are turned, and its slot; made once a forward."""
        ...

    def embed(self, work: Workspace, embedding: Tensor, tokens_N: Tensor) -> Tensor:
        """The first hidden state."""
        ...

    def before_attention(
        self,
        work: Workspace,
        hidden: Tensor,
        layer: FusedLayer,
        kept: Kept,
        places: Any,
        entry: Tensor | None = None,
    ) -> None:
        """Write queries to `work.qkv`, and keys and values to their slots.

        `entry` [N, W] is read instead of the normed hidden state where there is one.
        """
        ...

    def after_attention(
        self, work: Workspace, hidden: Tensor, layer: FusedLayer, *, lasts: bool = False
    ) -> Tensor:
        """The next hidden state, of this one and of `work.joined`; one that `lasts` is not
        overwritten by what comes after."""
        ...

    def keys_alone(
        self, work: Workspace, x_NF: Tensor, layer: FusedLayer, kept: Kept, places: Any
    ) -> None:
        """Write the keys and values that a layer without queries makes of states as they are."""
        ...

    def final_norm(self, work: Workspace, hidden: Tensor, weight: Tensor) -> Tensor:
        """The RMS norm after the last layer [N, F]."""
        ...


class TorchSteps:
    """Torch's operations; `mirrored` where a layer norm is one kernel and an RMS norm is not."""

    name = "torch"

    def __init__(self, sizes: Sizes, eps: float, *, mirrored: bool) -> None:
        self._sizes, self._eps, self._mirrored = sizes, eps, mirrored
        self._normed = ((2 if mirrored else 1) * sizes.hidden,)

    def places(self, rope_P: Tensor, positions_N: Tensor, slots_N: Tensor) -> Any:
        return slots_N, self.turns(rope_P, positions_N)

    def embed(self, work: Workspace, embedding: Tensor, tokens_N: Tensor) -> Tensor:
        return torch.index_select(embedding, 0, tokens_N, out=work.hidden)

    def before_attention(
        self,
        work: Workspace,
        hidden: Tensor,
        layer: FusedLayer,
        kept: Kept,
        places: Any,
        entry: Tensor | None = None,
    ) -> None:
        if entry is None:
            weight = layer.input_norm
            entry = hidden if weight is None else self.norm(work, hidden, weight)
        _product(entry, layer.qkv, layer.qkv_bias, work.qkv)
        self.keep(work, layer, kept, *places)

    def after_attention(
        self, work: Workspace, hidden: Tensor, layer: FusedLayer, *, lasts: bool = False
    ) -> Tensor:
        hidden = _add_product(hidden, work.joined, layer.output, layer.output_bias, work.hidden)
        normed = self.norm(work, hidden, layer.mlp_norm)
        _product(normed, layer.gate_up, layer.gate_up_bias, work.gate_up)
        out = None if lasts else work.hidden
        return _add_product(hidden, self.gate(work), layer.down, layer.down_bias, out)

    def keys_alone(
        self, work: Workspace, x_NF: Tensor, layer: FusedLayer, kept: Kept, places: Any
    ) -> None:
        _product(x_NF, layer.qkv, layer.qkv_bias, work.qkv)
        self.keep(work, layer, kept, *places)

    def final_norm(self, work: Workspace, hidden: Tensor, weight: Tensor) -> Tensor:
        return self.norm(work, hidden, weight)

    def turns(self, rope_P: Tensor, positions_N: Tensor) -> Sequence[Tensor]:
        """How far each token's heads are turned."""
        return rope_P.index_select(0, positions_N).unbind(1)

    def keep(
        self,
        work: Workspace,
        layer: FusedLayer,
        kept: Kept,
        slots_N: Tensor,
        turns: Sequence[Tensor],
    ) -> None:
        """Turn the heads of `work.qkv` and write keys and values to the slots."""
        if layer.head_norm is not None:
            torch.mul(self._unit_heads(work.heads), layer.head_norm, out=work.heads)
        cos, sin = turns
        swapped = work.halves.flip(2)
        work.halves.mul_(cos).addcmul_(swapped, sin)
        kept.buffer.index_copy_(0, slots_N, work.new_kv)

    def norm(self, work: Workspace, hidden: Tensor, weight: Tensor) -> Tensor:
        """The RMS norm of a hidden state [N, F].

        [x, -x] has mean 0 and the variance mean(x ** 2): its layer norm, which is one kernel on a
        CPU, is an RMS norm of x.
        """
        if not self._mirrored:
            return torch.rms_norm(hidden, self._normed, weight, self._eps)
        if hidden is not work.hidden:
            work.hidden.copy_(hidden)
        torch.neg(work.hidden, out=work.mirror)
        both = torch.layer_norm(work.pair, self._normed, weight, None, self._eps)
        return both.as_strided(*work.layout)  # a slice, at a third of its cost

    def gate(self, work: Workspace) -> Tensor:
        """silu(gate) * up [N, M]."""
        return silu(work.gate, inplace=True).mul_(work.up)

    def _unit_heads(self, heads: Tensor) -> Tensor:
        """The RMS norm of each head, without a weight."""
        D = self._sizes.head
        if not self._mirrored:
            return torch.rms_norm(heads, (D,), None, self._eps)
        pair = torch.cat((heads, -heads), -1)
        return torch.layer_norm(pair, (2 * D,), None, None, self._eps)[..., :D]


class TritonSteps(TorchSteps):
    """Two kernels of our own for all but the norms, each of which is one of torch's."""

    name = "triton"

    def __init__(self, sizes: Sizes, eps: float) -> None:
        super().__init__(sizes, eps, mirrored=False)
        self._rotary = import_module("specbench.forward.kernels.rotary").turn_and_keep
        self._gate = import_module("specbench.forward.kernels.gated").gate

    def turns(self, rope_P: Tensor, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        return rope_P, positions_N

    def keep(
        self,
        work: Workspace,
        layer: FusedLayer,
        kept: Kept,
        slots_N: Tensor,
        turns: Sequence[Tensor],
    ) -> None:
        self._rotary(
            work.qkv,
            kept.buffer,
            turns[0],
            layer.head_norm,
            turns[1],
            slots_N,
            work.sizes.query_heads,
            work.sizes.head,
            self._eps,
        )

    def gate(self, work: Workspace) -> Tensor:
        self._gate(work.gate_up)
        return work.gate


def _product(x: Tensor, matrix: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """out = x @ matrix + bias"""
    if bias is None:
        torch.mm(x, matrix, out=out)
    else:
        torch.addmm(bias, x, matrix, out=out)


def _add_product(
    total: Tensor, x: Tensor, matrix: Tensor, bias: Tensor | None, out: Tensor | None
) -> Tensor:
    """total + x @ matrix + bias in `out`, which may be `total`; None: in a tensor of its own."""
    # In place it is 3 to 5 % faster on a CPU than into `out`, though both write the same.
    out = total.addmm_(x, matrix) if out is total else torch.addmm(total, x, matrix, out=out)
    if bias is not None:
        out.add_(bias)
    return out
