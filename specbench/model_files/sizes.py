"""Sizes that a config.json may tell: what no model has is refused before anyone counts by it."""

from collections.abc import Mapping

from specbench.errors import ModelError
from specbench.model_files.fields import MOST_LAYERS
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
