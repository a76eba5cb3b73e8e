"""The forward of the Llama family in few operations, over the loaded model's weights.

Shape suffixes: B rows, T new tokens, N = B * T, F hidden size, V vocabulary.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any, Self

import torch
from torch import Tensor

from specbench.errors import ModelError
from specbench.files.config import num_positions
from specbench.forward.fused_layers import FusedLayers, is_mirrored
from specbench.forward.fused_weights import fuse, unfused_reason
from specbench.forward.runner import (
    FUSED,
    FUSED_TRITON,
    Output,
    Runner,
    context_limit,
    fields_of,
    refuse_unsupported,
)
from specbench.forward.tree import Branches
from specbench.forward.workspace import JoinedCache


class FusedRunner(Runner):
    """Runner for models that can be fused; ModelError with `unfused_reason` for others.

    The model's parameters become views of joined matrices, so it still runs and no weight is stored
    twice. Outputs are new tensors; the next forward overwrites everything else.
    """

    kind = FUSED

    def __init__(self, model: Any) -> None:
        if reason := unfused_reason(model):
            raise ModelError(f"{type(model).__name__} has no fused forward: {reason}")
        refuse_unsupported(model)
        config = model.config
        self.model, self.config = model, config
        self.vocab_size: int = model.lm_head.weight.shape[0]
        self.hidden_size: int = config.hidden_size
        self.num_layers: int = config.num_hidden_layers
        self.max_position = context_limit(config)
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        mirrored, end = is_mirrored(self.device), num_positions(fields_of(config))
        self._weights = fuse(model, mirrored=mirrored)
        self.layers = FusedLayers(
            self._weights.layers,
            config,
            model.model.rotary_emb,
            mirrored=mirrored,
            last_position=None if end is None else end - 1,
        )

    @property
    def cache(self) -> JoinedCache:
        return self.layers.cache

    def allocate(self, num_rows: int, max_len: int) -> None:
        self.layers.allocate(num_rows, max_len)

    def release(self) -> None:
        self.layers.release()

    def keys_values(
        self, layer: int, num_rows: int, span: int, *, first_row: int = 0
    ) -> tuple[Tensor, Tensor] | None:
        stored = self.layers.view(num_rows, span, first_row).layers[layer]
        return stored.keys, stored.values

    def embed(self, tokens_BT: Tensor) -> Tensor:
        return torch.nn.functional.embedding(tokens_BT, self._weights.embedding)

    def logits(self, states_BTF: Tensor) -> Tensor:
        return states_BTF @ self._weights.head

    def with_triton(self) -> Self:
        """The same model over the same slots, with TritonSteps; ModelError if they cannot run."""
        other = copy(self)
        other.layers, other.kind = self.layers.with_triton(), FUSED_TRITON
        return other

    def first_layers(self, num_layers: int) -> Self:
        first = copy(self)
        first.layers = self.layers.first(num_layers)
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
        B, T = tokens_BT.shape
        span = span if start is None else start + T
        is_plain = start is not None
        work = self.layers.workspace(B, T)
        steps = self.layers.steps
        states = self.layers.forward(
            work,
            steps.embed(work, self._weights.embedding, tokens_BT.reshape(-1)),
            positions_BT,
            span,
            first_row=first_row,
            branches=branches,
            is_plain=is_plain,
            features=features,
        )
        hidden, last = states[self.num_layers], self.num_layers
        if last + 1 in features:
            states[last + 1] = hidden.clone()
        states[last] = steps.norm(work, hidden, self._weights.final_norm)
        normed = states[last]
        if last_B is not None:
            normed = normed.view(B, T, -1)[torch.arange(B, device=self.device), last_B]
        logits = torch.mm(normed, self._weights.head).view(B, -1, self.vocab_size)
        return Output(logits, tuple(states[i].view(B, T, -1) for i in features))
