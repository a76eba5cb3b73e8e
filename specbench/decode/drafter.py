"""The protocol of a drafter, which proposes tokens for the target to verify.

Shape suffixes: B rows, T tokens, K drafts, N = K + 1 nodes, F hidden size, V the target's
vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from specbench.decode.head_part import HeadPart
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.forward.runner import Runner
from specbench.forward.slot_cache import KvCache
from specbench.forward.tree import Tree


class Proposal(NamedTuple):
    """K guesses per row: a chain of which the first `num_drafted_B` count, or a tree.

    `probs` is the distribution guesses were drawn from at temperature > 0: [B, K, V] in a chain; in
    a tree [B, I, V] for the children of each of `tree.families.parents_I`, which were drawn without
    replacement and are in the order of their draws. None if guesses have no distribution, and then
    the verifier matches them against the target's own tokens.
    """

    tokens_BK: Tensor
    num_drafted_B: Tensor
    probs: Tensor | None = None
    tree: Tree | None = None

    @property
    def depth(self) -> int:
        """The most drafts that can be accepted."""
        return self.tokens_BK.shape[1] if self.tree is None else self.tree.depth


class Chunk(NamedTuple):
    """A piece of the prompts of neighboring rows, right-padded, as the target saw it."""

    tokens_BT: Tensor
    following_BT: Tensor  # the token after each; past a prompt's end anything
    positions_BT: Tensor
    span: int
    features: tuple[Tensor, ...]  # [B, T, F] each
    start: int | None = None  # the position of the first, if it is the same in every row


class Outcome(NamedTuple):
    """The result of verifying a proposal, once it is committed to the state.

    The target was fed N nodes; T of them, `depth` + 1, are the path whose first `num_emitted_B`
    were kept. A row that was done emitted none, and keeps what it had. A prompt's last token is
    a path of one.
    """

    num_emitted_B: Tensor
    positions_BT: Tensor  # of the path's tokens
    following_BT: Tensor  # the tokens emitted after each
    features: tuple[Tensor, ...]  # [B, T, F] of the path
    span: int
    tokens_BN: Tensor  # what was fed
    logits_BNV: Tensor
    path_BT: Tensor | None = None  # the path's nodes, of which 0 is the first; None: a chain

    def keep_last(self, x_BTF: Tensor, last_hidden_BF: Tensor) -> None:
        """Write the last accepted token's entry to `last_hidden_BF`, except for finished rows."""
        last_B11 = (self.num_emitted_B - 1).clamp(min=0)[:, None, None]
        last_BF = x_BTF.gather(1, last_B11.expand(-1, 1, x_BTF.shape[2]))[:, 0]
        last_hidden_BF.copy_(torch.where(self.num_emitted_B[:, None] > 0, last_BF, last_hidden_BF))


Repeatability = Literal["exact", "approximate", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """Capabilities of a drafter, fixed when it is built."""

    features: tuple[int, ...] = ()  # hidden states of the target that prefill and observe want
    needs_host: bool = False  # it proposes on the host: a graph cannot hold its half of a round
    max_k: int | None = None  # the deepest it can draft; None: as deep as one likes
    # A row's next text may begin like its last one, and what they share need not be seen again.
    keeps_prefix: bool = True
    # A chain at a smaller K is the beginning of one at a greater K. False is the safe side: then
    # every K is looked at by itself.
    chains_nest: bool = False
    # What it drafts after a given text, wherever the rounds before began: the same; about the same;
    # or unknown without those rounds.
    repeatability: Repeatability = "exact"


class OwnForward(NamedTuple):
    """How often a round runs the drafter's own forward over `num_tokens` tokens per row."""

    num_tokens: int
    times: int
    part: str = ""  # of a head: which of its `head_parts`


class KeepsCache(Protocol):
    """A draft model or a head's layers, with a KV cache that may be replaced by a larger one."""

    @property
    def cache(self) -> KvCache: ...


def _no_forwards(k: int) -> tuple[OwnForward, ...]:  # noqa: ARG001
    return ()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Resources:
    """Memory that a drafter takes in addition to the target's, and its forwards in a round."""

    runner: Runner | None = None  # whose forwards are counted if they name no part
    keeps: KeepsCache | None = None  # what has its own keys and values
    weights: tuple[Tensor, ...] = ()  # in addition to those of `runner` and the target: a head's
    spare_slots: int = 0  # that a row of its cache has beyond those of a row of the target's
    # A head's work in a round, in pieces that can run separately; forwards name them.
    head_parts: Mapping[str, HeadPart] = field(default_factory=dict)
    # By K, those that a round runs at least, a lower bound on its cost. What is done with the
    # outcome is among them; forwards of the same kind may come apart.
    forwards: Callable[[int], tuple[OwnForward, ...]] = _no_forwards

    @property
    def has_model(self) -> bool:
        """Whether it runs a model or a head."""
        return self.runner is not None or bool(self.weights)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes per token of a row in the drafter's own cache; 0 before the first forward."""
        return 0 if self.keeps is None else self.keeps.cache.bytes_per_token

    @property
    def state_bytes_per_row(self) -> int:
        """Bytes per row that its own recurrent layers keep; 0 before the first forward."""
        return 0 if self.keeps is None else self.keeps.cache.state_bytes_per_row


RowBuffer = Tensor | KvCache  # of all rows: a tensor's first dimension


class Drafter(Protocol):
    """Proposes inside the round: fixed shapes, no host sync, no branch on data.

    Buffers by row are addressed from `state.first_row` on.
    """

    capabilities: Capabilities

    @property
    def resources(self) -> Resources: ...

    @property
    def buffers(self) -> tuple[RowBuffer, ...]:
        """State of all rows on the device; `allocate` may replace these buffers."""
        ...

    def allocate(self, num_rows: int, max_len: int) -> None:
        """Allocate `num_rows` rows of `max_len` tokens; forget what was seen."""

    def num_drafts(self, k: int) -> int:
        """Tokens in a proposal that looks k tokens ahead: k in a chain, more in a tree."""
        ...

    def begin(self, state: State, predictions: Sequence[Sequence[int]]) -> None:
        """Requests come into the state's rows, which still hold those that were there before.

        A prediction is a text that the row's answer may resemble, or nothing. Never in a round.
        """

    def prefill(self, state: State, chunk: Chunk) -> None:
        """See one chunk of the prompts of the state's rows; every chunk, in order."""

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        """Guess the tokens at positions length + 1 .. length + k of every row; k > 0."""
        ...

    def observe(self, state: State, outcome: Outcome) -> None:
        """See the outcome of a prefill or a round, one at K = 0 too."""

    def catch_up(self, state: State, num_tokens: int, span: int) -> None:
        """See the last `num_tokens` committed tokens of every row, which rounds at K = 0 emitted
        without it; those it saw already may be among them."""

    def copy_row(self, source: int, destination: int, num_tokens: int) -> None:
        """Make what it keeps of one row, up to `num_tokens`, equal to another's.

        For samples of one prompt it comes between the prompt's last chunk and `observe`, and
        after `begin` of both rows.
        """


@runtime_checkable
class PredictsOutput(Protocol):
    """A drafter that can also predict a whole output, not only the next tokens."""

    def predicted_output(self, state: State, most: int) -> Proposal | None:
        """All that is expected to follow in the state's one row, a chain of up to `most` drafts
        without probabilities; None if nothing is. Asked before the first round, never in one."""


def no_proposal(state: State) -> Proposal:
    """K = 0: nothing to check but the target's own next token."""
    tokens_B0 = state.budget_B.new_empty(state.num_rows, 0)
    return Proposal(tokens_B0, torch.zeros_like(state.budget_B))


class PlainDrafter:
    """Defaults of a drafter: it drafts chains from the state only.

    One with `buffers` keeps nothing of a row elsewhere.
    """

    capabilities: Capabilities = Capabilities()

    @cached_property
    def resources(self) -> Resources:
        return Resources()

    @property
    def buffers(self) -> tuple[RowBuffer, ...]:
        return ()

    def allocate(self, num_rows: int, max_len: int) -> None:
        """Does nothing: a plain drafter has no state."""

    def num_drafts(self, k: int) -> int:
        return k

    def begin(self, state: State, predictions: Sequence[Sequence[int]]) -> None:
        """Does nothing: a plain drafter has no state."""

    def prefill(self, state: State, chunk: Chunk) -> None:
        """Does nothing: the state contains the prompt."""

    def observe(self, state: State, outcome: Outcome) -> None:
        """Does nothing: the state contains the new tokens."""

    def catch_up(self, state: State, num_tokens: int, span: int) -> None:
        """Does nothing: the state contains every token."""

    def copy_row(self, source: int, destination: int, num_tokens: int) -> None:
        """Does nothing: the caller copies the row's state."""
        for kept in self.buffers:
            if isinstance(kept, Tensor):
                kept[destination].copy_(kept[source])
            else:
                kept.copy_row(source, destination, num_tokens)


class NoDrafter(PlainDrafter):
    """A drafter without drafts, with which a round is plain decoding, the K = 0 baseline."""

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:  # noqa: ARG002
        raise ValueError(f"NoDrafter was asked for {k} drafts")
