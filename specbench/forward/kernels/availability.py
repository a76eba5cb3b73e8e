"""Whether our Triton kernels can run here, and which of a round's were found right."""

import os
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import torch
from torch import Tensor

_COMPILERS = ("gcc", "clang")  # of which it takes one to build what starts a kernel


def why_not(device: torch.device) -> str | None:
    """The reason why torch's own operations run instead; None if Triton's kernels can."""
    if device.type not in {"cuda", *DEVICES}:
        return f"Triton has no kernels for a {device.type.upper()}"
    return _missing() or _launch_failure(device.type)


@cache
def _missing() -> str | None:
    if find_spec("triton") is None:
        return "Triton is not installed"
    if not (os.environ.get("CC") or any(map(which, _COMPILERS))):
        return f"Triton finds no C compiler ({' or '.join(_COMPILERS)})"
    return None


@cache
def _launch_failure(device: str) -> str | None:
    """Why the smallest kernel does not run: no Python.h for Triton's launcher, or an old driver."""
    try:
        import_module("specbench.forward.kernels.layer_steps").gate(torch.ones(1, 2, device=device))
    except Exception as error:  # Triton raises what its compiler and driver raise
        headers = Path(sysconfig.get_path("include"))
        if not (headers / "Python.h").exists():
            return f"Triton finds no Python.h in {headers}; install Python's headers (python3-dev)"
        message = str(error).strip().partition("\n")[0]
        return f"Triton cannot launch a kernel: {type(error).__name__}: {message}"
    return None


# For a round, which looks for no modules.
DEVICES = {"cuda"} if _missing() is None else set()


class Switch:
    """Whether our kernels draw: if they can, except for vocabularies at which they were slower."""

    def __init__(self) -> None:
        self._lost: frozenset[int] = frozenset()

    def is_on(self, x: Tensor, vocab_size: int | None = None) -> bool:
        """For a tensor and a vocabulary of `vocab_size` tokens; None: for any."""
        lost = bool(self._lost) if vocab_size is None else vocab_size in self._lost
        return x.device.type in DEVICES and not lost

    def turn(self, vocab_size: int, *, on: bool) -> None:
        """From now on, for such vocabularies; what is captured stays as it is."""
        self._lost = self._lost - {vocab_size} if on else self._lost | {vocab_size}

    @contextmanager
    def turned(self, vocab_size: int, *, on: bool) -> Iterator[None]:
        """Inside, for only such vocabularies."""
        before = self._lost
        self._lost = frozenset() if on else frozenset({vocab_size})
        try:
            yield
        finally:
            self._lost = before


DRAWS = Switch()
TOP_P = Switch()
