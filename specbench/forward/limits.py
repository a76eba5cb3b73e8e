"""Limits of a loaded model: which models the decoder refuses, and how long a context may be."""

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
    """Tokens of context the model was made for, before its positions change their meaning."""
    return longest_context(fields_of(config))


def check_context(limit: int | None, num_tokens: int) -> None:
    """ModelError if a request's `num_tokens` are more than the target's context holds."""
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
