"""The tokens that a head can say, where these are not all of its target's.

Shape suffixes: B rows, T tokens, D the tokens that the head can say, V the target's vocabulary.
"""

import torch
from torch import Tensor


def spread(logits_BTD: Tensor, target_ids_D: Tensor | None, V: int) -> Tensor:
    """Over the target's vocabulary [B, T, V]; what the head cannot say is -inf."""
    if target_ids_D is None:
        return logits_BTD
    unsaid_BTV = logits_BTD.new_full((*logits_BTD.shape[:2], V), -torch.inf)
    return unsaid_BTV.index_copy(-1, target_ids_D, logits_BTD)
