"""Moves each weight to its device as it is read, optionally packed, and makes random weights.

The host and the device never need more memory than for their weights and a few tensors in
conversion or packing. Random weights have the right shapes and speeds, but no meaning. Their rows
have mean length 1: at any depth activations neither vanish nor overflow, and logits differ.
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

# Disables transformers' threads, which would read all weights to the host; read at each load.
_NO_READ_AHEAD = "HF_DEACTIVATE_ASYNC_LOAD"


@contextmanager
def placing(device: torch.device | None, scheme: str | None) -> Iterator[None]:
    """Inside the block, transformers' loading moves and packs each weight as it is read.

    `device` None leaves weights on the devices that transformers chooses; `scheme` None does not
    pack them. Buffers are not moved. ModelError as in `packable` and `pack`.
    """
    placed = _WeightPlacer(device, scheme)
    hooks = (
        register_module_module_registration_hook(placed.watch),
        register_module_parameter_registration_hook(placed.place),
    )
    before = os.environ.get(_NO_READ_AHEAD)
    if scheme is not None or (device is not None and device.type != "cpu"):
        os.environ[_NO_READ_AHEAD] = "1"
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        os.environ.pop(_NO_READ_AHEAD, None)
        if before is not None:
            os.environ[_NO_READ_AHEAD] = before


class _WeightPlacer:
    """Moves and packs the weights of the model that is being loaded."""

    def __init__(self, device: torch.device | None, scheme: str | None) -> None:
        self._device = device
        self._scheme = scheme
        self._model: PreTrainedModel | None = None
        self._to_pack: set[int] | None = None

    def watch(self, module: nn.Module, name: str, child: nn.Module | None) -> None:  # noqa: ARG002
        """Store the model: the last one to get a submodule is the whole, built after its parts."""
        if isinstance(module, PreTrainedModel):
            self._model = module

    def place(self, module: nn.Module, name: str, parameter: nn.Parameter | None) -> Any:
        """The parameter that replaces this one in the module; None: it is not replaced."""
        # Those of a skeleton have no memory yet; packed ones come from `pack` below.
        if parameter is None or parameter.is_meta or type(parameter) is not nn.Parameter:
            return None
        moved = parameter if self._device is None else parameter.to(self._device)
        scheme = self._scheme if name == "weight" else None
        if scheme is not None and isinstance(module, nn.Linear) and self._take(module):
            return _packed(module, moved, scheme)
        if moved is parameter:
            return None  # tied parameters stay tied
        placed = nn.Parameter(moved.detach(), requires_grad=False)
        vars(placed).update(vars(parameter))  # transformers marks the parameters it has read
        give_back_host_memory()
        return placed

    def _take(self, linear: nn.Linear) -> bool:
        """Whether to pack a layer; True only once, since packing sets the weight again."""
        if self._to_pack is None:
            self._to_pack = {id(module) for module in packable(self._model)}
        is_taken = id(linear) in self._to_pack
        self._to_pack.discard(id(linear))
        return is_taken


def _packed(linear: nn.Linear, weight: Tensor, scheme: str) -> Any:
    linear._parameters["weight"] = nn.Parameter(weight.detach(), requires_grad=False)
    pack(linear, scheme)
    packed: Any = linear.weight
    packed._is_hf_initialized = True  # otherwise transformers initializes it as a missing weight
    give_back_host_memory()
    return packed


def give_back_host_memory() -> None:
    """Return freed memory to the system, if the C library can (glibc); a few milliseconds.

    Otherwise it keeps much of the memory of conversions, and more the longer a model loads.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def make_skeleton(
    config: PretrainedConfig, dtype: torch.dtype, *, seed: int = 0, trust_remote_code: bool = False
) -> Any:
    """The model without its matrices, which are on the meta device.

    Vectors (norms, biases) and buffers (rotary frequencies) are on the CPU, with the
    architecture's initial values.
    """
    with _matrices_on_meta(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # some vectors are random, such as GPT-OSS's sinks
        auto = text_class(config, trust_remote_code=trust_remote_code)
        return auto.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code)


def fill(skeleton: Any, device: torch.device, *, seed: int, scheme: str | None) -> None:
    """Fill every matrix with seeded random values on the device, and pack linear ones if asked."""
    generator = torch.Generator(device).manual_seed(seed)
    to_pack = {id(linear) for linear in packable(skeleton)} if scheme else set()
    # Keeps tied matrices tied. Weak references, so that a matrix is freed as soon as it is packed.
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
    skeleton.to(device)  # moves the vectors and buffers


@contextmanager
def _matrices_on_meta() -> Iterator[None]:
    """Modules that are made inside keep parameters of two or more dimensions on the meta device."""

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
    """Uniform values with variance 1 / row length, which are cheaper than normal ones."""
    edge = (3 / parameter.shape[-1]) ** 0.5
    values = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
    return nn.Parameter(values.uniform_(-edge, edge, generator=generator), requires_grad=False)
