"""Whether our Triton kernels can run here."""

import os
from functools import cache
from importlib.util import find_spec
from shutil import which

import torch

_COMPILERS = ("gcc", "clang")  # of which it takes one to build what starts a kernel


def why_not(device: torch.device) -> str | None:
    """The reason why torch's own operations run instead; None where Triton's kernels can."""
    if device.type != "cuda":
        return f"Triton has no kernels for a {device.type}"
    return _missing()


@cache
def _missing() -> str | None:
    if find_spec("triton") is None:
        return "Triton is not installed"
    if not (os.environ.get("CC") or any(map(which, _COMPILERS))):
        return f"Triton finds no C compiler ({' or '.join(_COMPILERS)})"
    return None


ON_CUDA = why_not(torch.device("cuda")) is None  # for a round, which looks for no modules
