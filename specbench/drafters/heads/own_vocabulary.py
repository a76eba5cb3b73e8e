"""The tokens that a head can say, where these are not all of its target's.

Shape suffixes: B rows, T tokens, D the tokens that the head can say, V the target's vocabulary.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from specbench.errors import ModelError
from specbench.models.checkpoint import Checkpoint


def table_shapes(D: int, V: int) -> dict[str, tuple[int, ...]]:
    """The tables beside a head's weights: d2t leads to the target's tokens, t2d marks them."""
    return {"d2t": (D,), "t2d": (V,)}


def target_ids(
    checkpoint: Checkpoint, tables: Mapping[str, Tensor], D: int, V: int
) -> Tensor | None:
    """The target's id of each token the head can say; None: all. d2t holds differences, not ids.

    ModelError where there is none such, or t2d, a mark for each of the target's ids, says others.
    """
    d2t_D, t2d_V = tables.get("d2t"), tables.get("t2d")
    for name in table_shapes(D, V).keys() & tables.keys():
        table = tables[name]
        is_flag = table.dtype == torch.bool and name == "t2d"
        if not is_flag and not _is_whole(table):
            raise ModelError(f"{checkpoint.source}: {name} is of {table.dtype}, not whole numbers")
    if t2d_V is not None and D == V and not t2d_V.any():
        t2d_V = None  # of SafeAILab's heads that say all tokens: never filled in
    if d2t_D is None:
        if D != V:
            raise ModelError(
                f"{checkpoint.source} does not fit: missing: d2t, for draft_vocab_size is {D} and "
                f"vocab_size {V}"
            )
        if t2d_V is not None and not t2d_V.all():
            raise ModelError(f"{checkpoint.source}: t2d leaves tokens out, and there is no d2t")
        return None
    ids_D = torch.arange(D, device=d2t_D.device) + d2t_D
    ids = set(ids_D.tolist())
    if min(ids) < 0 or max(ids) >= V or len(ids) != D:
        raise ModelError(
            f"{checkpoint.source}: d2t does not lead to {D} different tokens of the target's {V}"
        )
    if t2d_V is not None and set(t2d_V.nonzero()[:, 0].tolist()) != ids:
        raise ModelError(
            f"{checkpoint.source}: d2t and t2d name different tokens; one is of another head"
        )
    return ids_D


def spread(logits_BTD: Tensor, target_ids_D: Tensor | None, V: int) -> Tensor:
    """Over the target's vocabulary [B, T, V]; what the head cannot say is -inf."""
    if target_ids_D is None:
        return logits_BTD
    unsaid_BTV = logits_BTD.new_full((*logits_BTD.shape[:2], V), -torch.inf)
    return unsaid_BTV.index_copy(-1, target_ids_D, logits_BTD)


def _is_whole(table: Tensor) -> bool:
    return table.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
