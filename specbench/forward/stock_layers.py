"""Transformers' own decoder layers over slots, or over whole texts with gradients.

Shape suffixes: B rows, T tokens, F hidden size, W what the first layer's attention reads, S slots.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb

from specbench.forward.attention import stock
from specbench.forward.attention.masks import additive_mask, visible
from specbench.forward.slot_cache import SlotCache
from specbench.forward.tree import Branches


class WholeTexts:
    """Keys and values of every pass over the same texts so far, one after the other.

    The first pass reads the target's states. Pass u reads states that the head made in u passes, so
    its token at t follows a context that ends at t - u: it sees the first pass up to there, and of
    each later pass the one token that led to it, which is what a draft at depth u sees. Source:
    training-time test, Li et al. 2025 (EAGLE-3, arXiv:2503.01840), section 3.2.
    """

    def __init__(self, num_layers: int) -> None:
        self._keys: list[list[Tensor]] = [[] for _ in range(num_layers)]
        self._values: list[list[Tensor]] = [[] for _ in range(num_layers)]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """The update of transformers' caches; returns [B, H, T, D] of this pass and all before."""
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys.append(key_states)
        values.append(value_states)
        return torch.cat(keys, 2), torch.cat(values, 2)

    def seen(
        self, positions_BT: Tensor, layer: int, first: int, window: int | None = None
    ) -> Tensor:
        """The slots that the next pass of a layer may attend to, bool [1, T, S].

        Before position `first` there is nothing.
        """
        T, passes = positions_BT.shape[1], len(self._keys[layer])
        at_T = torch.arange(T, device=positions_BT.device)
        behind_TT = at_T[:, None] - at_T
        blocks = [(behind_TT >= passes) & (at_T >= first)]
        if window is not None:
            blocks[0] &= behind_TT < window
        blocks += [behind_TT == passes - j for j in range(1, passes + 1)]
        return torch.cat(blocks, 1)[None]


def _run_layer(layer: Any, states_BTF: Tensor, attention_args: dict[str, Any]) -> Tensor:
    """A layer of transformers' own as it stands."""
    out = layer(states_BTF, **attention_args)
    states: Tensor = out[0] if isinstance(out, tuple) else out
    return states


class StockLayers:
    """Transformers' layers, or ones whose `self_attn` is called like theirs.

    `config` is theirs, with its own attention implementation; layer i must say `layer_idx` i.
    `rotary` gives cosines and sines for states and positions. `windows`: how many tokens each layer
    sees, itself included; None: all.
    """

    def __init__(
        self,
        config: Any,
        layers: Sequence[nn.Module],
        rotary: nn.Module,
        windows: Sequence[int | None],
    ) -> None:
        config._attn_implementation = stock.NAME
        self._layers, self._rotary, self._windows = layers, rotary, windows
        self.cache = SlotCache(0, 0, 0)
        self._texts: WholeTexts | None = None
        heads = config.num_attention_heads
        self._pack: int = heads // (getattr(config, "num_key_value_heads", None) or heads)

    @property
    def is_over_texts(self) -> bool:
        return self._texts is not None

    def allocate(self, num_rows: int, max_len: int) -> None:
        """Allocate; a larger cache is kept, for stale slots are masked."""
        index = self.cache.index
        if num_rows > index.num_rows or max_len > index.max_len:
            rows, length = max(num_rows, index.num_rows), max(max_len, index.max_len)
            self.release()  # before taking
            self.cache = SlotCache(len(self._layers), rows, length)

    def release(self) -> None:
        """Give the memory of all rows back."""
        self.cache = SlotCache(len(self._layers), 0, 0)

    @contextmanager
    def whole_texts(self) -> Iterator[None]:
        """Inside, each `forward` is one more pass over the same texts, with gradients.

        Every row begins at position 0; slots, rows and branches are not looked at.
        """
        self._texts = WholeTexts(len(self._layers))
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
        """Runs the layers; see LayerStack.forward."""
        cache: SlotCache | WholeTexts = self.cache
        layers = range(len(self._layers)) if only is None else (only,)
        windows = {self._windows[i] for i in layers}
        if self._texts is not None:
            cache = texts = self._texts
            seen = {w: texts.seen(positions_BT, only or 0, first_slot, w) for w in windows}
        else:
            slots_BT = positions_BT if branches is None else branches.slots_BT
            self.cache.index.point(slots_BT, span, first_row)
            slots_S = torch.arange(span, device=positions_BT.device)
            places_BT = positions_BT if windows_from_BT is None else windows_from_BT
            seen = {w: visible(places_BT, slots_S, window=w, branches=branches) for w in windows}
            if first_slot:
                seen = {w: seen_BTS & (slots_S >= first_slot) for w, seen_BTS in seen.items()}
        masks = {
            window: additive_mask(seen_BTS, states_BTF.dtype, pack=self._pack)
            for window, seen_BTS in seen.items()
        }
        arguments: dict[str, Any] = {
            "position_embeddings": self._rotary(states_BTF, positions_BT),
            "position_ids": positions_BT,
            "past_key_values": cache,
            "use_cache": True,
        }
        of_first = {} if entry_BTW is None else {"entry_BTW": entry_BTW}
        for i in layers:
            mask = {"attention_mask": masks[self._windows[i]]}
            states_BTF = _run_layer(self._layers[i], states_BTF, arguments | mask | of_first)
            of_first = {}
        return states_BTF

    def keep(self, x_BTF: Tensor, positions_BT: Tensor, span: int, *, first_row: int = 0) -> None:
        """Writes keys and values only; see LayerStack.keep."""
        self.cache.index.point(positions_BT, span, first_row)
        turn = self._rotary(x_BTF, positions_BT)
        for i, layer in enumerate(self._layers):
            attention: Any = layer.self_attn
            shape = (*positions_BT.shape, -1, attention.head_dim)
            keys, values = (
                linear(x_BTF).view(shape).transpose(1, 2)
                for linear in (attention.k_proj, attention.v_proj)
            )
            if hasattr(attention, "k_norm"):
                keys = attention.k_norm(keys)
            self.cache.update(apply_rotary_pos_emb(keys, keys, *turn)[1], values, i)
