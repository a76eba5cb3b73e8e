"""Runners and drafters with the real protocols and numbers that a reader can work out."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from specbench.decode.clock import Mark
from specbench.decode.drafter import Drafter, PredictsOutput, Proposal
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.forward.runner import Output


class CountingClock:
    """A clock whose n-th mark is n seconds after the first; reading it takes no time."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.marks = 0

    def mark(self) -> float:
        self.marks += 1
        return float(self.marks - 1)

    def seconds(self, mark: Mark) -> float:
        assert isinstance(mark, float)
        return mark

    def now(self) -> float:
        return float(self.marks)


class QueuedClock(CountingClock):
    """The clock of a GPU, whose host takes a second for each launch; marks take no time."""

    LAUNCH_S = 1.0

    def start(self) -> None:
        self.host_s = self._done_s = 0.0

    def launch(self, work_s: float) -> None:
        """Queue work; it starts when earlier work is done."""
        self.host_s += self.LAUNCH_S
        self._done_s = max(self._done_s, self.host_s) + work_s

    def mark(self) -> float:
        self._done_s = max(self._done_s, self.host_s)
        return self._done_s

    def seconds(self, mark: Mark) -> float:
        assert isinstance(mark, float)
        self.host_s = max(self.host_s, mark)
        return mark

    def now(self) -> float:
        return self.host_s


class CountingRunner:
    """A target that always predicts the next number: 3 is followed by 4, the last id by 0. It has
    no cache, and stores the positions it was fed.
    """

    kind = "counting"
    hidden_size = 1
    num_layers = 1
    max_position: int | None
    device = torch.device("cpu")
    dtype = torch.float32
    cache = None

    def __init__(self, vocab_size: int = 100, max_position: int | None = None) -> None:
        self.vocab_size = vocab_size
        self.max_position = max_position
        self.fed: list[Tensor] = []

    def allocate(self, num_rows: int, max_len: int) -> None:  # noqa: ARG002
        self.fed.clear()

    def release(self) -> None:
        pass

    def forward(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor,
        span: int,
        *,
        last_B: Tensor | None = None,
        **_: object,
    ) -> Output:
        assert int(positions_BT.max()) < span
        self.fed.append(positions_BT)
        if last_B is not None:
            tokens_BT = tokens_BT.gather(1, last_B.expand(len(tokens_BT))[:, None])
        next_BT = (tokens_BT + 1) % self.vocab_size
        return Output(torch.nn.functional.one_hot(next_BT, self.vocab_size).float())

    most_drafts = None

    def reserve(self, num_drafts: int) -> None: ...

    def can_continue(self, row: int, num_tokens: int) -> bool:  # noqa: ARG002
        return True

    def copy_row(self, source: int, destination: int, num_tokens: int) -> None: ...

    def move_slots(
        self, sources_BT: Tensor, destinations_BT: Tensor, first_row: int = 0
    ) -> None: ...

    def embed(self, tokens_BT: Tensor) -> Tensor:
        return tokens_BT[..., None].float()

    def logits(self, states_BTF: Tensor) -> Tensor:
        next_BT = (states_BTF[..., 0].long() + 1) % self.vocab_size
        return torch.nn.functional.one_hot(next_BT, self.vocab_size).float()

    def first_layers(self, num_layers: int) -> "CountingRunner":  # noqa: ARG002
        return self


class ScriptedDrafter(Drafter):
    """Drafts the token that its script has for a position; 0 if it has none."""

    def __init__(self, script: dict[int, int]) -> None:
        self._script = script

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:  # noqa: ARG002
        first_B = (state.length_B + 1).tolist()
        tokens_BK = [[self._script.get(first + i, 0) for i in range(k)] for first in first_B]
        drafts_BK = torch.tensor(tokens_BK, dtype=torch.long)
        return Proposal(drafts_BK, torch.full_like(state.budget_B, k))


class Wrapped:
    """A drafter that changes another's proposal and delegates the rest to it."""

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.capabilities = inner.capabilities
        self.resources = inner.resources
        self.allocate = inner.allocate
        self.begin = inner.begin
        self.prefill = inner.prefill
        self.catch_up = inner.catch_up
        self.copy_row = inner.copy_row
        self.num_drafts = inner.num_drafts
        self.buffers = inner.buffers
        self.observe = inner.observe
        if isinstance(inner, PredictsOutput):
            self.predicted_output = inner.predicted_output

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        return self.change(self.inner.propose(state, k, span, sampler))

    def change(self, proposal: Proposal) -> Proposal:
        return proposal


class WithoutProbs(Wrapped):
    """Hides the distribution of its drafts, so that the verifier has to match them."""

    def change(self, proposal: Proposal) -> Proposal:
        return proposal._replace(probs=None)


class Flattened(Wrapped):
    """Claims that its guesses were drawn from the uniform distribution."""

    def change(self, proposal: Proposal) -> Proposal:
        assert proposal.probs is not None
        uniform_BKV = torch.full_like(proposal.probs, 1 / proposal.probs.shape[-1])
        return proposal._replace(probs=uniform_BKV)


class Perturbed(Wrapped):
    """Spoils the second draft of every round; all other drafts are right."""

    def change(self, proposal: Proposal) -> Proposal:
        tokens_BK = proposal.tokens_BK.clone()
        tokens_BK[:, 1] = (tokens_BK[:, 1] + 1) % 7
        return proposal._replace(tokens_BK=tokens_BK)


class Foreseeing(Wrapped):
    """Drafts the answers themselves: a chain whole, a tree along one of its deepest paths.

    It is the last of these paths, so that kept drafts are in other slots than a chain's. `answers`
    are by prompt.
    """

    def __init__(self, inner: Drafter, answers: Mapping[Sequence[int], Sequence[int]]) -> None:
        super().__init__(inner)
        self._answers = answers

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        proposal = super().propose(state, k, span, sampler)
        tokens_BK, depth = proposal.tokens_BK.clone(), proposal.depth
        path_BT = torch.arange(depth + 1).expand(state.num_rows, -1)
        if proposal.tree is not None:
            tree = proposal.tree
            depths_BK = tree.depths_BN[:, 1:] * tree.is_active_BK
            order_K = torch.arange(depths_BK.shape[1])
            leaf_B = (depths_BK * len(order_K) + order_K).argmax(1) + 1
            path_BT = tree.path_to(leaf_B)
        for row, path in enumerate(path_BT.tolist()):
            for token, node in zip(self._following(state, row), path[1:], strict=False):
                if node:
                    tokens_BK[row, node - 1] = token
        if proposal.tree is None:
            proposal = proposal._replace(num_drafted_B=torch.full_like(state.budget_B, depth))
        return proposal._replace(tokens_BK=tokens_BK)

    def _following(self, state: State, row: int) -> Sequence[int]:
        text = state.tokens_BC[row, : int(state.length_B[row]) + 1].tolist()
        for prompt, answer in self._answers.items():
            if tuple(text[: len(prompt)]) == tuple(prompt):
                return answer[len(text) - len(prompt) :]
        return ()
