"""Limits of a loaded model: architectures that the decoder does not support, and the context."""

from functools import partial
from typing import Any

from specbench.errors import ModelError
from specbench.files.config import (
    ELSEWHERE,
    RECURRENT,
    ReadField,
    longest_context,
    unsupported_attention,
)
from specbench.forward.attention.reach import field
from specbench.forward.state_layers import has_other_state


def fields_of(config: Any) -> ReadField:
    """The fields of a loaded config, as the files' rules read them."""
    return partial(field, config)


def context_limit(config: Any) -> int | None:
    """The longest context in tokens at which the model's positions are valid."""
    return longest_context(fields_of(config))


def check_context(limit: int | None, num_tokens: int) -> None:
    """Raise ModelError if a request's `num_tokens` exceed the target's context."""
    if limit is not None and num_tokens > limit:
        raise ModelError(
            f"prompt and output take {num_tokens} tokens, the target's context has {limit}; "
            "choose shorter prompts or a smaller --max-new-tokens"
        )


def refuse_unsupported(model: Any) -> None:
    """ModelError if the decoder would be wrong: recurrent state, unknown attention kinds."""
    name = type(model).__name__
    if has_other_state(model):
        raise ModelError(f"{name} {RECURRENT}")
    if reason := unsupported_attention(fields_of(model.config.get_text_config())):
        raise ModelError(f"{name} {reason}")
    if model.get_output_embeddings() is None:
        raise ModelError(f"{name} names no output head; {ELSEWHERE}")
