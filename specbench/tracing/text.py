"""A finished answer of the target, and a sampler that draws nothing else.

Shape suffixes: B rows, T positions, C capacity of a row in tokens, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.decode.sampling import Sampler
from specbench.records import Sampling

NOTHING = -1  # in place of a token where the text has ended: no draft equals it


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetText:
    """One turn as the target answered it without drafts; `seed` is that of its noise.

    `max_new_tokens` is the budget that it was decoded with: a draft beyond it is none.
    """

    workload: str
    prompt_id: str
    turn: int
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling
    seed: int
    repeat: int = 0
    prediction_ids: tuple[int, ...] = ()  # a text that the answer may resemble
    context: int | None = None  # as in CellKey

    @property
    def num_starts(self) -> int:
        """Tokens after which a round can start: all but the last."""
        return len(self.output_ids) - 1

    def by_position(self, capacity: int, device: torch.device) -> Tensor:
        """Prompt and output [C], NOTHING past their end."""
        tokens = [*self.prompt_ids, *self.output_ids]
        padding = [NOTHING] * (capacity - len(tokens))
        return torch.tensor([*tokens, *padding], device=device)


class TextSampler(Sampler):
    """Whoever draws from it, target or draft, gets the token that the text has at that place.

    Distributions are as ever. So a draft that is drawn follows the text to any depth, and the
    distribution that each of the text's tokens might have been drawn from is in the proposal.
    """

    def __init__(self, sampling: Sampling, text_C: Tensor) -> None:
        super().__init__(sampling)
        self._text_C = text_C

    def pick(self, logits_BTV: Tensor, seeds_B: Tensor, positions_BT: Tensor) -> Tensor:  # noqa: ARG002
        return self._text_C[positions_BT]

    def guess(self, probs_BTV: Tensor, seeds_B: Tensor, positions_BT: Tensor) -> Tensor:  # noqa: ARG002
        return self._text_C[positions_BT].clamp(min=0)
