"""Decoder layers of a head over their own slots, whose input are states instead of tokens.

They run fused if possible, as a target's layers do, else by transformers' code, which also runs
over whole texts with gradients. Shape suffixes: B rows, T tokens, F hidden size, W input size of
the first layer's attention, S slots.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb

from specbench.forward.attention import stock
from specbench.forward.attention.masks import additive_mask, visible
from specbench.forward.fused_layers import FusedLayers, is_mirrored
from specbench.forward.fused_weights import fuse_layers, unfused_layers_reason
from specbench.forward.runner import FUSED_TRITON, Runner
from specbench.forward.slot_cache import KvCache, SlotCache
from specbench.forward.tree import Branches
from specbench.library_facts import cache_argument


class WholeTexts:
    """Keys and values of all passes so far over the same texts, concatenated.

    The first pass reads the target's states. Pass u reads states that the head made in u passes, so
    its token at t follows a context that ends at t - u. It attends to the first pass up to t - u
    and to one token of each later pass, as a draft token at depth u does. Source:
    training-time test, Li et al. 2025 (EAGLE-3, arXiv:2503.01840), section 3.2.
    """

    def __init__(self, num_layers: int) -> None:
        self._keys: list[list[Tensor]] = [[] for _ in range(num_layers)]
        self._values: list[list[Tensor]] = [[] for _ in range(num_layers)]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values [B, H, T, D]; return those of all passes, concatenated along T."""
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys.append(key_states)
        values.append(value_states)
        return torch.cat(keys, 2), torch.cat(values, 2)

    def visible_slots(
        self, positions_BT: Tensor, layer: int, first: int, window: int | None = None
    ) -> Tensor:
        """The slots that the next pass of a layer may attend to, bool [1, T, S].

        Positions of the first pass before `first` are hidden.
        """
        T, passes = positions_BT.shape[1], len(self._keys[layer])
        positions_T = torch.arange(T, device=positions_BT.device)
        distance_TT = positions_T[:, None] - positions_T
        masks = [(distance_TT >= passes) & (positions_T >= first)]
        if window is not None:
            masks[0] &= distance_TT < window
        masks += [distance_TT == passes - j for j in range(1, passes + 1)]
        return torch.cat(masks, 1)[None]


class LayerStack:
    """Layers of transformers, or layers whose `self_attn` has the same arguments, and their code.

    Fused layers use the same small operations as the target. They are made at their first use,
    because a head in training runs its modules. The attention implementation of `config` is
    replaced; layer i must have `layer_idx` i. `rotary` returns cosines and sines for states and
    positions. `windows`: how many tokens each layer attends to, with the current one; None: all.
    """

    def __init__(
        self,
        config: Any,
        layers: Sequence[nn.Module],
        rotary: nn.Module,
        target: Runner,
        windows: Sequence[int | None] = (),
    ) -> None:
        config._attn_implementation = stock.NAME
        self.layers, self.windows = layers, tuple(windows) or (None,) * len(layers)
        self._config, self._rotary, self._target = config, rotary, target
        heads = config.num_attention_heads
        self._cache_argument = cache_argument(layers[0].get_submodule("self_attn").forward)
        self._pack: int = heads // (getattr(config, "num_key_value_heads", None) or heads)
        self._slots = SlotCache(0, 0, 0)  # of layers that are not fused
        self._texts: WholeTexts | None = None
        self._fused: FusedLayers | None = None
        self.reason = unfused_layers_reason(config, layers, rotary)  # None: they run fused

    @property
    def fused(self) -> FusedLayers | None:
        """The fused layers that run; None if transformers' own code runs instead."""
        if self._fused is None and self.reason is None:
            target, mirrored = self._target, is_mirrored(self._target.device)
            joined = fuse_layers(self._config, self.layers, self.windows, mirrored=mirrored)
            fused = FusedLayers(joined, self._config, self._rotary, mirrored=mirrored)
            self._fused = fused.with_triton() if target.kind == FUSED_TRITON else fused
        return self._fused

    def run_stock(self, reason: str) -> None:
        """Use transformers' code from now on, for this reason."""
        self.reason, self._fused = reason, None

    def as_stock(self) -> "LayerStack":
        """The same layers with a separate cache, run by transformers' code."""
        other = LayerStack(self._config, self.layers, self._rotary, self._target, self.windows)
        other.run_stock("reference for the fused layers")
        return other

    @property
    def cache(self) -> KvCache:
        """The KV cache; another object after an `allocate` that grew it."""
        return self._slots if self.fused is None else self.fused.cache

    def allocate(self, num_rows: int, max_len: int) -> None:
        """Make the cache at least this large; a larger one is reused, as stale slots are masked."""
        if self.fused is not None:
            self.fused.allocate(num_rows, max_len)
            return
        index = self._slots.index
        if num_rows > index.num_rows or max_len > index.max_len:
            rows, length = max(num_rows, index.num_rows), max(max_len, index.max_len)
            self.release()  # so that the old and the new cache never coexist
            self._slots = SlotCache(len(self.layers), rows, length)

    def release(self) -> None:
        """Free the memory of all rows."""
        if self.fused is not None:
            self.fused.release()
        else:
            self._slots = SlotCache(len(self.layers), 0, 0)

    @contextmanager
    def whole_texts(self) -> Iterator[None]:
        """Within this context, each `forward` is another pass over the same texts, with gradients.

        Every row begins at position 0; `span`, `first_row` and `branches` are ignored.
        """
        self._texts = WholeTexts(len(self.layers))
        try:
            yield
        finally:
            self._texts = None

    def forward(
        self,
        states_BTF: Tensor,
        positions_BT: Tensor,
        span: int,
        *,
        first_row: int = 0,
        branches: Branches | None = None,
        only: int | None = None,
        first_slot: int = 0,
        entry_BTW: Tensor | None = None,
        windows_from_BT: Tensor | None = None,
    ) -> Tensor:
        """The last layer's states [B, T, F]; rows, slots and masks as in Runner.forward.

        `only` runs just that layer. Slots before `first_slot` are empty and masked. The first
        layer's attention reads `entry_BTW`, if given, instead of the normed states. In a tree,
        windows count back from `windows_from_BT`, if given, else from each token's position.
        """
        fused = self.fused if self._texts is None else None
        if fused is not None:
            assert not first_slot, "fused layers see a row from its first slot on"
            B, T = positions_BT.shape
            states = fused.forward(
                fused.workspace(B, T),
                states_BTF.reshape(B * T, -1),
                positions_BT,
                span,
                first_row=first_row,
                branches=branches,
                entry_NW=None if entry_BTW is None else entry_BTW.reshape(B * T, -1),
                only=only,
                windows_from_BT=None if windows_from_BT is None else windows_from_BT.expand(B, T),
                is_kept=True,
            )
            return states[len(self.layers) if only is None else only + 1].view(B, T, -1)
        cache: SlotCache | WholeTexts = self._slots
        layers = range(len(self.layers)) if only is None else (only,)
        windows = {self.windows[i] for i in layers}
        if self._texts is not None:
            cache = texts = self._texts
            visibility = {
                w: texts.visible_slots(positions_BT, only or 0, first_slot, w) for w in windows
            }
        else:
            slots_BT = positions_BT if branches is None else branches.slots_BT
            self._slots.index.select(slots_BT, span, first_row)
            slots_S = torch.arange(span, device=positions_BT.device)
            window_ends_BT = positions_BT if windows_from_BT is None else windows_from_BT
            visibility = {
                w: visible(window_ends_BT, slots_S, window=w, branches=branches) for w in windows
            }
            if first_slot:
                visibility = {
                    w: visible_BTS & (slots_S >= first_slot)
                    for w, visible_BTS in visibility.items()
                }
        masks = {
            window: additive_mask(visible_BTS, states_BTF.dtype, pack=self._pack)
            for window, visible_BTS in visibility.items()
        }
        arguments: dict[str, Any] = {
            "position_embeddings": self._rotary(states_BTF, positions_BT),
            "position_ids": positions_BT,
            self._cache_argument: cache,
            "use_cache": True,
        }
        first_arguments = {} if entry_BTW is None else {"entry_BTW": entry_BTW}
        for i in layers:
            mask = {"attention_mask": masks[self.windows[i]]}
            out = self.layers[i](states_BTF, **arguments, **mask, **first_arguments)
            states_BTF = out[0] if isinstance(out, tuple) else out
            first_arguments = {}
        return states_BTF

    def write_kv(
        self, x_BTF: Tensor, positions_BT: Tensor, span: int, *, first_row: int = 0
    ) -> None:
        """Write the keys and values that every layer makes of the same unnormalized states."""
        if self.fused is not None:
            x_NF = x_BTF.reshape(positions_BT.numel(), -1)
            self.fused.write_kv(x_NF, positions_BT, span, first_row=first_row)
            return
        self._slots.index.select(positions_BT, span, first_row)
        rotation = self._rotary(x_BTF, positions_BT)
        for i, layer in enumerate(self.layers):
            attention: Any = layer.self_attn
            shape = (*positions_BT.shape, -1, attention.head_dim)
            keys, values = (
                linear(x_BTF).view(shape).transpose(1, 2)
                for linear in (attention.k_proj, attention.v_proj)
            )
            if hasattr(attention, "k_norm"):
                keys = attention.k_norm(keys)
            self._slots.update(apply_rotary_pos_emb(keys, keys, *rotation)[1], values, i)
