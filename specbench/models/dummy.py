"""Models made from their config alone: the right shapes and speeds, and no meaning.

Every matrix is drawn on the device in its final dtype, one after the other, so that at most one
is held twice (while it is packed). Rows have length 1 in the mean, so that activations neither
vanish nor overflow and logits differ from token to token, for any depth.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import PretrainedConfig

from specbench.models.quantization import pack, packable
from specbench.models.text_part import text_class


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
