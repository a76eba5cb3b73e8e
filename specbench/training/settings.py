"""Settings of a training, and its files, which are replaced atomically; no torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from specbench.errors import StoreError
from specbench.files.model_spec import ModelSpec
from specbench.whole_file import replaced as replaced_whole

MAX_TOKENS = 1024  # of a text


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
            "max_tokens": MAX_TOKENS,
            "seed": self.seed,
        }


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Replaces `path` at the end by what was written; StoreError if the disk refuses."""
    try:
        with replaced_whole(path) as stream:
            yield stream
    except Exception as error:
        reason = _of_the_disk(error)
        if reason is None:
            raise
        raise not_written(path, reason) from error


def not_written(path: Path, error: OSError) -> StoreError:
    """The error for a user; everything that a training resumes from is unchanged."""
    return StoreError(
        f"{path} cannot be written: {error.strerror}. Free disk space or fix the problem, "
        "then resume with the same command plus --resume: finished answers and saved steps are kept"
    )


def _of_the_disk(error: BaseException | None) -> OSError | None:
    """The disk's error behind the RuntimeError that torch.save raises."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error
