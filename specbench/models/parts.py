"""Parts of a transformers model: its class for text, its text modules, and its first layers."""

from copy import copy, deepcopy
from typing import Any

from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM

from specbench.errors import ModelError


def text_class(config: Any, *, trust_remote_code: bool = False) -> Any:
    """The auto class that builds a decoder from this config; ModelError if there is none."""
    if trust_remote_code and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}):
        return AutoModelForCausalLM
    if type(config) in AutoModelForCausalLM._model_mapping:
        return AutoModelForCausalLM
    has_encoder = getattr(config, "is_encoder_decoder", False)
    if type(config) in AutoModelForMultimodalLM._model_mapping and not has_encoder:
        return AutoModelForMultimodalLM
    reason = "has an encoder" if has_encoder else "has no class in transformers that writes text"
    raise ModelError(
        f"cannot be loaded: model type {config.model_type} {reason}; choose a decoder-only model"
    )


class DroppedTower(nn.Module):
    """Replaces a vision or audio tower, whose dtype and device models read even without images."""

    def __init__(self, tower: nn.Module, name: str) -> None:
        super().__init__()
        self.name = name
        first = next(tower.parameters(), None)
        self.dtype = None if first is None else first.dtype
        self.device = None if first is None else first.device

    def forward(self, *_: Any, **__: Any) -> Any:
        raise ModelError(f"{self.name} was not loaded: prompts are plain text")


def keep_text_part(model: Any) -> tuple[str, ...]:
    """Remove the towers of a multimodal model (images, video, sound); returns their names.

    Prompts are text. Towers would take memory and would be counted as weights that a forward reads.
    A model without towers is unchanged.
    """
    if model.config.get_text_config(decoder=True) is model.config:
        return ()
    used = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    decoder = model.get_decoder()
    used |= {id(module) for module in decoder.modules()}
    dropped = []
    for name, module in _modules_above(model, decoder):
        for child_name, child in list(module.named_children()):
            if (
                not used & {id(part) for part in child.modules()}
                and next(child.parameters(), None) is not None
            ):
                full_name = f"{name}.{child_name}" if name else child_name
                setattr(module, child_name, DroppedTower(child, full_name))
                dropped.append(full_name)
    return tuple(dropped)


def _modules_above(model: nn.Module, decoder: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules on the path from the model to its decoder, with their names."""
    path = next((name for name, module in model.named_modules() if module is decoder), "")
    parts = path.split(".") if path else []
    names = [".".join(parts[:i]) for i in range(len(parts))]
    return [(name, model.get_submodule(name)) for name in names]


def cut_model(model: Any, num_layers: int) -> Any:
    """A model with the first `num_layers` layers, the final norm and the head.

    Modules on the path to the layers are copied, and all others are shared; `model` is unchanged.
    Raises ModelError if the layers cannot be found or separated.
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
    """The decoder's layers in order; ModelError if they cannot be found."""
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
    """A new module with the same children."""
    if "forward" in vars(module):  # set by device_map; calls the original module
        raise ModelError(
            f"{type(module).__name__} is spread over devices, so its first layers cannot run "
            "separately; leave out `device_map` or choose another method"
        )
    copied = copy(module)
    copied._modules = dict(module._modules)
    if hasattr(module, "config"):
        copied.config = configs.get(id(module.config), module.config)
    return copied
