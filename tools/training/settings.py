"""Settings of a training, the recipe of each method, and the atomic replacement of its files."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

from specbench.errors import StoreError
from specbench.files.model_spec import ModelSpec
from specbench.settings.groups import PromptField, Seed
from specbench.settings.option import Option
from specbench.settings.words import MAX_CONCURRENCY, parse_seconds, parse_temperatures
from specbench.whole_file import replaced as replaced_whole

MAX_TOKENS = 1024  # per training text


class Recipe(NamedTuple):
    """The training of a head: learning rates for a target with hidden size 128, and its losses.

    Each pass over a text continues from the states that the head made in the pass before. Without
    passes, the head drafts only from the target's states.
    """

    muon_lr: float
    adamw_lr: float
    passes: int = 0  # of a head with one layer; with several, one per layer
    feature_weight: float = 0.0  # of the loss that makes states similar to the target's
    is_noisy: bool = False
    size: str = ""  # the argument of `new_checkpoint` with the number of heads or layers
    has_vocabulary: bool = False  # a separate vocabulary and output


RECIPES = {
    # Trained on one pass, features drift: the second draft is accepted a third as often.
    "eagle": Recipe(muon_lr=4e-3, adamw_lr=2e-3, passes=3, feature_weight=0.5, is_noisy=True),
    # Without a loss on features, drafts deeper than `passes` are rarely accepted.
    "eagle3": Recipe(muon_lr=4e-3, adamw_lr=4e-3, passes=5, has_vocabulary=True),
    "medusa": Recipe(muon_lr=8e-3, adamw_lr=4e-3, size="num_heads"),
    "mtp": Recipe(muon_lr=4e-3, adamw_lr=2e-3, passes=2, size="num_layers"),
}


def _names(items: list[str]) -> tuple[str, ...]:
    return tuple(name.strip() for item in items for name in item.split(","))


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """A head and its training."""

    method: Annotated[
        str,
        Option(
            is_argument=True,
            help="Method whose head is trained, such as eagle3.",
            placeholder="METHOD",
        ),
    ]
    target: Annotated[
        str,
        Option(help="Target in pairings.yaml, hub id, folder or demo:target.", placeholder="MODEL"),
    ]
    out: Annotated[
        Path,
        Option(
            names=("--output", "-o"),
            help="Folder for the head; name it as `model:` in a pairing.",
            placeholder="DIR",
        ),
    ]
    prompts: Annotated[
        tuple[str, ...],
        Option(
            names=("--workload", "-w"),
            is_repeated=True,
            read=_names,
            help="Workloads or files of prompts; may be repeated.",
            shown="its corpus for demo:target, else all shipped workloads",
        ),
    ] = ()
    prompt_field: PromptField = None
    texts: Annotated[
        Path | None,
        Option(help="File of the target's answers, which several heads can share.", shown=False),
    ] = None
    num_texts: Annotated[int, Option(min=20, max=10**7, help="Number of answers to train on.")] = (
        2000
    )
    temperatures: Annotated[
        tuple[float, ...],
        Option(
            names=("--temperature",),
            read=parse_temperatures,
            help="Temperatures of the answers, mixed; 0 is greedy.",
            placeholder="N",
        ),
    ] = (0.0, 0.7)
    max_new_tokens: Annotated[int, Option(min=2, max=131072, help="Maximum tokens per answer.")] = (
        192
    )
    steps: Annotated[int, Option(min=1, max=10**7, help="Number of training batches.")] = 800
    tokens_per_batch: Annotated[
        int, Option(min=32, max=10**7, help="Approximate tokens per batch.")
    ] = 2048
    num_heads: Annotated[int, Option(min=1, max=16, help="Number of Medusa heads.")] = 4
    mtp_layers: Annotated[int, Option(min=1, max=8, help="Number of MTP layers.")] = 1
    rows: Annotated[
        int, Option(min=1, max=MAX_CONCURRENCY, help="Answers decoded at the same time.")
    ] = 32
    seed: Seed = 0
    budget_s: Annotated[
        float | None,
        Option(
            names=("--time-budget",),
            read=parse_seconds,
            help="Time to spend, such as 5m; reduces the steps.",
            shown=False,
            placeholder="DURATION",
        ),
    ] = None
    resume: Annotated[bool, Option(help="Resume the training in --output.")] = False


@dataclass(frozen=True, kw_only=True)
class TrainSettings(TrainOptions):
    """The options of a training, and the target's model."""

    spec: ModelSpec
    dtype: str | None = None

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
    """A stream whose content replaces `path` on exit; StoreError if the disk reports an error."""
    try:
        with replaced_whole(path) as stream:
            yield stream
    except Exception as error:
        reason = _disk_error(error)
        if reason is None:
            raise
        raise not_written(path, reason) from error


def not_written(path: Path, error: OSError) -> StoreError:
    """The error for the user. The files that a training resumes from are unchanged."""
    return StoreError(
        f"{path} cannot be written: {error.strerror}. Free disk space or fix the problem, "
        "then resume with the same command plus --resume: finished answers and saved steps are kept"
    )


def _disk_error(error: BaseException | None) -> OSError | None:
    """The OSError that caused this error: torch.save raises a RuntimeError instead."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error
