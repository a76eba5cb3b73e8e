"""The Llama family's forward in as few operations as it takes, over the loaded model's weights.

On a small model the time goes into calling operations, not into arithmetic: a layer here is
four matrix products, attention, and a dozen small operations in place on tensors and views
that were made once. Shape suffixes: B rows, T new tokens, N = B * T, S slots, F hidden size,
V vocabulary.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Self

import torch
from torch import Tensor

from specbench.errors import ModelError
from specbench.footprint import KEPT_TOKENS, Sizes
from specbench.forward.attention.choice import Kernels, usual_kernels
from specbench.forward.attention.kernel import Case, Seen
from specbench.forward.attention.stock import causal_attention
from specbench.forward.compiled_steps import CompiledSteps, Programs
from specbench.forward.context import context_limit
from specbench.forward.fused_weights import can_fuse, fuse
from specbench.forward.layer_steps import LayerSteps, TorchSteps, TritonSteps
from specbench.forward.runner import Output, refuse_unsupported
from specbench.forward.tree import Branches
from specbench.forward.workspace import JoinedCache, Kept, Reach, Slots, Workspace
from specbench.kernels.availability import why_not

_KEPT_SHAPES = 256
Attend = Callable[[Workspace, Kept, Any], None]


class FusedRunner:
    """Runner for the architectures of `can_fuse`; ModelError with its reason for others.

    The model's parameters become views of joined matrices: it still runs, and nothing is held
    twice. Answers are fresh tensors; everything else is overwritten by the next forward.
    """

    kind = "fused"

    def __init__(self, model: Any) -> None:
        refuse_unsupported(model)
        if reason := can_fuse(model):
            raise ModelError(f"{type(model).__name__} has no fused forward: {reason}")
        config = model.config
        self.model, self.config = model, config
        self.vocab_size: int = model.lm_head.weight.shape[0]
        self.hidden_size: int = config.hidden_size
        self.num_layers: int = config.num_hidden_layers
        self.max_position = context_limit(config)
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self._slots = Slots(JoinedCache(0, 0, ()), torch.empty(0))
        # torch has one kernel for an RMS norm on a GPU and ten on a CPU, see TorchSteps.
        self._mirrored = self.device.type == "cpu"
        self._weights = fuse(model, mirrored=self._mirrored)
        self._eps: float = config.rms_norm_eps
        self._sizes = Sizes(
            hidden=config.hidden_size,
            query_heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head=model.model.layers[0].self_attn.head_dim,
            mlp=config.intermediate_size,
        )
        self._windows = {layer.window for layer in self._weights.layers}
        self.kernels: Kernels = usual_kernels()
        self.programs = Programs()
        self.steps: LayerSteps = TorchSteps(self._sizes, self._eps, mirrored=self._mirrored)
        self._scratch = self._new_scratch(KEPT_TOKENS)
        self._workspaces: dict[tuple[int, int], Workspace] = {}
        self._reaches: dict[tuple[int, int, int], Reach] = {}

    @property
    def cache(self) -> JoinedCache:
        return self._slots.cache

    @property
    def most_drafts(self) -> None:
        """Keys and values alone: any number of drafts is taken back."""

    def reserve(self, num_drafts: int) -> None:
        """Any number."""

    def allocate(self, num_rows: int, max_len: int) -> None:
        rows, length = max(num_rows, self.cache.num_rows), max(max_len, self.cache.max_len)
        if (rows, length) == (self.cache.num_rows, self.cache.max_len):
            return
        self.release()  # before taking
        width = 2 * self._sizes.kv_heads * self._sizes.head
        # Tensors made in inference mode could not be written outside of it.
        with torch.inference_mode(False), torch.no_grad():
            layers = [
                torch.zeros(rows * length, width, dtype=self.dtype, device=self.device)
                for _ in range(self.config.num_hidden_layers)
            ]
            self._slots.cache = JoinedCache(rows, length, layers)
            self._slots.rope = self._rope_table(length)

    def release(self) -> None:
        self._reaches.clear()
        self._slots.cache = JoinedCache(0, 0, ())

    def holds(self, row: int, num_tokens: int) -> bool:  # noqa: ARG002
        return True

    def copy_row(self, source: int, destination: int, num_tokens: int) -> None:
        self.cache.copy_row(source, destination, num_tokens)

    def move_slots(self, sources_BT: Tensor, destinations_BT: Tensor, first_row: int = 0) -> None:
        self.cache.move_slots(sources_BT, destinations_BT, first_row)

    def embed(self, tokens_BT: Tensor) -> Tensor:
        return torch.nn.functional.embedding(tokens_BT, self._weights.embedding)

    def logits(self, states_BTF: Tensor) -> Tensor:
        return states_BTF @ self._weights.head

    @property
    def cases(self) -> tuple[Case, ...]:
        """What an implementation of attention is chosen for, one by one."""
        return tuple(
            Case(
                device=self.device,
                dtype=self.dtype,
                query_heads=self._sizes.query_heads,
                kv_heads=self._sizes.kv_heads,
                head_size=self._sizes.head,
                window=window,
                is_tree=is_tree,
            )
            for window in sorted(self._windows, key=lambda window: window or 0)
            for is_tree in (False, True)
        )

    def with_compiled(self) -> Self:
        """The same over the same slots, its layers compiled.

        ModelError where they cannot be, or compute something else.
        """
        other = copy(self)
        usual: LayerSteps = self.steps
        if why_not(self.device) is None:
            usual = TritonSteps(self._sizes, self._eps)
        first = self._weights.layers[0]
        other.steps = CompiledSteps(self._sizes, self._eps, usual, first, self.programs)
        other.kind = "fused, compiled"
        return other

    def with_triton(self) -> Self:
        """The same over the same slots, its small operations in kernels of ours.

        ModelError where they cannot run.
        """
        if reason := why_not(self.device):
            raise ModelError(reason)
        other = copy(self)
        other.steps, other.kind = TritonSteps(self._sizes, self._eps), "fused, triton"
        return other

    def first_layers(self, num_layers: int) -> Self:
        first = copy(self)
        first._weights = self._weights._replace(layers=self._weights.layers[:num_layers])
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
        states = self._states(
            tokens_BT, positions_BT, span, first_row, features, branches, start is not None
        )
        normed = states[len(self._weights.layers)]
        if last_B is not None:
            normed = normed.view(B, T, -1)[torch.arange(B, device=self.device), last_B]
        logits = torch.mm(normed, self._weights.head).view(B, -1, self.vocab_size)
        return Output(logits, tuple(states[i].view(B, T, -1) for i in features))

    def _states(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor,
        span: int,
        first_row: int,
        features: Sequence[int],
        branches: Branches | None,
        is_plain: bool,
    ) -> dict[int, Tensor]:
        """The hidden states [N, F] asked for and the last, by number as `forward` has them."""
        B, T = tokens_BT.shape
        work, reach = self._workspace(B, T), self._reach(B, span, first_row)
        slots_BT = positions_BT if branches is None else branches.slots_BT
        if B > 1 or first_row:
            slots_BT = slots_BT + reach.first_slot_B1
        # Prompts have many lengths, of which a step need know nothing.
        steps = self.steps.sized(None if is_plain else B * T)
        places = steps.places(self._slots.rope, positions_BT.reshape(-1), slots_BT.reshape(-1))
        # What is looked up once a forward is not looked up once a layer: that is Python's time.
        attends: dict[int | None, tuple[Attend, Any]] = {None: (_attend_plainly, None)}
        for window in self._windows - {None} if is_plain else self._windows:
            kernel = self.kernels[window, branches is not None]
            seen = Seen(positions_BT, reach, self._sizes, self.dtype, window, branches)
            attends[window] = kernel.attend, kernel.look(seen)
        hidden = steps.embed(work, self._weights.embedding, tokens_BT.reshape(-1))

        states: dict[int, Tensor] = {}
        layers = self._weights.layers  # the cache may have more
        for i, (layer, kept) in enumerate(zip(layers, reach.layers, strict=False)):
            if i in features:
                states[i] = hidden.clone()
            steps.before_attention(work, hidden, layer, kept, places)
            attend, look = attends[layer.window]
            attend(work, kept, look)
            hidden = steps.after_attention(work, hidden, layer)
        if len(layers) + 1 in features:
            states[len(layers) + 1] = hidden.clone()
        states[len(layers)] = steps.final_norm(work, hidden, self._weights.final_norm)
        return states

    def _rope_table(self, length: int) -> Tensor:
        """Cosines and signed sines by position, [length, 2, 1, 2, D / 2].

        x * cos + swapped halves of x * sin turns a head. Positions past the context, where
        only drafts to be discarded can lie, repeat the last one.
        """
        positions_1P = torch.arange(length, device=self.device)[None]
        if self.max_position is not None:
            positions_1P = positions_1P.clamp(max=self.max_position - 1)
        cos, sin = self.model.model.rotary_emb(self._weights.embedding, positions_1P)
        first, second = sin.chunk(2, -1)
        sin = torch.cat((-first, second), -1)
        return torch.stack((cos[0], sin[0]), 1).view(length, 2, 1, 2, -1)

    def _workspace(self, B: int, T: int) -> Workspace:
        known = self._workspaces.get((B, T))
        if known is not None:
            return known
        is_kept = B * T <= KEPT_TOKENS
        with torch.inference_mode(False):
            scratch = self._scratch if is_kept else self._new_scratch(B * T)
            made = Workspace(self._sizes, scratch, B, T, mirrored=self._mirrored)
        if is_kept:
            _keep(self._workspaces, (B, T), made)
        return made

    def _reach(self, B: int, span: int, first_row: int) -> Reach:
        known = self._reaches.get((B, span, first_row))
        if known is not None:
            return known
        with torch.inference_mode(False):
            made = self.cache.reach(B, span, first_row, self._sizes)
        _keep(self._reaches, (B, span, first_row), made)
        return made

    def _new_scratch(self, num_tokens: int) -> Tensor:
        width = sum(self._sizes.widths(mirrored=self._mirrored))
        with torch.inference_mode(False):
            return torch.empty(num_tokens * width, dtype=self.dtype, device=self.device)


def _keep(known: dict[Any, Any], key: Any, made: Any) -> None:
    if len(known) >= _KEPT_SHAPES:
        known.clear()
    known[key] = made


def _attend_plainly(work: Workspace, kept: Kept, _: None) -> None:
    """Tokens that are the last of the slots, each seeing all up to itself: no mask is needed."""
    out = causal_attention(work.unpacked.flatten(1, 2), kept.keys, kept.values)
    work.spread.copy_(out.reshape(work.spread.shape))
