"""How the built-in decoder is to run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from specbench.errors import UsageError
from specbench.settings.option import Option
from specbench.settings.words import parse_acceptance

ModelImplementation = Annotated[
    Literal["auto", "stock", "fused"],
    Option(
        is_rare=True,
        names=("--model-impl",),
        help="Forward pass: auto, stock (transformers) or fused (dense Llama family).",
    ),
]
CudaGraph = Annotated[
    Literal["auto", "off", "step", "round"],
    Option(is_rare=True, names=("--cuda-graph",), help="CUDA graphs: auto, off, step or round."),
]
AttentionBackend = Annotated[
    Literal["auto", "triton", "flash_attn", "flash", "efficient", "cudnn", "torch", "plain"],
    Option(
        is_rare=True,
        names=("--attention-backend",),
        help="Attention: auto (the fastest on this machine), triton, flash_attn, flash, efficient, "
        "cudnn, torch or plain.",
    ),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderSettings:
    """The built-in decoder."""

    forward: ModelImplementation = "auto"
    graph: CudaGraph = "auto"
    kernels: AttentionBackend = "auto"
    # Simulated, per position, or by K from a file, which is its name until it is read.
    acceptance: Annotated[
        tuple[float, ...] | Mapping[int, tuple[float, ...]] | str | None,
        Option(
            is_rare=True,
            names=("--simulate-acceptance",),
            read=parse_acceptance,
            help="Acceptance to simulate: 0.7, 0.8,0.6 (by position), histogram:40,20,40 or a file "
            "that import reads. Speeds are real, texts are not.",
            shown=False,
            placeholder="RATES",
        ),
    ] = None
    dummy_weights: Annotated[
        bool, Option(is_rare=True, help="Use random weights; only the config is needed.")
    ] = False

    @property
    def simulated(self) -> tuple[float, ...] | Mapping[int, tuple[float, ...]] | None:
        """The acceptance to simulate. UsageError if it is still the name of a file."""
        if isinstance(self.acceptance, str):
            raise UsageError(f"simulated acceptance {self.acceptance!r}: expected rates")
        return self.acceptance

    @property
    def is_synthetic(self) -> bool:
        """Whether the text is meaningless: its speed is real, its acceptance is not."""
        return self.acceptance is not None or self.dummy_weights
