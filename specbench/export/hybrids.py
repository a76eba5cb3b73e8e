"""What engines do with drafts for a target that has recurrent layers, where its files are here.

Such a layer's state has to be rolled back after a rejected draft, and not every engine does it.
"""

from specbench.errors import ModelError
from specbench.files.config import is_hybrid
from specbench.files.model import open_model
from specbench.files.model_spec import ModelSpec

# By engine; the numbers are those of its own issues and pull requests, as read in 2026.
_KNOWN = {
    "vllm": (
        "vLLM rolls it back, but issues 39273 (other text with ngram) and 57721 (it does not "
        "start) were open when they were read, in 2026"
    ),
    "llama_cpp": (
        "llama.cpp turned speculation off for it before pull request 19493 (April 2026), and "
        "copies the whole state in every round since then, which may cost more than drafts bring"
    ),
}
_UNKNOWN = "no source that was read says whether this engine rolls it back with this method"


def recurrent_type(spec: ModelSpec) -> str | None:
    """The model type of one with recurrent layers, by its config; None of others, and of those that
    are elsewhere or cannot be read."""
    try:
        files = open_model(spec)
        return str(files.field("model_type")) if is_hybrid(files.field) else None
    except ModelError:
        return None


def hybrid_lost(engine: str, target: ModelSpec) -> list[str]:
    """In words, for a target that is drafted for; nothing for one with attention alone."""
    if recurrent_type(target) is None:
        return []
    return [
        f"{target.source} has recurrent layers, whose state is rolled back after a rejected draft: "
        f"{_KNOWN.get(engine, _UNKNOWN)}; compare its text with that of -k 0 (specbench verify)"
    ]
