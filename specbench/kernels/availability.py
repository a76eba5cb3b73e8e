"""Whether our Triton kernels can run here."""

from functools import cache
from importlib.util import find_spec

import torch


def why_not(device: torch.device) -> str | None:
    """The reason why torch's own operations run instead; None where Triton's kernels can."""
    if device.type != "cuda":
        return f"Triton has no kernels for a {device.type}"
    return None if _is_installed() else "Triton is not installed"


@cache
def _is_installed() -> bool:
    return find_spec("triton") is not None


ON_CUDA = why_not(torch.device("cuda")) is None  # for a round, which looks for no modules
