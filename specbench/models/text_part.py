"""Which class of transformers writes a model's text, and which of its modules text needs."""

from typing import Any

from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM

from specbench.errors import ModelError


def text_class(config: Any, *, trust_remote_code: bool = False) -> Any:
    """The auto class that builds a decoder of this config; ModelError where none does."""
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


class LeftOut(nn.Module):
    """Stands where a tower was: models ask theirs for dtype and device even without images."""

    def __init__(self, tower: nn.Module, name: str) -> None:
        super().__init__()
        self.name = name
        first = next(tower.parameters(), None)
        self.dtype = None if first is None else first.dtype
        self.device = None if first is None else first.device

    def forward(self, *_: Any, **__: Any) -> Any:
        raise ModelError(f"{self.name} was not loaded: prompts hold text alone")


def keep_text_part(model: Any) -> tuple[str, ...]:
    """Drop what a multimodal model needs for images, video or sound; the names of what was dropped.

    Prompts hold text alone, so its towers would only take memory and count as weights that a
    forward reads. A model without such parts stays as it is.
    """
    if model.config.get_text_config(decoder=True) is model.config:
        return ()
    used = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    decoder = model.get_decoder()
    used |= {id(module) for module in decoder.modules()}
    dropped = []
    for name, module in _above(model, decoder):
        for child_name, child in list(module.named_children()):
            if (
                not used & {id(part) for part in child.modules()}
                and next(child.parameters(), None) is not None
            ):
                full = f"{name}.{child_name}" if name else child_name
                setattr(module, child_name, LeftOut(child, full))
                dropped.append(full)
    return tuple(dropped)


def _above(model: nn.Module, decoder: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules on the way from the model to its decoder, with their names."""
    path = next((name for name, module in model.named_modules() if module is decoder), "")
    parts = path.split(".") if path else []
    names = [".".join(parts[:i]) for i in range(len(parts))]
    return [(name, model.get_submodule(name)) for name in names]
