"""Which architectures the installed transformers has, found without importing it."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

# Model types whose layers keep state of fixed size; transformers marks their classes.
RECURRENT_TYPES = frozenset(
    {
        *("mamba", "mamba2", "falcon_mamba", "falcon_h1", "rwkv", "xlstm", "recurrent_gemma"),
        *("jamba", "bamba", "zamba", "zamba2", "granitemoehybrid", "nemotron_h", "mamba_hybrid"),
        *("qwen3_next", "qwen3_5", "qwen3_5_moe", "kimi_linear", "minimax", "lfm2", "lfm2_moe"),
    }
)


def is_known(model_type: object) -> bool | None:
    """Whether transformers has code for this type of model; None where it is not installed."""
    models = _models()
    if models is None:
        return None
    name = str(model_type).replace("-", "_")
    return any((models / part).is_dir() for part in (name, name.removesuffix("_text")) if part)


@cache
def _models() -> Path | None:
    spec = find_spec("transformers")
    return Path(spec.origin).parent / "models" if spec and spec.origin else None
