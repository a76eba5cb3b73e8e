"""Runs an unmodified transformers model over KV slots, for rows of any lengths with rollback.
Models with unsupported architectures are refused.

Shape suffixes: B rows, T new tokens, S slots, N key/value heads, D head size, V vocabulary,
F features.
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
    num_positions,
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
from specbench.library_facts import cache_argument
from specbench.models.parts import cut_model

# The code that runs a forward: transformers' own, or ours, whose small operations are torch's or
# Triton kernels.
STOCK = "stock"
FUSED = "fused"
FUSED_TRITON = "fused, triton"


class Output(NamedTuple):
    """Logits [B, T, V] ([B, 1, V] with `last_B`) and one hidden state [B, T, F] per feature."""

    logits: Tensor
    features: tuple[Tensor, ...] = ()


class Runner(Protocol):
    """One model's forward over its own KV slots, as the decoder and drafters use it.

    The default implementations here are for models whose layers store only keys and values.
    """

    kind: str  # the code that runs: STOCK, FUSED or FUSED_TRITON
    model: Any  # transformers' own, which holds the weights
    vocab_size: int
    hidden_size: int
    num_layers: int  # also the number of the feature after the final norm
    max_position: int | None  # tokens of context that its config states
    device: torch.device
    dtype: torch.dtype

    @property
    def cache(self) -> KvCache:
        """The KV cache; another object after an `allocate` that grew it."""
        ...

    @property
    def most_drafts(self) -> int | None:
        """The most tokens after a forward's first that can be rolled back; None: any number.

        It is a number if layers store recurrent states. Then draft tokens form chains, prompts are
        not padded, and a row continues only at a position whose state is stored.
        """
        return None

    def reserve(self, num_drafts: int) -> None:  # noqa: ARG002
        """From the next `allocate` on, store states to roll back `num_drafts` draft tokens."""
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
        """Run a forward over tokens at these positions, each written to the slot of its position.

        Row i of the batch is row `first_row + i` of the cache; every position must be below `span`,
        the number of slots attended to. `last_B` has the index of the only token of each row to
        compute logits for; a single entry applies to all rows. `features` are numbers of hidden
        states: 0 is the embedding, i the output of layer i - 1, `num_layers` the last one after the
        final norm, `num_layers + 1` the last one before it. `branches` has the slots of a tree's
        tokens and what each attends to. With `start`, every row's tokens are at
        start .. start + T - 1, so that no mask is needed.
        """
        ...

    def can_continue(self, row: int, num_tokens: int) -> bool:  # noqa: ARG002
        """Whether a row can continue after its first `num_tokens`; may wait for the device."""
        return True

    def copy_row(self, source: int, destination: int, num_tokens: int) -> None:
        """Copy the cache of a row's first `num_tokens` tokens to another row."""
        self.cache.copy_row(source, destination, num_tokens)

    def move_slots(self, sources_BT: Tensor, destinations_BT: Tensor, first_row: int = 0) -> None:
        """Copy slots within each of B rows, the first being `first_row`; they may overlap."""
        self.cache.move_slots(sources_BT, destinations_BT, first_row)

    def field(self, name: str, /) -> Any:
        """A field of the language model's config as its file has it; None if it is missing."""
        return self.model.config.get_text_config().to_dict().get(name)

    def keys_values(
        self, layer: int, num_rows: int, span: int, *, first_row: int = 0
    ) -> tuple[Tensor, Tensor] | None:
        """Keys and values [B, N, S, D] in the first `span` slots of adjacent rows, as views; None
        before the first forward. `layer` stores its own."""
        ...

    def embed(self, tokens_BT: Tensor) -> Tensor:
        """The model's embedding of tokens [B, T, F], before any scaling by its forward."""
        ...

    def logits(self, states_BTF: Tensor) -> Tensor:
        """Logits [B, T, V] by the model's output head, from states after its final norm."""
        ...

    def first_layers(self, num_layers: int) -> "Runner":
        """The model's first layers with its final norm and head, over the same weights and slots.

        It writes the same keys and values as the whole model. Raises ModelError if the layers
        cannot run without the others.
        """
        ...


@dataclass(slots=True)
class _RunnerCache:
    """The cache that a runner shares with the runners of its first layers."""

    cache: SlotCache
    num_states: int = STATES_BESIDE_DRAFTS  # per row, if layers have recurrent states


class StockRunner(Runner):
    """Runner over transformers' own modeling code.

    `whole_masks` is for models whose code modifies masks: every forward then gets a mask with one
    row per token.
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
        self._masks = StockMasks(
            self.config, self.dtype, has_states=self._has_states, are_whole=whole_masks
        )
        self._cache_argument = cache_argument(model.forward, model.get_decoder().forward)
        self._can_limit_logits = "logits_to_keep" in signature(model.forward).parameters
        self.max_position = context_limit(self.config)
        self._num_positions = num_positions(fields_of(self.config))
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
        # A larger cache is reused, because stale slots are masked.
        index, states = self.cache.index, self.cache.states
        max_len += self._has_states  # the last slot is for tokens that are skipped
        has_states = states is None or self._slots.num_states <= states.num_slots
        if num_rows > index.num_rows or max_len > index.max_len or not has_states:
            rows, length = max(num_rows, index.num_rows), max(max_len, index.max_len)
            self.release()  # so that the old and the new cache never coexist
            self._slots.cache = self._new_cache(rows, length)

    def release(self) -> None:
        self._slots.cache = self._new_cache(0, 0)

    def _new_cache(self, num_rows: int, max_len: int) -> SlotCache:
        states = None
        if self._has_states:
            num_states = self._slots.num_states if num_rows else 0
            states = StateSlots(num_rows, num_states, self.device)
        return self._cache_class(self._num_cached_layers, num_rows, max_len, states)

    def can_continue(self, row: int, num_tokens: int) -> bool:
        states = self.cache.states
        return states is None or states.has_state(row, num_tokens)

    def keys_values(
        self, layer: int, num_rows: int, span: int, *, first_row: int = 0
    ) -> tuple[Tensor, Tensor] | None:
        return self.cache.keys_values(layer, num_rows, span, first_row)

    def embed(self, tokens_BT: Tensor) -> Tensor:
        states_BTF: Tensor = self.model.get_input_embeddings()(tokens_BT)
        return states_BTF

    def logits(self, states_BTF: Tensor) -> Tensor:
        logits_BTV: Tensor = self.model.get_output_embeddings()(states_BTF)
        return logits_BTV.to(states_BTF.device)  # a device_map may place the head elsewhere

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
        # A draft model may end before its target, and draft tokens past the budget are discarded.
        model_positions = positions_BT
        if self._num_positions is not None:
            model_positions = positions_BT.clamp(max=self._num_positions - 1)
        needs_input = self.num_layers + 1 in features
        with _recorded_norm_inputs(self.model, is_needed=needs_input) as norm_inputs:
            out = self.model(
                input_ids=tokens_BT,
                position_ids=model_positions,
                attention_mask=self._masks(
                    positions_BT, span, branches, is_plain=start is not None
                ),
                **{self._cache_argument: self.cache},
                use_cache=True,
                **self._logits_argument(last_B),
                # All states: if some are selected, transformers 5.17 returns a wrong last one.
                output_hidden_states=bool(features),
            )
        if features and out.hidden_states is None:
            raise ModelError(f"{type(self.model).__name__} gives no hidden states; {ELSEWHERE}")
        logits = out.logits
        if last_B is not None and not self._can_limit_logits:
            logits = logits[:, last_B]
        if last_B is not None and len(last_B) > 1:
            # [B, B, V]: position last_B[j] of row i; only the diagonal is needed
            logits = logits.diagonal(dim1=0, dim2=1).permute(1, 0)[:, None]
        states = (*(out.hidden_states or ()), *norm_inputs)
        # Inputs of the norm are not moved by a device_map, as the outputs of the model are.
        return Output(logits, tuple(states[i].to(tokens_BT.device) for i in features))

    def _logits_argument(self, last_B: Tensor | None) -> dict[str, Any]:
        """The argument that limits logits to `last_B`; {} for models without it (Qwen2-Audio)."""
        if not self._can_limit_logits:
            return {}
        return {"logits_to_keep": 0 if last_B is None else last_B}

    def _slots_of(
        self, positions_BT: Tensor, first_row: int, branches: Branches | None, start: int | None
    ) -> Tensor:
        """The cache slot of each token. Also selects the slots of recurrent states, if any."""
        states = self.cache.states
        if states is None:
            return positions_BT if branches is None else branches.slots_BT
        if branches is not None:
            raise ModelError(f"{type(self.model).__name__} {NO_TREES}")
        if start == 0 or (start is not None and self.continues):
            states.select_whole(start, positions_BT.shape[1], len(positions_BT), first_row)
            return positions_BT
        is_fed_BT = states.select_steps(positions_BT, first_row)
        return torch.where(is_fed_BT, positions_BT, self.cache.max_len - 1)


def fields_of(config: Any) -> ReadField:
    """A reader of a loaded config's fields, for the rules in files/."""
    return partial(field, config)


def context_limit(config: Any) -> int | None:
    """The longest context in tokens that a target may have."""
    return longest_context(fields_of(config))


def check_context(limit: int | None, num_tokens: int) -> None:
    """Raise ModelError if a request's `num_tokens` exceed the target's context."""
    if limit is not None and num_tokens > limit:
        raise ModelError(
            f"prompt and output take {num_tokens} tokens, the target's context has {limit}; "
            "choose shorter prompts or a smaller --max-new-tokens"
        )


def refuse_unsupported(model: Any) -> None:
    """ModelError if the decoder would be wrong: other recurrent state, unknown attention kinds."""
    name = type(model).__name__
    if reason := unsupported_attention(fields_of(model.config.get_text_config())):
        raise ModelError(f"{name} {reason}")
    if has_other_state(model):
        raise ModelError(f"{name} {RECURRENT}")
    if model.get_output_embeddings() is None:
        raise ModelError(f"{name} names no output head; {ELSEWHERE}")


_FINAL_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f")


def state_features(layer_ids: Sequence[int], model: Any, num_layers: int) -> tuple[int, ...]:
    """The feature numbers of these layers' inputs, for `Runner.forward`.

    A layer id of `num_layers` is the last layer's output before the final norm; ModelError if it
    cannot be read.
    """
    if num_layers in layer_ids and _final_norm(model) is None:
        raise ModelError(
            f"{type(model).__name__}: its last layer's output (aux layer id {num_layers}) cannot "
            "be read: no final norm has a known name; choose a head that does not read it"
        )
    return tuple(i if i < num_layers else num_layers + 1 for i in layer_ids)


def _final_norm(model: Any) -> nn.Module | None:
    decoder = model.get_decoder()
    candidates = (getattr(decoder, name, None) for name in _FINAL_NORMS)
    return next((norm for norm in candidates if isinstance(norm, nn.Module)), None)


@contextmanager
def _recorded_norm_inputs(model: Any, *, is_needed: bool) -> Iterator[list[Tensor]]:
    """Records the inputs of the model's final norm in this context; empty unless needed."""
    norm_inputs: list[Tensor] = []
    norm = _final_norm(model) if is_needed else None
    if norm is None:
        yield norm_inputs
        return
    hook = norm.register_forward_pre_hook(lambda _, inputs: norm_inputs.append(inputs[0]))
    try:
        yield norm_inputs
    finally:
        hook.remove()
