"""How far two computations of the same may be apart."""

import torch
from torch import Tensor

# The largest error allowed, of the root mean square of what comes out.
_ALLOWED = {torch.float64: 1e-4, torch.float32: 2e-3, torch.float16: 0.02, torch.bfloat16: 0.1}


def wrong(got: Tensor, expected: Tensor, dtype: torch.dtype) -> str | None:
    """What is wrong with numbers that were computed in `dtype`; None where it is rounding."""
    error = (got.float() - expected.float()).abs().max() / expected.float().square().mean().sqrt()
    allowed = _ALLOWED[dtype]
    if error <= allowed:  # and not where it is no number
        return None
    return f"it is wrong: off by {float(error):.2g} of the output's size ({allowed:g} is rounding)"
