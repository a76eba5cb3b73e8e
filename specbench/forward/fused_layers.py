"""Decoder layers of the Llama family in few operations, over their own slots.

A small model spends its time on launching operations, not on arithmetic. So a layer here has four
matrix products, attention, and a dozen small operations in place, on tensors and views that are
made once. The small operations are torch's own, or Triton kernels with a third of the launches.
Shape suffixes: B rows, T new tokens, N = B * T, S slots, F hidden size, M width of the MLP,
D head size, P positions, W input size of the first product.
"""

from collections.abc import Callable, Sequence
from copy import copy
from importlib import import_module
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import silu

from specbench.errors import ModelError
from specbench.footprint import KEPT_TOKENS, Sizes
from specbench.forward.attention.candidates import Kernels, usual_kernels
from specbench.forward.attention.implementations import AttentionInputs, AttentionShape
from specbench.forward.attention.stock import causal_attention
from specbench.forward.fused_weights import FusedLayer, without_queries
from specbench.forward.kernels.availability import triton_failure
from specbench.forward.tree import Branches
from specbench.forward.workspace import CacheView, JoinedCache, LayerKV, LayerSlots, Workspace


class TorchSteps:
    """The operations of a layer except attention, over a workspace, by torch's own operations.

    Each step returns the hidden state [N, F], which may be a view of the workspace. `mirrored`
    computes RMS norms as layer norms, for devices on which only a layer norm is a single kernel.
    """

    name = "torch"

    def __init__(self, sizes: Sizes, eps: float, *, mirrored: bool) -> None:
        self._sizes, self._eps, self._mirrored = sizes, eps, mirrored
        self._normed = ((2 if mirrored else 1) * sizes.hidden,)

    def places(self, rope_P: Tensor, positions_N: Tensor, slots_N: Tensor) -> Any:
        """The slot and the rotation of each token, computed once per forward."""
        return slots_N, self.rotations(rope_P, positions_N)

    def embed(self, work: Workspace, embedding: Tensor, tokens_N: Tensor) -> Tensor:
        """The first hidden state: the embedding of the tokens."""
        return torch.index_select(embedding, 0, tokens_N, out=work.hidden)

    def before_attention(
        self,
        work: Workspace,
        hidden: Tensor,
        layer: FusedLayer,
        kv: LayerKV,
        places: Any,
        entry: Tensor | None = None,
    ) -> None:
        """Write queries to `work.qkv`, and keys and values to their slots.

        `entry` [N, W] is read instead of the normed hidden state, if given.
        """
        if entry is None:
            weight = layer.input_norm
            entry = hidden if weight is None else self.norm(work, hidden, weight)
        _product(entry, layer.qkv, layer.qkv_bias, work.qkv)
        self.rotate_and_store(work, layer, kv, *places)

    def after_attention(
        self, work: Workspace, hidden: Tensor, layer: FusedLayer, *, lasts: bool = False
    ) -> Tensor:
        """The next hidden state, from `hidden` and the attention output in `work.joined`; if it
        `lasts`, later layers and forwards do not overwrite it."""
        hidden = _add_product(hidden, work.joined, layer.output, layer.output_bias, work.hidden)
        normed = self.norm(work, hidden, layer.mlp_norm)
        _product(normed, layer.gate_up, layer.gate_up_bias, work.gate_up)
        out = None if lasts else work.hidden
        return _add_product(hidden, self.gate(work), layer.down, layer.down_bias, out)

    def write_keys(
        self, work: Workspace, x_NF: Tensor, layer: FusedLayer, kv: LayerKV, places: Any
    ) -> None:
        """Write the keys and values that a layer without queries makes of unnormalized states."""
        _product(x_NF, layer.qkv, layer.qkv_bias, work.qkv)
        self.rotate_and_store(work, layer, kv, *places)

    def rotations(self, rope_P: Tensor, positions_N: Tensor) -> Sequence[Tensor]:
        """Cosines and signed sines of each token's position."""
        return rope_P.index_select(0, positions_N).unbind(1)

    def rotate_and_store(
        self,
        work: Workspace,
        layer: FusedLayer,
        kv: LayerKV,
        slots_N: Tensor,
        rotations: Sequence[Tensor],
    ) -> None:
        """Rotate the heads of `work.qkv`, and write keys and values to the slots."""
        if layer.head_norm is not None:
            torch.mul(self._unit_heads(work.heads), layer.head_norm, out=work.heads)
        cos, sin = rotations
        swapped = work.halves.flip(2)
        work.halves.mul_(cos).addcmul_(swapped, sin)
        kv.buffer.index_copy_(0, slots_N, work.new_kv)

    def norm(self, work: Workspace, hidden: Tensor, weight: Tensor) -> Tensor:
        """The RMS norm of a hidden state [N, F].

        [x, -x] has mean 0 and variance mean(x ** 2), so its layer norm, a single kernel on a CPU,
        contains the RMS norm of x.
        """
        if not self._mirrored:
            return torch.rms_norm(hidden, self._normed, weight, self._eps)
        if hidden is not work.hidden:
            work.hidden.copy_(hidden)
        torch.neg(work.hidden, out=work.mirror)
        both = torch.layer_norm(work.pair, self._normed, weight, None, self._eps)
        return both.as_strided(*work.layout)  # the same as a slice, at a third of the cost

    def gate(self, work: Workspace) -> Tensor:
        """silu(gate) * up [N, M]."""
        return silu(work.gate, inplace=True).mul_(work.up)

    def _unit_heads(self, heads: Tensor) -> Tensor:
        """The RMS norm of each head, without weights."""
        D = self._sizes.head
        if not self._mirrored:
            return torch.rms_norm(heads, (D,), None, self._eps)
        pair = torch.cat((heads, -heads), -1)
        return torch.layer_norm(pair, (2 * D,), None, None, self._eps)[..., :D]


class TritonSteps(TorchSteps):
    """The same operations by two Triton kernels, except norms, which are single torch kernels."""

    name = "triton"

    def __init__(self, sizes: Sizes, eps: float) -> None:
        super().__init__(sizes, eps, mirrored=False)
        kernels = import_module("specbench.forward.kernels.layer_steps")
        self._rotary, self._gate = kernels.turn_and_keep, kernels.gate

    def rotations(self, rope_P: Tensor, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        return rope_P, positions_N

    def rotate_and_store(
        self,
        work: Workspace,
        layer: FusedLayer,
        kv: LayerKV,
        slots_N: Tensor,
        rotations: Sequence[Tensor],
    ) -> None:
        self._rotary(
            work.qkv,
            kv.buffer,
            rotations[0],
            layer.head_norm,
            rotations[1],
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
    """total + x @ matrix + bias in `out`, which may be `total`; None: in a new tensor."""
    # In place is 3% to 5% faster on a CPU than writing to `out`, with the same result.
    out = total.addmm_(x, matrix) if out is total else torch.addmm(total, x, matrix, out=out)
    if bias is not None:
        out.add_(bias)
    return out


_MAX_SHAPES = 256
Attend = Callable[[Workspace, LayerKV, Any], None]


def is_mirrored(device: torch.device) -> bool:
    """Whether RMS norms are computed as layer norms (TorchSteps.norm): for an RMS norm, torch needs
    one kernel on a GPU, but ten on a CPU."""
    return device.type == "cpu"


class FusedLayers:
    """A model's or a head's layers, with the joined weights of fused_weights.py.

    `rotary` returns cosines and sines for states and positions; positions after `last_position`
    use its values. The next forward overwrites all states that are not explicitly kept.
    """

    def __init__(
        self,
        layers: tuple[FusedLayer, ...],
        config: Any,
        rotary: Any,
        *,
        mirrored: bool,
        last_position: int | None = None,
    ) -> None:
        first = layers[0]
        self.layers = layers
        self.device, self.dtype = first.output.device, first.output.dtype
        self.sizes = Sizes(
            hidden=first.output.shape[1],
            query_heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head=first.output.shape[0] // config.num_attention_heads,
            mlp=first.down.shape[0],
        )
        self.eps: float = config.rms_norm_eps
        self.kernels: Kernels = usual_kernels()
        self.steps = TorchSteps(self.sizes, self.eps, mirrored=mirrored)
        self.slots = LayerSlots(JoinedCache(0, 0, ()), torch.empty(0))
        self._rotary, self._last_position = rotary, last_position
        self._mirrored = mirrored
        self._windows = {layer.window for layer in layers}
        self._key_layers = [without_queries(layer, self.sizes.query_heads) for layer in layers]
        self._scratch = self._new_scratch(KEPT_TOKENS)
        self._workspaces: dict[tuple[int, int, bool], Workspace] = {}
        self._views: dict[tuple[int, int, int], CacheView] = {}

    @property
    def cache(self) -> JoinedCache:
        return self.slots.cache

    def allocate(self, num_rows: int, max_len: int) -> None:
        """Make the cache at least this large; a larger one is reused, as stale slots are masked."""
        rows, length = max(num_rows, self.cache.num_rows), max(max_len, self.cache.max_len)
        if (rows, length) == (self.cache.num_rows, self.cache.max_len):
            return
        self.release()  # so that the old and the new cache never coexist
        width = 2 * self.sizes.kv_heads * self.sizes.head
        # Tensors that were made in inference mode could not be written outside of it.
        with torch.inference_mode(False), torch.no_grad():
            layers = [
                torch.zeros(rows * length, width, dtype=self.dtype, device=self.device)
                for _ in self._key_layers  # of all layers, even if only the first ones run
            ]
            self.slots.cache = JoinedCache(rows, length, layers)
            self.slots.rope = self._rope_table(length)

    def release(self) -> None:
        """Free the memory of all rows."""
        self._views.clear()
        self.slots.cache = JoinedCache(0, 0, ())

    @property
    def cases(self) -> tuple[AttentionShape, ...]:
        """The shapes for which implementations of attention are chosen."""
        return tuple(
            AttentionShape(
                device=self.device,
                dtype=self.dtype,
                query_heads=self.sizes.query_heads,
                kv_heads=self.sizes.kv_heads,
                head_size=self.sizes.head,
                window=window,
                is_tree=is_tree,
            )
            for window in sorted(self._windows, key=lambda window: window or 0)
            for is_tree in (False, True)
        )

    def with_triton(self) -> Self:
        """The same layers over the same slots, with TritonSteps; ModelError if they cannot run."""
        if reason := triton_failure(self.device):
            raise ModelError(reason)
        other = copy(self)
        other.steps = TritonSteps(self.sizes, self.eps)
        return other

    def first(self, num_layers: int) -> Self:
        """The first layers over the same slots."""
        first = copy(self)
        first.layers = self.layers[:num_layers]
        return first

    def workspace(self, B: int, T: int, *, has_queries: bool = True) -> Workspace:
        """The workspace for B rows and T tokens; without queries for `write_kv`."""
        known = self._workspaces.get((B, T, has_queries))
        if known is not None:
            return known
        is_kept = B * T <= KEPT_TOKENS
        sizes = self.sizes if has_queries else self.sizes._replace(query_heads=0)
        with torch.inference_mode(False):
            scratch = self._scratch if is_kept else self._new_scratch(B * T)
            made = Workspace(sizes, scratch, B, T, mirrored=self._mirrored)
        if is_kept:
            _remember(self._workspaces, (B, T, has_queries), made)
        return made

    def forward(
        self,
        work: Workspace,
        x_NF: Tensor,
        positions_BT: Tensor,
        span: int,
        *,
        first_row: int = 0,
        branches: Branches | None = None,
        is_plain: bool = False,
        entry_NW: Tensor | None = None,
        features: Sequence[int] = (),
        only: int | None = None,
        windows_from_BT: Tensor | None = None,
        is_kept: bool = False,
    ) -> dict[int, Tensor]:
        """States [N, F] by number: those of `features`, and the last.

        State 0 is `x_NF`, state i the output of layer i - 1. If `is_kept`, the next forward does
        not overwrite the last one. `work` is the workspace of B rows and T tokens, whose hidden
        state may be `x_NF`. The first product reads `entry_NW`, if given, instead of the normed
        `x_NF`. `is_plain`: the tokens are the last of the span in every row. `only` runs just that
        layer. `windows_from_BT` is as in LayerStack.forward, the rest as in Runner.forward.
        """
        view = self.view(len(positions_BT), span, first_row)
        places = self._places(positions_BT, view, first_row, branches)
        # Lookups are hoisted out of the loop over layers to save Python time.
        attends: dict[int | None, tuple[Attend, Any]] = {None: (_attend_causally, None)}
        from_BT = positions_BT if windows_from_BT is None else windows_from_BT
        for window in self._windows - {None} if is_plain else self._windows:
            kernel = self.kernels[window, branches is not None]
            inputs = AttentionInputs(from_BT, view, self.sizes, self.dtype, window, branches)
            attends[window] = kernel.attend, kernel.build_metadata(inputs)

        states: dict[int, Tensor] = {}
        numbers = range(len(self.layers)) if only is None else (only,)  # the cache may have more
        hidden, lasting = x_NF, numbers[-1] if is_kept else None
        before_attention, after_attention = self.steps.before_attention, self.steps.after_attention
        for i in numbers:
            layer, kv = self.layers[i], view.layers[i]
            if i in features:
                states[i] = hidden.clone()
            before_attention(work, hidden, layer, kv, places, entry_NW)
            attend, metadata = attends[layer.window]
            attend(work, kv, metadata)
            hidden, entry_NW = after_attention(work, hidden, layer, lasts=i == lasting), None
        states[i + 1] = hidden
        return states

    def write_kv(
        self, x_NF: Tensor, positions_BT: Tensor, span: int, *, first_row: int = 0
    ) -> None:
        """Write the keys and values that every layer makes of the same unnormalized states."""
        B, T = positions_BT.shape
        work = self.workspace(B, T, has_queries=False)
        view = self.view(B, span, first_row)
        places = self._places(positions_BT, view, first_row, None)
        for layer, kv in zip(self._key_layers, view.layers, strict=True):
            self.steps.write_keys(work, x_NF, layer, kv, places)

    def _places(
        self, positions_BT: Tensor, view: CacheView, first_row: int, branches: Branches | None
    ) -> Any:
        """The slot and the rotation of each token, as the steps take them."""
        slots_BT = positions_BT if branches is None else branches.slots_BT
        if len(slots_BT) > 1 or first_row:
            slots_BT = slots_BT + view.first_slot_B1
        return self.steps.places(self.slots.rope, positions_BT.reshape(-1), slots_BT.reshape(-1))

    def _rope_table(self, length: int) -> Tensor:
        """Cosines and signed sines by position, [length, 2, 1, 2, D / 2].

        x * cos + swapped halves of x * sin rotates a head x. Positions past the last one repeat
        its values.
        """
        positions_1P = torch.arange(length, device=self.device)[None]
        if self._last_position is not None:
            positions_1P = positions_1P.clamp(max=self._last_position)
        cos, sin = self._rotary(self.layers[0].output, positions_1P)
        first, second = sin.chunk(2, -1)
        sin = torch.cat((-first, second), -1)
        return torch.stack((cos[0], sin[0]), 1).view(length, 2, 1, 2, -1)

    def view(self, B: int, span: int, first_row: int) -> CacheView:
        """The first `span` slots of B rows, starting at `first_row`."""
        known = self._views.get((B, span, first_row))
        if known is not None:
            return known
        with torch.inference_mode(False):
            made = self.cache.view(B, span, first_row, self.sizes)
        _remember(self._views, (B, span, first_row), made)
        return made

    def _new_scratch(self, num_tokens: int) -> Tensor:
        width = sum(self.sizes.widths(mirrored=self._mirrored))
        with torch.inference_mode(False):
            return torch.empty(num_tokens * width, dtype=self.dtype, device=self.device)


def _remember(known: dict[Any, Any], key: Any, made: Any) -> None:
    """Add an entry to a cache, which is emptied if it is full."""
    if len(known) >= _MAX_SHAPES:
        known.clear()
    known[key] = made


def _attend_causally(work: Workspace, kv: LayerKV, _: None) -> None:
    """Causal attention without a mask, for tokens that are the last of the slots."""
    out = causal_attention(work.unpacked.flatten(1, 2), kv.keys, kv.values)
    work.spread.copy_(out.reshape(work.spread.shape))
