"""Whether our Triton kernels can run on this machine, and for which vocabularies they are used."""

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

_COMPILERS = ("gcc", "clang")  # one of them is needed to build kernel launchers


def triton_failure(device: torch.device) -> str | None:
    """The reason why Triton kernels cannot run on the device; None if they can."""
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
    """The reason why a small kernel fails, such as no Python.h for Triton's launcher, or an old
    driver; None if it runs."""
    try:
        import_module("specbench.forward.kernels.layer_steps").gate(torch.ones(1, 2, device=device))
    except Exception as error:  # of any class: Triton passes on those of its compiler and driver
        headers = Path(sysconfig.get_path("include"))
        if not (headers / "Python.h").exists():
            return f"Triton finds no Python.h in {headers}; install Python's headers (python3-dev)"
        message = str(error).strip().partition("\n")[0]
        return f"Triton cannot launch a kernel: {type(error).__name__}: {message}"
    return None


# Device types with kernels. Rounds check only this, because looking for modules takes time.
DEVICES = {"cuda"} if _missing() is None else set()


class Switch:
    """Whether our kernels draw tokens: if they can, unless torch is faster at this vocabulary."""

    def __init__(self) -> None:
        self._lost: frozenset[int] = frozenset()  # sizes of these vocabularies

    def is_on(self, x: Tensor, vocab_size: int | None = None) -> bool:
        """Whether they draw on the tensor's device at this vocabulary size; None: at any size."""
        lost = bool(self._lost) if vocab_size is None else vocab_size in self._lost
        return x.device.type in DEVICES and not lost

    def set(self, vocab_size: int, *, on: bool) -> None:
        """Switch the kernels on or off for a vocabulary size; captured graphs do not change."""
        self._lost = self._lost - {vocab_size} if on else self._lost | {vocab_size}

    @contextmanager
    def temporarily(self, vocab_size: int, *, on: bool) -> Iterator[None]:
        """Within this context, `on` applies to this vocabulary size, and other sizes are on."""
        before = self._lost
        self._lost = frozenset() if on else frozenset({vocab_size})
        try:
            yield
        finally:
            self._lost = before


DRAWS = Switch()
TOP_P = Switch()
