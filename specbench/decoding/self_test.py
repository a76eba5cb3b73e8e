"""Checks a loaded model over slots against its own plain forward, before it is trusted.

An architecture nobody tried can be wrong in silence; this costs milliseconds.
Shape suffixes: B rows, T tokens, V vocabulary.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from specbench.decoding.fused_runner import FusedRunner
from specbench.decoding.fused_weights import can_fuse
from specbench.decoding.runner import Runner, StockRunner
from specbench.errors import ModelError

Forward = Literal["auto", "stock", "fused"]

_LENGTHS = (9, 6)  # ragged rows
_FIRST_ROW = 1  # of the rows that are fed: a row before them must not matter
# Norms and rotary positions are float32 inside a float64 model.
_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.1}


@torch.inference_mode()
def make_checked_runner(model: Any, forward: Forward = "auto") -> tuple[Runner, tuple[str, ...]]:
    """A runner whose logits equal the model's own, and what a reader should know of it.

    `auto` is the fused forward where there is one and it agrees, else the stock one. Two
    ragged rows are prefilled in two chunks, a wrong token is written and rolled back. Raises
    ModelError when the logits differ by more than rounding, or `fused` is not to be had.
    """
    generator = torch.Generator().manual_seed(0)
    vocab_size = model.get_output_embeddings().weight.shape[0]
    T = max(_LENGTHS)
    tokens_BT = torch.randint(0, min(vocab_size, 1000) - 1, (2, T), generator=generator)
    tokens_BT = tokens_BT.to(model.device)
    model.set_attn_implementation("eager")
    plain = [_plain(model, tokens_BT[i : i + 1, :n]) for i, n in enumerate(_LENGTHS)]

    notes: tuple[str, ...] = ()
    if forward != "stock":
        reason = can_fuse(model)
        if reason is None:
            fused = FusedRunner(model)
            reason = _difference(fused, tokens_BT, plain)
            if reason is None:
                return fused, _not_crossed(model)
        if forward == "fused":
            raise ModelError(
                f"{type(model).__name__}: no fused forward: {reason}; use --forward auto or stock"
            )
        notes = (f"stock forward: {reason}",)
    stock = StockRunner(model)
    if difference := _difference(stock, tokens_BT, plain):
        raise ModelError(
            f"{type(model).__name__}: {difference}; this architecture is not supported"
        )
    return stock, (*notes, *_not_crossed(model))


def _plain(model: Any, tokens_1T: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=tokens_1T, use_cache=False).logits
    return logits[0]


def _difference(runner: Runner, tokens_BT: Tensor, plain: list[Tensor]) -> str | None:
    """How far the runner's logits are from the model's own; None: within rounding."""
    slots = _over_slots(runner, tokens_BT)
    dtype = plain[0].dtype
    worst = 0.0
    for row, (expected_TV, length) in enumerate(zip(plain, _LENGTHS, strict=True)):
        scale = expected_TV.double().std().clamp(min=1e-6)
        gap = (slots[row, :length].double() - expected_TV.double()).abs().max() / scale
        worst = max(worst, float(gap.nan_to_num(torch.inf)))
    if worst <= _TOLERANCE[dtype]:
        return None
    return (
        f"the decoder's logits differ from the model's own by {worst:.2g} of their spread "
        f"({_TOLERANCE[dtype]:g} is rounding in {dtype})"
    )


def _over_slots(runner: Runner, tokens_BT: Tensor) -> Tensor:
    """Logits [B, T, V] fed as: 4 tokens; one wrong token, rolled back; the rest."""
    runner.allocate(_FIRST_ROW + len(tokens_BT), 64)
    positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand(2, -1)

    def feed(tokens: Tensor, first: int) -> Tensor:
        positions = positions_BT[:, first : first + tokens.shape[1]]
        return runner.forward(tokens, positions, 64, first_row=_FIRST_ROW).logits.clone()

    head = feed(tokens_BT[:, :4], 0)
    feed(tokens_BT[:, 4:5] + 1, 4)
    return torch.cat([head, feed(tokens_BT[:, 4:], 4)], 1)


def _not_crossed(model: Any) -> tuple[str, ...]:
    window = getattr(model.config.get_text_config(), "sliding_window", None)
    if window is None or window < max(_LENGTHS):
        return ()
    return (f"the self-test is shorter than the sliding window of {window} tokens",)
