"""Our attention, as if Triton compiled it on a CPU, except for rounds of four tokens."""

from pathlib import Path
from typing import Any

import pytest
from triton.runtime.errors import OutOfResources

from specbench.engines import kernel_choices
from specbench.forward import autotune
from specbench.forward.attention.candidates import USUAL
from specbench.forward.attention.implementations import AttentionInputs, MaskedAttention


class RefusedAtK3(MaskedAttention):
    def build_metadata(self, inputs: AttentionInputs) -> Any:
        if inputs.positions_BT.shape[1] == 4:  # none of the shapes that are compared
            raise OutOfResources(245_760, 232_448, "shared memory")
        return super().build_metadata(inputs)


def choose_refused_triton(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """It wins every comparison of attention kernels, which are stored in the folder."""
    ours, tune = RefusedAtK3("triton"), kernel_choices.autotune_attention
    patch.setattr(
        kernel_choices, "autotune_attention", lambda case, _, timing: tune(case, [ours], timing)
    )
    patch.setitem(kernel_choices.BY_NAME, "triton", ours)
    patch.setattr(kernel_choices, "KERNELS", (ours, USUAL))
    patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    patch.setattr(autotune, "_known", {})
