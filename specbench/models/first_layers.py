"""The first layers of a transformers model as a model of their own, over the same weights."""

from copy import copy, deepcopy
from typing import Any

from torch import nn

from specbench.errors import ModelError


def cut_model(model: Any, num_layers: int) -> Any:
    """The model with its final norm and head behind its first `num_layers` layers.

    Modules that lie on the way to the layers are copied, all others are shared, and the model
    stays as it is. Raises ModelError where the layers cannot be found or taken alone.
    """
    whole = model.config.get_text_config()
    path = _path_to_layers(model, whole.num_hidden_layers)
    config = deepcopy(model.config)
    text = config.get_text_config()
    text.num_hidden_layers = num_layers
    configs = {id(model.config): config, id(whole): text}

    cut = module = _copied(model, configs)
    for name in path[:-1]:
        module._modules[name] = _copied(module._modules[name], configs)
        module = module._modules[name]
    module._modules[path[-1]] = module._modules[path[-1]][:num_layers]
    return cut


def layers_of(model: Any) -> list[nn.Module]:
    """The decoder's layers in order; ModelError where they cannot be found."""
    module = model
    for name in _path_to_layers(model, model.config.get_text_config().num_hidden_layers):
        module = module._modules[name]
    return list(module)


def _path_to_layers(model: Any, num_layers: int) -> list[str]:
    """The names from the model to the list of its decoder's layers."""
    decoder = model.get_decoder()
    paths = [name for name, module in model.named_modules() if module is decoder]
    lists = [
        name
        for name, module in decoder.named_children()
        if isinstance(module, nn.ModuleList) and len(module) == num_layers
    ]
    if len(paths) != 1 or len(lists) != 1:
        raise ModelError(
            f"{type(model).__name__}: the list of its {num_layers} layers is not found, so its "
            "first layers cannot draft; choose another method"
        )
    return [*(paths[0].split(".") if paths[0] else []), lists[0]]


def _copied(module: Any, configs: dict[int, Any]) -> Any:
    """A module of its own with the same children."""
    if "forward" in vars(module):  # as device_map leaves it: it calls the module it was made for
        raise ModelError(
            f"{type(module).__name__} is spread over devices, so its first layers cannot run "
            "alone; leave out `device_map` or choose another method"
        )
    own = copy(module)
    own._modules = dict(module._modules)
    if hasattr(module, "config"):
        own.config = configs.get(id(module.config), module.config)
    return own
