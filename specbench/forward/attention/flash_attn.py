"""The flash-attn package, where it is installed: chains over a cache, each row's slots shared out.

Shape suffixes: B rows, T new tokens, H query heads, D head size.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from torch import Tensor

from specbench.errors import first_line
from specbench.forward.attention.kernel import Case, Seen
from specbench.forward.attention.varlen import VarlenFlash
from specbench.forward.workspace import Kept, Workspace

_MODULES = ("flash_attn_interface", "flash_attn")  # of version 3, and of 2


class FlashAttnLook(NamedTuple):
    """How far each row has got once the new tokens are in it, int32."""

    lengths_B: Tensor
    window: int | None


class FlashAttn:
    """Its function for decoding takes lengths, windows and grouped heads, and no trees."""

    name = "flash_attn"

    def refusal(self, case: Case) -> str | None:
        if reason := VarlenFlash().refusal(case):  # both are the same kernels, of another age
            return reason
        return import_failure()

    def look(self, seen: Seen) -> FlashAttnLook:
        return FlashAttnLook((seen.positions_BT[:, -1] + 1).int(), seen.window)

    def attend(self, work: Workspace, kept: Kept, look: FlashAttnLook) -> None:
        B, D = len(look.lengths_B), work.heads.shape[-1]
        T, H = len(work.joined) // B, work.joined.shape[1] // D
        attend: Any = import_module(_module() or "flash_attn").flash_attn_with_kvcache
        out = attend(
            work.qkv[:, : H * D].view(B, T, H, D),
            kept.keys.transpose(1, 2),
            kept.values.transpose(1, 2),
            cache_seqlens=look.lengths_B,
            causal=True,
            window_size=(-1, -1) if look.window is None else (look.window - 1, 0),
        )
        work.joined.view(B, T, H, D).copy_(out)


def import_failure() -> str | None:
    """Why the package cannot be used, whatever the case; None if it can."""
    if not (name := _module()):
        return "flash-attn is not installed"
    try:
        import_module(name)
    except Exception as error:  # built for another torch, say
        return f"{name} cannot be imported: {first_line(error)}"
    return None


def _module() -> str | None:
    return next((name for name in _MODULES if find_spec(name) is not None), None)
