"""Models that the decoder would be wrong with, refused by what they are before any forward."""

from typing import Any

from specbench.errors import ModelError
from specbench.files.config import ELSEWHERE, RECURRENT, unsupported_attention
from specbench.forward.context import fields_of
from specbench.forward.state_layers import has_other_state


def refuse_unsupported(model: Any) -> None:
    """ModelError where the decoder would be wrong: recurrent state, unknown attention kinds."""
    name = type(model).__name__
    if has_other_state(model):
        raise ModelError(f"{name} {RECURRENT}")
    if reason := unsupported_attention(fields_of(model.config.get_text_config())):
        raise ModelError(f"{name} {reason}")
    if model.get_output_embeddings() is None:
        raise ModelError(f"{name} names no output head; {ELSEWHERE}")
