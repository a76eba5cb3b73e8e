"""A draft model with another vocabulary writes text, which the host encodes as target tokens.

Shape suffixes: B rows, K draft tokens, R numbers per row.
"""

from collections.abc import Sequence

from specbench.decode.drafter import Capabilities, Proposal
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.registry import Parts, drafter
from specbench.drafters.shared.retokenized_model import RetokenizedModel
from specbench.models.retokenizer import Encoder, require_common_tokens
from specbench.records import Sampling

_GREEDY = Sampler(Sampling())


@drafter("string_match")
class StringMatch(RetokenizedModel):
    """Drafts the text of a greedy draft model, encoded again on the host.

    The draft model generates K tokens. Their text may take fewer or more target tokens, of which at
    most K are verified, by comparison with tokens sampled from the target.
    """

    capabilities = Capabilities(needs_host=True)

    def __init__(self, parts: Parts) -> None:
        target, draft = parts.tokenizers()
        require_common_tokens(target.vocabulary, draft.vocabulary)
        super().__init__(parts)
        self._target = Encoder(target)
        self._draft = self.retokenizer.encoder
        names = target.vocabulary.specials()
        # The target's ids for the draft model's special tokens; empty if it has none of that name.
        self._specials = {
            i: [names[name]] if name in names else []
            for name, i in draft.vocabulary.specials().items()
        }

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:  # noqa: ARG002
        guessed = self.guess(state, k, _GREEDY).tokens_BK.tolist()
        drafts = [self._encoded(self.word(state, i), ids)[:k] for i, ids in enumerate(guessed)]
        return Proposal.of_lists(drafts, k, state.budget_B.device)

    def _encoded(self, word: bytes, guessed: Sequence[int]) -> list[int]:
        """The target's tokens for the guessed tokens, up to and including the first special one.

        The guess may continue `word`, so both are encoded together. If a token then crosses their
        boundary, the guess is encoded by itself. Empty if the text would change.
        """
        end = next((i for i, token in enumerate(guessed) if token in self._specials), len(guessed))
        special = [
            target_id for token in guessed[end : end + 1] for target_id in self._specials[token]
        ]
        text = self._draft.text(guessed[:end])
        if not text:
            return special
        for before in (word, b""):
            ids = self._target.encode(before + text)
            num_before = self._num_tokens(ids, len(before))
            if num_before is not None and self._target.text(ids) == before + text:
                return [*ids[num_before:], *special]
        return []

    def _num_tokens(self, ids: Sequence[int], num_bytes: int) -> int | None:
        """The number of tokens in the first `num_bytes` bytes; None if a token crosses the end."""
        num_seen = 0
        for num, token in enumerate(ids):
            if num_seen >= num_bytes:
                return num if num_seen == num_bytes else None
            num_seen += len(self._target.text([token]))
        return len(ids) if num_seen == num_bytes else None
