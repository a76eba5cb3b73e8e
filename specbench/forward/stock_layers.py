"""Runs transformers' decoder layers over cache slots, or over whole texts with gradients.

Shape suffixes: B rows, T tokens, F hidden size, W input size of the first layer's attention, S
slots.
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


def _run_layer(layer: Any, states_BTF: Tensor, attention_args: dict[str, Any]) -> Tensor:
    """The states that one layer returns, possibly as the first item of a tuple."""
    out = layer(states_BTF, **attention_args)
    states: Tensor = out[0] if isinstance(out, tuple) else out
    return states


class StockLayers:
    """A stack of transformers layers, or of layers whose `self_attn` has the same arguments.

    The attention implementation of `config` is replaced; layer i must have `layer_idx` i. `rotary`
    returns cosines and sines for states and positions. `windows`: how many tokens each layer
    attends to, including the current one; None: all.
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
        """Make the cache at least this large; a larger one is reused, as stale slots are masked."""
        index = self.cache.index
        if num_rows > index.num_rows or max_len > index.max_len:
            rows, length = max(num_rows, index.num_rows), max(max_len, index.max_len)
            self.release()  # so that the old and the new cache never coexist
            self.cache = SlotCache(len(self._layers), rows, length)

    def release(self) -> None:
        """Free the memory of all rows."""
        self.cache = SlotCache(len(self._layers), 0, 0)

    @contextmanager
    def whole_texts(self) -> Iterator[None]:
        """In this context each `forward` is another pass over the same texts, with gradients.

        Every row begins at position 0; `span`, `first_row` and `branches` are ignored.
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
        """Run the layers; see LayerStack.forward."""
        cache: SlotCache | WholeTexts = self.cache
        layers = range(len(self._layers)) if only is None else (only,)
        windows = {self._windows[i] for i in layers}
        if self._texts is not None:
            cache = texts = self._texts
            visibility = {
                w: texts.visible_slots(positions_BT, only or 0, first_slot, w) for w in windows
            }
        else:
            slots_BT = positions_BT if branches is None else branches.slots_BT
            self.cache.index.select(slots_BT, span, first_row)
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
            "past_key_values": cache,
            "use_cache": True,
        }
        first_arguments = {} if entry_BTW is None else {"entry_BTW": entry_BTW}
        for i in layers:
            mask = {"attention_mask": masks[self._windows[i]]}
            states_BTF = _run_layer(self._layers[i], states_BTF, arguments | mask | first_arguments)
            first_arguments = {}
        return states_BTF

    def keep(self, x_BTF: Tensor, positions_BT: Tensor, span: int, *, first_row: int = 0) -> None:
        """Write keys and values only; see LayerStack.keep."""
        self.cache.index.select(positions_BT, span, first_row)
        rotation = self._rotary(x_BTF, positions_BT)
        for i, layer in enumerate(self._layers):
            attention: Any = layer.self_attn
            shape = (*positions_BT.shape, -1, attention.head_dim)
            keys, values = (
                linear(x_BTF).view(shape).transpose(1, 2)
                for linear in (attention.k_proj, attention.v_proj)
            )
            if hasattr(attention, "k_norm"):
                keys = attention.k_norm(keys)
            self.cache.update(apply_rotary_pos_emb(keys, keys, *rotation)[1], values, i)
