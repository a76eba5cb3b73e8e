"""Runs an unmodified transformers model over KV slots: rows of any lengths that can be rolled back.
Models of unsupported architectures are refused.

Shape suffixes: B rows, T new tokens, V vocabulary, F features.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from specbench.errors import ModelError
from specbench.files.config import (
    ELSEWHERE,
    NO_TREES,
    RECURRENT,
    ReadField,
    longest_context,
    unsupported_attention,
)
from specbench.footprint import STATES_BESIDE_DRAFTS
from specbench.forward.attention import stock
from specbench.forward.attention.masks import StockMasks, field
from specbench.forward.slot_cache import KvCache, SlotCache, StateSlots
from specbench.forward.state_layers import (
    has_other_state,
    run_over_slots,
    slot_cache_class,
    state_layers,
)
from specbench.forward.tree import Branches
from specbench.models.parts import cut_model

# The code that runs a forward: transformers' own, or ours, with torch's operations or with Triton
# kernels for the small ones.
STOCK = "stock"
FUSED = "fused"
FUSED_TRITON = "fused, triton"


class Output(NamedTuple):
    """Logits [B, T, V] (or [B, 1, V] with `last`) and one hidden state [B, T, F] per feature."""

    logits: Tensor
    features: tuple[Tensor, ...] = ()


class Runner(Protocol):
    """One model's forward over its own KV slots, as the decoder and drafters use it.

    Members that are defined here are those of a model whose layers keep only keys and values.
    """

    kind: str  # the code that runs: STOCK, FUSED or FUSED_TRITON
    model: Any  # transformers' own, which holds the weights
    vocab_size: int
    hidden_size: int
    num_layers: int  # also the number of the feature after the final norm
    max_position: int | None  # tokens of context that the model supports
    device: torch.device
    dtype: torch.dtype

    @property
    def cache(self) -> KvCache:
        """The KV cache; another object after an `allocate` that grew it."""
        ...

    @property
    def most_drafts(self) -> int | None:
        """Most tokens of a forward, after its first, that can be rolled back; None: any number.

        With a number, layers keep states: draft tokens form chains, prompts are not padded, and a
        row continues only at a position whose state was kept.
        """
        return None

    def reserve(self, num_drafts: int) -> None:  # noqa: ARG002
        """Keep states to roll back `num_drafts` draft tokens, from the next `allocate` on."""
        return

    def allocate(self, num_rows: int, max_len: int) -> None:
        """Allocate `num_rows` rows of at least `max_len` tokens, which must be prefilled again."""
        ...

    def release(self) -> None:
        """Free the memory of all rows."""
        ...

    def forward(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor,
        span: int,
        *,
        first_row: int = 0,
        last_B: Tensor | None = None,
        features: Sequence[int] = (),
        branches: Branches | None = None,
        start: int | None = None,
    ) -> Output:
        """Feed tokens at positions, writing each to the slot of its position.

        Row i of the batch is row `first_row + i` of the cache; every position must be below `span`,
        the number of slots attended to. `last_B` has the index of each row's only token with
        logits; a single entry applies to all rows. `features` are numbers of hidden states: 0 is
        the embedding, i the output of layer i - 1, `num_layers` the last one after the final norm,
        `num_layers + 1` the last one before it. `branches` has the slots of a tree's tokens and
        what each attends to. With `start`, every row's tokens are at start .. start + T - 1, so
        that no mask is needed.
        """
        ...

    def holds(self, row: int, num_tokens: int) -> bool:  # noqa: ARG002
        """Whether a row can be continued after its first `num_tokens`; may wait for the device."""
        return True

    def copy_row(self, source: int, destination: int, num_tokens: int) -> None:
        """Copy the cache of a row's first `num_tokens` tokens to another row."""
        self.cache.copy_row(source, destination, num_tokens)

    def move_slots(self, sources_BT: Tensor, destinations_BT: Tensor, first_row: int = 0) -> None:
        """Copy slots of B rows from `first_row` on within their row; they may overlap."""
        self.cache.move_slots(sources_BT, destinations_BT, first_row)

    def embed(self, tokens_BT: Tensor) -> Tensor:
        """The model's own embedding of tokens [B, T, F], before any scaling of its forward."""
        ...

    def logits(self, states_BTF: Tensor) -> Tensor:
        """The model's own head over states that had its final norm [B, T, V]."""
        ...

    def first_layers(self, num_layers: int) -> "Runner":
        """The model's first layers with its final norm and head, over the same weights and slots.

        It writes the same keys and values as the whole model. Raises ModelError if the layers
        cannot run without the others.
        """
        ...


@dataclass(slots=True)
class _RunnerCache:
    """The cache of a runner and of those of its first layers."""

    cache: SlotCache
    num_states: int = STATES_BESIDE_DRAFTS  # of a row, if layers keep any


class StockRunner(Runner):
    """Runner over transformers' own modeling code.

    `whole_masks` is for code that works on masks itself: every forward gets one, with one row per
    token.
    """

    kind = STOCK

    def __init__(self, model: Any, *, whole_masks: bool = False) -> None:
        refuse_unsupported(model)
        self.model = model
        self.config = model.config.get_text_config()
        self.vocab_size: int = model.get_output_embeddings().weight.shape[0]
        self.hidden_size: int = self.config.hidden_size
        self.num_layers: int = self.config.num_hidden_layers
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self._has_states = bool(state_layers(model))
        # False if layers take several tokens only at the start of a text; set by the self-test.
        self.continues = True
        self._cache_class = slot_cache_class(model)
        self._num_cached_layers = self.num_layers  # first layers share the slots of all
        self._slots = _RunnerCache(self._new_cache(0, 0))
        self.whole_masks = whole_masks
        self._masks = StockMasks(
            self.config, self.dtype, has_states=self._has_states, are_whole=whole_masks
        )
        self._keeps_some = "logits_to_keep" in signature(model.forward).parameters
        self.max_position = context_limit(self.config)
        stock.attend_by(model, stock.NAME)
        run_over_slots(model)

    @property
    def cache(self) -> SlotCache:
        return self._slots.cache

    @property
    def most_drafts(self) -> int | None:
        return self._slots.num_states - STATES_BESIDE_DRAFTS if self._has_states else None

    def reserve(self, num_drafts: int) -> None:
        self._slots.num_states = max(self._slots.num_states, num_drafts + STATES_BESIDE_DRAFTS)

    def allocate(self, num_rows: int, max_len: int) -> None:
        # A larger cache is kept: stale slots are masked, and memory is that of the largest.
        index, states = self.cache.index, self.cache.states
        max_len += self._has_states  # the last slot is for tokens that are not fed
        has_states = states is None or self._slots.num_states <= states.num_slots
        if num_rows > index.num_rows or max_len > index.max_len or not has_states:
            rows, length = max(num_rows, index.num_rows), max(max_len, index.max_len)
            self.release()  # before taking
            self._slots.cache = self._new_cache(rows, length)

    def release(self) -> None:
        self._slots.cache = self._new_cache(0, 0)

    def _new_cache(self, num_rows: int, max_len: int) -> SlotCache:
        states = None
        if self._has_states:
            num_states = self._slots.num_states if num_rows else 0
            states = StateSlots(num_rows, num_states, self.device)
        return self._cache_class(self._num_cached_layers, num_rows, max_len, states)

    def holds(self, row: int, num_tokens: int) -> bool:
        states = self.cache.states
        return states is None or states.holds(row, num_tokens)

    def embed(self, tokens_BT: Tensor) -> Tensor:
        states_BTF: Tensor = self.model.get_input_embeddings()(tokens_BT)
        return states_BTF

    def logits(self, states_BTF: Tensor) -> Tensor:
        logits_BTV: Tensor = self.model.get_output_embeddings()(states_BTF)
        return logits_BTV

    def first_layers(self, num_layers: int) -> Self:
        first = copy(self)
        first.model = cut_model(self.model, num_layers)
        first.config = first.model.config.get_text_config()
        first.num_layers = num_layers
        return first

    def forward(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor,
        span: int,
        *,
        first_row: int = 0,
        last_B: Tensor | None = None,
        features: Sequence[int] = (),
        branches: Branches | None = None,
        start: int | None = None,
    ) -> Output:
        if start is not None:
            span = start + tokens_BT.shape[1]
        slots_BT = self._slots_of(positions_BT, first_row, branches, start)
        self.cache.index.select(slots_BT, span, first_row)
        # Drafts past the budget may lie beyond the model's last position; they are discarded.
        model_positions = positions_BT
        if self.max_position is not None:
            model_positions = positions_BT.clamp(max=self.max_position - 1)
        with _entering(self.model, is_wanted=self.num_layers + 1 in features) as entered:
            out = self.model(
                input_ids=tokens_BT,
                position_ids=model_positions,
                attention_mask=self._masks(
                    positions_BT, span, branches, is_plain=start is not None
                ),
                past_key_values=self.cache,
                use_cache=True,
                **self._kept(last_B),
                # All of them: by number, transformers 5.17 returns a wrong last one.
                output_hidden_states=bool(features),
            )
        if features and out.hidden_states is None:
            raise ModelError(f"{type(self.model).__name__} gives no hidden states; {ELSEWHERE}")
        logits = out.logits
        if last_B is not None and not self._keeps_some:
            logits = logits[:, last_B]
        if last_B is not None and len(last_B) > 1:
            # [B, B, V]: position last_B[j] of row i; only the diagonal is needed
            logits = logits.diagonal(dim1=0, dim2=1).permute(1, 0)[:, None]
        states = (*(out.hidden_states or ()), *entered)
        return Output(logits, tuple(states[i] for i in features))

    def _kept(self, last_B: Tensor | None) -> dict[str, Any]:
        """The argument that limits the logits; empty for models without it, such as Qwen2-Audio."""
        return {"logits_to_keep": 0 if last_B is None else last_B} if self._keeps_some else {}

    def _slots_of(
        self, positions_BT: Tensor, first_row: int, branches: Branches | None, start: int | None
    ) -> Tensor:
        """The cache slot of each token; layers with states are pointed at these tokens."""
        states = self.cache.states
        if states is None:
            return positions_BT if branches is None else branches.slots_BT
        if branches is not None:
            raise ModelError(f"{type(self.model).__name__} {NO_TREES}")
        if start == 0 or (start is not None and self.continues):
            states.point_at(start, positions_BT.shape[1], len(positions_BT), first_row)
            return positions_BT
        is_fed_BT = states.point(positions_BT, first_row)
        return torch.where(is_fed_BT, positions_BT, self.cache.max_len - 1)


def fields_of(config: Any) -> ReadField:
    """The fields of a loaded config, as the files' rules read them."""
    return partial(field, config)


def context_limit(config: Any) -> int | None:
    """The longest context in tokens at which the model's positions are valid."""
    return longest_context(fields_of(config))


def check_context(limit: int | None, num_tokens: int) -> None:
    """Raise ModelError if a request's `num_tokens` exceed the target's context."""
    if limit is not None and num_tokens > limit:
        raise ModelError(
            f"prompt and output take {num_tokens} tokens, the target's context has {limit}; "
            "choose shorter prompts or a smaller --max-new-tokens"
        )


def refuse_unsupported(model: Any) -> None:
    """ModelError if the decoder would be wrong: recurrent state, unknown attention kinds."""
    name = type(model).__name__
    if has_other_state(model):
        raise ModelError(f"{name} {RECURRENT}")
    if reason := unsupported_attention(fields_of(model.config.get_text_config())):
        raise ModelError(f"{name} {reason}")
    if model.get_output_embeddings() is None:
        raise ModelError(f"{name} names no output head; {ELSEWHERE}")


_FINAL_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f")


def state_features(layer_ids: Sequence[int], model: Any, num_layers: int) -> tuple[int, ...]:
    """The features that are those layers' inputs; `num_layers` is the last one's bare output.

    ModelError if that is asked for and cannot be read.
    """
    if num_layers in layer_ids and _final_norm(model) is None:
        raise ModelError(
            f"{type(model).__name__}: its last layer's output (aux layer id {num_layers}) cannot "
            "be read: no final norm is found by the names that are known; choose a head without it"
        )
    return tuple(i if i < num_layers else num_layers + 1 for i in layer_ids)


def _final_norm(model: Any) -> nn.Module | None:
    decoder = model.get_decoder()
    candidates = (getattr(decoder, name, None) for name in _FINAL_NORMS)
    return next((norm for norm in candidates if isinstance(norm, nn.Module)), None)


@contextmanager
def _entering(model: Any, *, is_wanted: bool) -> Iterator[list[Tensor]]:
    """Collects the inputs of the model's final norm in forwards inside; empty unless wanted."""
    entered: list[Tensor] = []
    norm = _final_norm(model) if is_wanted else None
    if norm is None:
        yield entered
        return
    hook = norm.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    try:
        yield entered
    finally:
        hook.remove()
