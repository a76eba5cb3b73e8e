"""The protocol of a drafter, which proposes tokens for the target to verify.

Shape suffixes: B rows, T tokens, K draft tokens, N = K + 1 nodes, F hidden size, V the target's
vocabulary.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.forward.layer_stack import LayerStack
from specbench.forward.runner import Runner
from specbench.forward.slot_cache import KvCache
from specbench.forward.tree import Tree


class SlotCapacity(Protocol):
    """Slots that a part writes to, row by row."""

    @property
    def max_len(self) -> int: ...


RunPart = Callable[[Tensor, Tensor, int], object]  # tokens and positions [1, T], span


@dataclass(frozen=True, kw_only=True, slots=True, weakref_slot=True, eq=False)
class HeadPart:
    """A part of a head that runs like a Runner, over one row, with zeros for the hidden states.

    It writes to the slots of row 0, which must not contain a request at that time. `weights` are
    the weights that it reads: the target's matrices are included, but not an embedding table of
    which only single rows are looked up.
    """

    run: RunPart
    weights: tuple[Tensor, ...]
    layers: LayerStack | None = None  # the layers whose slots it uses
    num_attending: int = 0  # the number of these layers that attend to the context
    target_kv_bytes: int = 0  # that it reads of the target's cache for each token of context

    @property
    def device(self) -> torch.device:
        return self.weights[0].device

    @property
    def cache(self) -> SlotCapacity:
        """The cache whose buffers a captured run is bound to."""
        return self if self.layers is None else self.layers.cache

    @property
    def max_len(self) -> int:
        """Unlimited, since the part keeps no state."""
        return sys.maxsize

    def allocate(self, num_rows: int, max_len: int) -> None:
        """Allocate the slots of its layers, as Runner.allocate does."""
        if self.layers is not None:
            self.layers.allocate(num_rows, max_len)

    def forward(self, tokens_1T: Tensor, positions_1T: Tensor, span: int, /) -> object:
        return self.run(tokens_1T, positions_1T, span)

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights that it reads; each tensor is counted once."""
        return sum({weight.data_ptr(): weight.nbytes for weight in self.weights}.values())

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that it reads for each token of context; 0 before the first forward."""
        if self.layers is None:
            return self.target_kv_bytes
        return self.layers.cache.bytes_per_token * self.num_attending // len(self.layers.layers)


class Proposal(NamedTuple):
    """K draft tokens per row: a tree, or a chain of which only the first `num_drafted_B` are valid.

    `probs` is the distribution that they were sampled from at temperature > 0: [B, K, V] for a
    chain. For a tree it is [B, I, V], for the children of each of `tree.families.parents_I`, which
    are sampled without replacement and in that order. None: no distribution; the verifier then
    compares them with tokens that it samples from the target.
    """

    tokens_BK: Tensor
    num_drafted_B: Tensor
    probs: Tensor | None = None
    tree: Tree | None = None

    @classmethod
    def of_lists(
        cls, drafts_BK: Sequence[Sequence[int]], k: int, device: torch.device
    ) -> "Proposal":
        """Chains of at most `k` tokens each."""
        padded_BR = [[len(drafts), *drafts, *[0] * (k - len(drafts))] for drafts in drafts_BK]
        numbers_BR = torch.tensor(padded_BR, dtype=torch.long, device=device)
        return cls(numbers_BR[:, 1:], numbers_BR[:, 0])

    @property
    def depth(self) -> int:
        """The maximum number of draft tokens that can be accepted."""
        return self.tokens_BK.shape[1] if self.tree is None else self.tree.depth


class Chunk(NamedTuple):
    """A chunk of the prompts of adjacent rows, right-padded, with the target's hidden states."""

    tokens_BT: Tensor
    following_BT: Tensor  # the token after each; arbitrary past the end of a prompt
    positions_BT: Tensor
    span: int
    features: tuple[Tensor, ...]  # [B, T, F] each
    start: int | None = None  # the position of the first, if it is the same in every row


class Outcome(NamedTuple):
    """The result of verifying a proposal, after it is committed to the state.

    The target was fed N nodes. T = `depth` + 1 of them form the path, of which the first
    `num_emitted_B` are valid. A finished row emits none, and its state does not change. After a
    prefill, the path is the last token of the prompt.
    """

    num_emitted_B: Tensor
    positions_BT: Tensor  # of the path's tokens
    following_BT: Tensor  # the tokens emitted after each
    features: tuple[Tensor, ...]  # [B, T, F] of the path
    span: int
    tokens_BN: Tensor  # the tokens of the nodes
    logits_BNV: Tensor
    path_BT: Tensor | None = None  # nodes of the path, starting with node 0; None: a chain

    def keep_last(self, x_BTF: Tensor, last_hidden_BF: Tensor) -> None:
        """Write the last accepted token's entry to `last_hidden_BF`, except for finished rows."""
        last_B11 = (self.num_emitted_B - 1).clamp(min=0)[:, None, None]
        last_BF = x_BTF.gather(1, last_B11.expand(-1, 1, x_BTF.shape[2]))[:, 0]
        last_hidden_BF.copy_(torch.where(self.num_emitted_B[:, None] > 0, last_BF, last_hidden_BF))


Repeatability = Literal["exact", "approximate", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """Capabilities of a drafter, fixed when it is built."""

    features: tuple[int, ...] = ()  # layers of the target whose states prefill and observe need
    needs_host: bool = False  # proposes on the host, so a CUDA graph cannot include it
    reads_target_cache: bool = False  # it drafts from the target's keys and values of its rows
    max_k: int | None = None  # maximum draft depth; None: unlimited
    # If a row's next text shares a prefix with its last one, prefill may skip the prefix.
    keeps_prefix: bool = True
    # A chain at a smaller K is a prefix of one at a larger K. False is safe: then every K is
    # replayed separately.
    chains_nest: bool = False
    # How well the text determines the drafts: exactly; approximately, because they also depend
    # a little on the positions of earlier rounds; or not at all without those rounds.
    repeatability: Repeatability = "exact"


class DrafterForward(NamedTuple):
    """A forward of the drafter over `num_tokens` tokens per row."""

    num_tokens: int
    part: str = ""  # for a head: which of its `head_parts`


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Resources:
    """Memory of a drafter in addition to the target's, and its forwards per round."""

    runner: Runner | None = None  # runs the forwards that name no part
    cached_layers: Runner | LayerStack | None = None  # the drafter's layers with keys and values
    weights: tuple[Tensor, ...] = ()  # of a head, without those of `runner` and the target
    spare_slots: int = 0  # of a row of its cache, in addition to the slots of the target's
    # Parts of a head that can run separately; `forwards` names them.
    head_parts: Mapping[str, HeadPart] = field(default_factory=dict)
    # The minimum forwards of a round at K, including those of `observe`; the same kind may occur
    # several times.
    forwards: Callable[[int], tuple[DrafterForward, ...]] = lambda _: ()

    @property
    def has_model(self) -> bool:
        """Whether it runs a model or a head."""
        return self.runner is not None or bool(self.weights)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes per token of a row in the drafter's own cache; 0 before the first forward."""
        return 0 if self.cached_layers is None else self.cached_layers.cache.bytes_per_token

    @property
    def state_bytes_per_row(self) -> int:
        """Bytes of recurrent state per row of the drafter; 0 before the first forward."""
        return 0 if self.cached_layers is None else self.cached_layers.cache.state_bytes_per_row


RowBuffer = Tensor | KvCache  # of all rows: a tensor's first dimension


class Drafter:
    """Proposes draft tokens within a round: fixed shapes, no host sync, no branch on data.

    Buffers are indexed by row, starting at `state.first_row`. All members but
    `propose` have defaults: those of a drafter that drafts chains from the state only.
    """

    capabilities: Capabilities = Capabilities()
    p_min: float = 0.0  # a chain ends before a draft whose distribution has no likelier token

    @cached_property
    def resources(self) -> Resources:
        return Resources()

    @property
    def buffers(self) -> tuple[RowBuffer, ...]:
        """State of all rows on the device; `allocate` may replace these buffers."""
        return ()

    def allocate(self, num_rows: int, max_len: int) -> None:
        """Allocate `num_rows` rows of `max_len` tokens; discard all state."""

    def num_drafts(self, k: int) -> int:
        """Tokens in a proposal that looks k tokens ahead: k in a chain, more in a tree."""
        return k

    def begin(self, state: State, predictions: Sequence[Sequence[int]]) -> None:
        """Start new requests in the rows; runs between rounds.

        The rows still contain the previous requests. A prediction is a text that the output of
        the row may resemble, or empty.
        """

    def prefill(self, state: State, chunk: Chunk) -> None:
        """Process one chunk of the prompts; called for every chunk, in order."""

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        """Draft the tokens at positions length + 1 .. length + k of every row; k > 0."""
        raise NotImplementedError

    def observe(self, state: State, outcome: Outcome) -> None:
        """Process the outcome of a prefill or of a round, also at K = 0."""

    def catch_up(self, state: State, num_tokens: int, span: int) -> None:
        """Process the last `num_tokens` committed tokens of every row, emitted by rounds at K = 0
        without the drafter. Some may have been processed before."""

    def copy_row(self, source: int, destination: int, num_tokens: int) -> None:
        """Copy the state of one row, up to `num_tokens`, to another: the row of every buffer.

        For several samples of one prompt: called after `begin` of both rows and the last chunk of
        the prompt, before `observe`.
        """
        for buffer in self.buffers:
            if isinstance(buffer, Tensor):
                buffer[destination].copy_(buffer[source])
            else:
                buffer.copy_row(source, destination, num_tokens)


class NoDrafter(Drafter):
    """Drafts nothing, so that rounds are plain decoding: the K = 0 baseline."""


@runtime_checkable
class PredictsOutput(Protocol):
    """A drafter that can also predict a whole output, not only the next tokens."""

    def predicted_output(self, state: State, most: int) -> Proposal | None:
        """The predicted rest of the only row's output: a chain of up to `most` tokens without
        probabilities, or None. Called before the first round, never during one."""


def no_proposal(state: State) -> Proposal:
    """The empty proposal of K = 0."""
    tokens_B0 = state.budget_B.new_empty(state.num_rows, 0)
    return Proposal(tokens_B0, torch.zeros_like(state.budget_B))
