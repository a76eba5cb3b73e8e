"""Weights from files or from a config: each goes to its device as it is read, packed if asked for.

Neither the host nor the device holds more of a model than what it keeps and a few times one tensor,
which conversions and packing take. Random weights for a config have the right shapes and speeds,
but no meaning: rows have length 1 in the mean, so that activations neither vanish nor overflow and
logits differ from token to token, for any depth.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from transformers import PretrainedConfig, PreTrainedModel

from specbench.models.parts import text_class
from specbench.models.quantization import pack, packable

# Transformers' threads read ahead, which would gather the weights on the host; read in each load.
_ONE_BY_ONE = "HF_DEACTIVATE_ASYNC_LOAD"


@contextmanager
def placing(device: torch.device | None, scheme: str | None) -> Iterator[None]:
    """Inside, a model that transformers loads has each weight moved and packed as it is read.

    `device` None leaves weights on the devices that transformers chose, `scheme` None as they are.
    Buffers are not moved. ModelError as `packable` and `pack` have it.
    """
    placed = _WeightPlacer(device, scheme)
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


class _WeightPlacer:
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
        """The replacement that the module keeps for the parameter; None: the parameter itself."""
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
    kept._is_hf_initialized = True  # else transformers draws values that its files lack
    give_back_host_memory()
    return kept


def give_back_host_memory() -> None:
    """Return freed memory to the system, if the C library can (glibc); a few milliseconds.

    Otherwise it keeps much of what conversions used, the more the longer a model loads.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def make_skeleton(
    config: PretrainedConfig, dtype: torch.dtype, *, seed: int = 0, trust_remote_code: bool = False
) -> Any:
    """The model without its matrices, which are on the meta device.

    Vectors (norms, biases) and buffers (rotary frequencies) are on the CPU as the architecture
    starts them.
    """
    with _matrices_on_meta(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # some vectors are drawn: GPT-OSS's sinks
        auto = text_class(config, trust_remote_code=trust_remote_code)
        return auto.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code)


def fill(skeleton: Any, device: torch.device, *, seed: int, scheme: str | None) -> None:
    """Fill every matrix with seeded random values on the device, and pack linear ones if asked."""
    generator = torch.Generator(device).manual_seed(seed)
    to_pack = {id(linear) for linear in packable(skeleton)} if scheme else set()
    # Tied matrices stay one. Weak, so that a matrix is given back as soon as it is packed.
    made: WeakValueDictionary[int, nn.Parameter] = WeakValueDictionary()
    for module in skeleton.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not parameter.is_meta:
                continue
            drawn = made.get(id(parameter))
            if drawn is None:
                drawn = made[id(parameter)] = _random_like(parameter, device, generator)
            setattr(module, name, drawn)
            del drawn
        if scheme and id(module) in to_pack:
            pack(module, scheme)
    skeleton.to(device)  # the vectors and buffers


@contextmanager
def _matrices_on_meta() -> Iterator[None]:
    """Parameters of two dimensions and more lose their memory when a module takes them in."""

    def forget(module: nn.Module, name: str, parameter: nn.Parameter | None) -> Any:  # noqa: ARG001
        if parameter is None or parameter.ndim < 2 or parameter.is_meta:
            return None
        return nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)

    hook = register_module_parameter_registration_hook(forget)
    try:
        yield
    finally:
        hook.remove()


def _random_like(
    parameter: nn.Parameter, device: torch.device, generator: torch.Generator
) -> nn.Parameter:
    """Uniform with variance 1 / row length: cheaper than normal values, and as good here."""
    edge = (3 / parameter.shape[-1]) ** 0.5
    values = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
    return nn.Parameter(values.uniform_(-edge, edge, generator=generator), requires_grad=False)
