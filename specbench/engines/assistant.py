"""A draft model as transformers' assisted generation uses it."""

from typing import Any

from transformers import GenerationConfig
from transformers.utils import is_sklearn_available

from specbench.engines.peer_module import make_peer
from specbench.errors import CompatibilityError
from specbench.files.model_spec import ModelSpec
from specbench.models.loading import LoadedModel

_KEYS = (
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
)


class Assistant:
    """A draft model and how it drafts when nothing is asked for."""

    def __init__(self, spec: ModelSpec, loaded: LoadedModel) -> None:
        self.spec = spec
        self.loaded = loaded
        self._module = make_peer(loaded.model)
        self._defaults = _library_defaults(loaded.model.generation_config)

    def drafting(self, k: int) -> Any:
        """Its module, told to draft exactly `k` tokens a round."""
        self._module.generation_config = GenerationConfig(
            num_assistant_tokens=k,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,
        )
        return self._module

    def drafting_by_default(self) -> Any:
        """Its module, left to the library's own settings."""
        self._module.generation_config = self._defaults
        return self._module

    @property
    def defaults_in_words(self) -> str:
        adapted = ", a threshold that scikit-learn adapts" if is_sklearn_available() else ""
        return (
            f"drafts up to {self._defaults.num_assistant_tokens} tokens per round "
            f"({self._defaults.num_assistant_tokens_schedule}), until one is less likely than "
            f"{self._defaults.assistant_confidence_threshold:g}{adapted}"
        )


def require_same_width(target: LoadedModel, draft: LoadedModel, name: str) -> None:
    """CompatibilityError unless the configs, padding included, name equally many tokens.

    transformers takes another number for another tokenizer.
    """
    target_width, draft_width = (
        loaded.model.config.get_text_config().vocab_size for loaded in (target, draft)
    )
    if target_width != draft_width:
        raise CompatibilityError(
            f"{name}: transformers drafts only between models of equal vocab_size; the target "
            f"has {target_width}, the draft {draft_width}. The engine builtin takes this pair; "
            "for both engines choose a draft of the target's size"
        )


def _library_defaults(checkpoint: GenerationConfig) -> GenerationConfig:
    own = {key: getattr(checkpoint, key) for key in _KEYS}
    # No public name gives the numbers that stand in for None.
    library = GenerationConfig._get_default_generation_params()
    return GenerationConfig(
        **{key: library[key] if value is None else value for key, value in own.items()}
    )
