"""Where a weight goes when it is read: to its device at once, packed where that is asked for.

So neither the host nor the device holds more of a model than what it keeps and a few times one
tensor, which conversions and packing take.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from transformers import PreTrainedModel

from specbench.models.quantization import pack, packable

# Transformers' threads read ahead, which would gather the weights on the host; read in each load.
_ONE_BY_ONE = "HF_DEACTIVATE_ASYNC_LOAD"


@contextmanager
def placing(device: torch.device | None, scheme: str | None) -> Iterator[None]:
    """Inside, a model that transformers loads has each weight moved and packed as it is read.

    `device` None leaves weights where transformers puts them, `scheme` None as they are. Buffers
    are not moved. ModelError as `packable` and `pack` have it.
    """
    placed = _Placed(device, scheme)
    hooks = (
        register_module_module_registration_hook(placed.watch),
        register_module_parameter_registration_hook(placed.place),
    )
    before = os.environ.get(_ONE_BY_ONE)
    if scheme is not None or (device is not None and device.type != "cpu"):
        os.environ[_ONE_BY_ONE] = "1"
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        os.environ.pop(_ONE_BY_ONE, None)
        if before is not None:
            os.environ[_ONE_BY_ONE] = before


class _Placed:
    """The model that is being loaded, and which of its layers are still to be packed."""

    def __init__(self, device: torch.device | None, scheme: str | None) -> None:
        self._device = device
        self._scheme = scheme
        self._model: PreTrainedModel | None = None
        self._to_pack: set[int] | None = None

    def watch(self, module: nn.Module, name: str, child: nn.Module | None) -> None:  # noqa: ARG002
        """The last model to take in a part is the whole: its parts are made before."""
        if isinstance(module, PreTrainedModel):
            self._model = module

    def place(self, module: nn.Module, name: str, parameter: nn.Parameter | None) -> Any:
        """What the module keeps in the parameter's place; None: the parameter."""
        # A skeleton's have no memory yet; packed ones come from `pack` below.
        if parameter is None or parameter.is_meta or type(parameter) is not nn.Parameter:
            return None
        moved = parameter if self._device is None else parameter.to(self._device)
        scheme = self._scheme if name == "weight" else None
        if scheme is not None and isinstance(module, nn.Linear) and self._take(module):
            return _packed(module, moved, scheme)
        if moved is parameter:
            return None  # tied parameters stay one
        kept = nn.Parameter(moved.detach(), requires_grad=False)
        vars(kept).update(vars(parameter))  # transformers marks what it has read
        give_back_host_memory()
        return kept

    def _take(self, linear: nn.Linear) -> bool:
        """Whether a layer is to be packed; it is once, though packing sets the weight again."""
        if self._to_pack is None:
            self._to_pack = {id(module) for module in packable(self._model)}
        is_taken = id(linear) in self._to_pack
        self._to_pack.discard(id(linear))
        return is_taken


def _packed(linear: nn.Linear, weight: Tensor, scheme: str) -> Any:
    linear._parameters["weight"] = nn.Parameter(weight.detach(), requires_grad=False)
    pack(linear, scheme)
    kept: Any = linear.weight
    kept._is_hf_initialized = True  # else transformers draws values where its files lack them
    give_back_host_memory()
    return kept


def give_back_host_memory() -> None:
    """Return what was freed to the system, where the C library can (glibc); a few milliseconds.

    By itself it keeps much of what conversions have used, the more the longer a model loads.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
