"""Sizes that a config.json may tell: what no model has is refused before anyone counts by it."""

from collections.abc import Mapping
from pathlib import Path

from specbench.errors import ModelError
from specbench.model_files.fields import MOST_LAYERS
from specbench.model_files.headers import MODEL_WEIGHTS, weights_headers
from specbench.model_files.model import ModelFiles

# Far above any model; a number beyond is a slip of the pen or a trap.
_MOST: Mapping[str, int] = {
    "hidden_size": 2**20,
    "intermediate_size": 2**24,
    "num_hidden_layers": MOST_LAYERS,
    "num_attention_heads": 2**14,
    "num_key_value_heads": 2**14,
    "head_dim": 2**16,
    "vocab_size": 2**24,
}
_MAY_BE_ZERO = ("intermediate_size", "num_key_value_heads")  # of layers that have none


def require_sizes(model: ModelFiles) -> None:
    """ModelError with field and value for a size that is not a number, or that no model has.

    A list has one number per layer.
    """
    for name, most in _MOST.items():
        value = model.field(name)
        least = 0 if name in _MAY_BE_ZERO else 1
        for one in value if isinstance(value, list) else [value]:
            is_whole = isinstance(one, int) and not isinstance(one, bool)
            if one is not None and not (is_whole and least <= one <= most):
                shown = repr(one)
                raise ModelError(
                    f"{model.spec.source}: config.json: {name} is "
                    f"{shown if len(shown) <= 40 else shown[:37] + '...'}; it has to be a whole "
                    f"number, {least} to {most:,}"
                )


def require_width(folder: Path, width: int | None) -> None:
    """ModelError where no tensor of plain weights there has the dimension `hidden_size`.

    A config that has lost its sizes gets the library's defaults, those of a far larger model, for
    which memory would be taken before a single shape is compared.
    """
    try:
        tensors = weights_headers(folder, MODEL_WEIGHTS)
    except ModelError:  # whoever loads them says why
        return
    if tensors and width is not None and not any(width in one.shape for one in tensors.values()):
        raise ModelError(
            f"with this config.json hidden_size is {width}, which no tensor of its weights has; "
            "take the config.json that the weights came with"
        )
