"""How the built-in decoder is to run."""

from dataclasses import dataclass
from typing import Annotated, Literal

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
    acceptance: Annotated[  # simulated, per position: the text means nothing
        tuple[float, ...] | None,
        Option(
            is_rare=True,
            names=("--simulate-acceptance",),
            read=parse_acceptance,
            help="Acceptance rates to simulate: 0.7, 0.8,0.6 (by position) or "
            "histogram:40,20,40. Speeds are real, texts are not.",
            shown=False,
            placeholder="RATES",
        ),
    ] = None
    dummy_weights: Annotated[
        bool, Option(is_rare=True, help="Use random weights; only the config is needed.")
    ] = False

    @property
    def is_synthetic(self) -> bool:
        """Whether the text is meaningless: its speed is real, its acceptance is not."""
        return self.acceptance is not None or self.dummy_weights
