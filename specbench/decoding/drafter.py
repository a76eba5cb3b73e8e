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

    def allocate(self, num_rows: int, max_len: int) -> None:
        """Make room for `num_rows` rows of `max_len` tokens; forget what was seen."""

    def prefill(
        self, tokens_BT: Tensor, positions_BT: Tensor, span: int, features: tuple[Tensor, ...]
    ) -> None:
        """See one chunk of the prompts; called for every chunk, in order."""

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        """Guess the tokens at positions length + 1 .. length + k of every row."""
        ...

    def forwards(self, k: int) -> tuple[BareForward, ...]:
        """The forwards of its own model that one proposal takes; the floor of its cost."""
        ...

    def observe(self, state: State, num_emitted_B: Tensor, features: tuple[Tensor, ...]) -> None:
        """See a round's outcome after it was committed to `state`."""


class NoDrafter:
    """Drafts nothing: with it the same round is plain decoding, the K = 0 baseline."""

    features: tuple[int, ...] = ()

    def allocate(self, num_rows: int, max_len: int) -> None:
        """Nothing to keep."""

    def prefill(
        self, tokens_BT: Tensor, positions_BT: Tensor, span: int, features: tuple[Tensor, ...]
    ) -> None:
        """Nothing to learn from."""

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:  # noqa: ARG002
        if k != 0:
            raise ValueError(f"NoDrafter was asked for {k} drafts")
        tokens_B0 = state.length_B.new_empty(len(state.length_B), 0)
        return Proposal(tokens_B0, torch.zeros_like(state.length_B))

    def forwards(self, k: int) -> tuple[BareForward, ...]:  # noqa: ARG002
        return ()

    def observe(self, state: State, num_emitted_B: Tensor, features: tuple[Tensor, ...]) -> None:
        """Nothing to remember."""
