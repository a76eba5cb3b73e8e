"""Attention written out: two products and a softmax in float32; it runs everywhere."""

import torch
from torch import Tensor

from specbench.forward.attention.kernel import Case, Seen
from specbench.forward.attention.masks import visible
from specbench.forward.workspace import Kept, Workspace


class Plain:
    """What the others are measured against, and what is left where they refuse."""

    name = "plain"

    def refusal(self, case: Case) -> str | None:  # noqa: ARG002 - it takes all
        return None

    def look(self, seen: Seen) -> Tensor:
        """Which slots each packed query sees, bool [B, 1, group * T, S]."""
        seen_BTS = visible(
            seen.positions_BT, seen.view.slots_S, window=seen.window, branches=seen.branches
        )
        return seen_BTS.repeat(1, seen.sizes.group, 1)[:, None]

    def attend(self, work: Workspace, kept: Kept, look: Tensor) -> None:
        exact = torch.promote_types(work.qkv.dtype, torch.float32)
        query, keys, values = (
            part.to(exact) for part in (work.unpacked.flatten(2, 3), kept.keys, kept.values)
        )
        scores = query @ keys.transpose(-1, -2) * query.shape[-1] ** -0.5
        weights = scores.masked_fill(~look, -torch.inf).softmax(-1)
        out = weights.nan_to_num(0.0) @ values  # 0 where nothing is seen
        work.spread.copy_(out.view_as(work.spread))
