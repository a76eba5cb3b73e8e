"""How many tokens of context a loaded model was made for."""

from functools import partial
from typing import Any

from specbench.errors import ModelError
from specbench.files.config import ReadField, longest_context
from specbench.forward.attention.reach import field


def fields_of(config: Any) -> ReadField:
    """The fields of a loaded config, as the files' rules read them."""
    return partial(field, config)


def context_limit(config: Any) -> int | None:
    """Tokens of context the model was made for, up to where its positions change their meaning."""
    return longest_context(fields_of(config))


def check_context(limit: int | None, num_tokens: int) -> None:
    """ModelError where a request's `num_tokens` are more than the target's context holds."""
    if limit is not None and num_tokens > limit:
        raise ModelError(
            f"prompt and output take {num_tokens} tokens, the target's context has {limit}; "
            "choose shorter prompts or a smaller --max-new-tokens"
        )
