"""Fake CUDA tensors without a GPU, and a watch for operations that could not be captured as a
graph.

A fake tensor has a shape and a device but no values, so an operation that must know a value
(`.item()`, `bool()`, `nonzero()`) raises by itself: that is a host sync. A copy between host and
device raises nothing; HostWatch finds it.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEVICE = torch.device("cuda:0")
_CUDA, _META = 1, 14  # c10::DeviceType


class HostTensorError(Exception):
    """An operation of the round made, read or copied a tensor on the host."""


class HostWatch(TorchDispatchMode):
    """Raises HostTensorError at the first operation that has a CPU tensor on either side."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, out)):
            if isinstance(leaf, Tensor) and leaf.device.type == "cpu":
                raise HostTensorError(f"{func} has a CPU tensor of shape {tuple(leaf.shape)}")
        return out


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Inside, tensors made on DEVICE are fake, including those of models built there."""
    # Transformers makes scalars on the meta device, which would be refused while a head is built.
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with _device_guard(), mode, torch.no_grad():
        yield


@contextmanager
def _device_guard() -> Iterator[None]:
    """Let a CPU build of torch index fake CUDA tensors.

    Indexing looks up the CUDA device guard even for fake tensors. A CUDA build without a GPU
    puts a guard that does nothing in its place when FakeTensorMode begins; a CPU build has no
    guard to replace, so it gets the one of the meta device, which does nothing either.
    """
    if torch.backends.cuda.is_built():
        yield
        return
    library = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("libc10.*"))))
    guards = (ctypes.c_void_p * (_META + 1)).in_dll(
        library, "_ZN3c104impl26device_guard_impl_registryE"
    )
    before = guards[_CUDA]
    guards[_CUDA] = guards[_META]
    try:
        yield
    finally:
        guards[_CUDA] = before
