"""Settings of a training; no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.files.model_spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Settings of a training that a user can choose."""

    method: str
    target: ModelSpec
    out: Path
    prompts: tuple[str, ...] = ()
    prompt_field: str | None = None  # of the rows of files
    texts: Path | None = None  # a file of texts to share between heads of one target
    num_texts: int = 2000
    temperatures: tuple[float, ...] = (0.0, 0.7)
    max_new_tokens: int = 192
    max_tokens: int = 1024  # of a text
    steps: int = 800
    tokens_per_batch: int = 2048
    num_heads: int = 4  # of Medusa
    mtp_layers: int = 1
    rows: int = 32
    dtype: str | None = None
    seed: int = 0
    budget_s: float | None = None
    resume: bool = False

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that the weights depend on; a resumed training must repeat them."""
        return {
            "method": self.method,
            "steps": self.steps,
            "tokens_per_batch": self.tokens_per_batch,
            "num_heads": self.num_heads,
            "mtp_layers": self.mtp_layers,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
        }
