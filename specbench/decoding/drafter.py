"""The protocol of a drafter: what guesses tokens for the target to check.

Shape suffixes: B rows, T tokens, K drafts, V the target's vocabulary.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specbench.decoding.sampling import Sampler
from specbench.decoding.state import State


class Proposal(NamedTuple):
    """K guesses a row, of which the first `num_drafted_B` are meant.

    `probs_BKV` is the law each guess was drawn from (draws at temperature > 0); None where
    guesses have no law, and then the verifier matches them against the target's own tokens.
    """

    tokens_BK: Tensor
    num_drafted_B: Tensor
    probs_BKV: Tensor | None = None


class BareForward(NamedTuple):
    """How often a round runs a forward over so many tokens a row."""

    num_tokens: int
    times: int


class Drafter(Protocol):
    """Proposes inside the round: fixed shapes, no host sync, no branch on data."""

    features: tuple[int, ...]  # hidden states of the target that prefill and observe want
    needs_host: bool  # it proposes on the host, so that a graph cannot hold its half of a round

    @property
    def buffers(self) -> tuple[object, ...]:
        """What it keeps of the rows on the device: others once `allocate` had to replace them."""
        ...

    def allocate(self, num_rows: int, max_len: int) -> None:
        """Make room for `num_rows` rows of `max_len` tokens; forget what was seen."""

    def prefill(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor,
        span: int,
        features: tuple[Tensor, ...],
        *,
        first_row: int = 0,
    ) -> None:
        """See one chunk of the prompts of the rows from `first_row` on; every chunk, in order."""

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        """Guess the tokens at positions length + 1 .. length + k of every row; k > 0."""
        ...

    def catch_up(self, state: State, num_tokens: int, span: int) -> None:
        """See the last `num_tokens` committed tokens of every row, which rounds at K = 0 emitted
        without it; those it saw already may be among them."""

    def copy_row(self, source: int, destination: int, num_tokens: int) -> None:
        """Make what it keeps of one row, up to `num_tokens`, equal to another's."""

    def forwards(self, k: int) -> tuple[BareForward, ...]:
        """The forwards of its own model that one proposal takes; the floor of its cost."""
        ...

    def observe(self, state: State, num_emitted_B: Tensor, features: tuple[Tensor, ...]) -> None:
        """See a round's outcome after it was committed to `state`."""


def no_proposal(state: State) -> Proposal:
    """K = 0: nothing to check but the target's own next token."""
    tokens_B0 = state.budget_B.new_empty(state.num_rows, 0)
    return Proposal(tokens_B0, torch.zeros_like(state.budget_B))


class Memoryless:
    """What a drafter that keeps nothing of its own does with a row: nothing."""

    features: tuple[int, ...] = ()
    needs_host: bool = False
    buffers: tuple[object, ...] = ()

    def allocate(self, num_rows: int, max_len: int) -> None:
        """Nothing to keep."""

    def prefill(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor,
        span: int,
        features: tuple[Tensor, ...],
        *,
        first_row: int = 0,
    ) -> None:
        """The prompt is in the state."""

    def catch_up(self, state: State, num_tokens: int, span: int) -> None:
        """The state holds every token."""

    def copy_row(self, source: int, destination: int, num_tokens: int) -> None:
        """The state's row is copied by whoever moves it."""

    def forwards(self, k: int) -> tuple[BareForward, ...]:  # noqa: ARG002
        return ()

    def observe(self, state: State, num_emitted_B: Tensor, features: tuple[Tensor, ...]) -> None:
        """The state already holds the new tokens."""


class NoDrafter(Memoryless):
    """Drafts nothing: with it the same round is plain decoding, the K = 0 baseline."""

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:  # noqa: ARG002
        raise ValueError(f"NoDrafter was asked for {k} drafts")
