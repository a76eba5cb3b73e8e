"""Which weights to load and how: the keys that a target and a draft model share."""

from dataclasses import dataclass
from pathlib import Path

from specbench.shipped import DEMO_MODELS

GGUF_ADVICE = (
    "is GGUF, which only llama.cpp reads: measure a .gguf file with --engine llama_cpp, or name "
    "the checkpoint that it was made from (a hub id or a folder with config.json)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """A model as pairings.yaml describes it."""

    source: str  # as written: a Hugging Face id, folder, GGUF file, demo:NAME, shape:NAME
    folder: Path | None = None  # or GGUF file; None: `source` is a Hugging Face id
    revision: str | None = None
    dtype: str = "auto"  # auto: float32 on a CPU, the checkpoint's own on a GPU
    device_map: str | None = None
    quantization: str | None = None  # packed when loaded; None: as the checkpoint is stored
    trust_remote_code: bool = False
    weights_gib: float | None = None  # memory of the weights; 1 GiB is 2**30 bytes
    vocab_size: int | None = None  # rows of the embedding, for a model that is not on this machine

    @property
    def location(self) -> str:
        """The argument for `from_pretrained`."""
        return str(self.folder or self.source)

    @property
    def place(self) -> str:
        """An identity of the model that does not depend on how its folder is written."""
        return self.source if self.folder is None else str(self.folder.resolve())

    @property
    def is_shape(self) -> bool:
        """Whether there is only a config, so the weights are always random."""
        return self.source.startswith("shape:")

    @property
    def is_spread(self) -> bool:
        """Whether accelerate may place its layers on all cards, and on the host."""
        return self.device_map in ("auto", "balanced", "sequential")

    @property
    def is_gguf(self) -> bool:
        """Whether it is a GGUF file, which only llama.cpp reads."""
        return self.folder is not None and self.folder.suffix.lower() == ".gguf"

    @property
    def tokenizer_location(self) -> str:
        """The location of its tokenizer. A shape has none and uses that of the bundled target.

        A shape's text is meaningless, and its vocabulary is larger than that tokenizer's.
        """
        return str(DEMO_MODELS / "target") if self.is_shape else self.location
