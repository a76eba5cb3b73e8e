"""Checks a loaded model over slots against its own plain forward, before it is trusted.

An architecture nobody tried can be wrong in silence; this costs milliseconds.
Shape suffixes: B rows, T tokens, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from specbench.decoding.runner import StockRunner
from specbench.errors import ModelError

_LENGTHS = (9, 6)  # ragged rows
# Norms and rotary positions are float32 inside a float64 model.
_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.1}


@torch.inference_mode()
def make_checked_runner(model: Any) -> tuple[StockRunner, tuple[str, ...]]:
    """A runner whose logits equal the model's own, and what the check did not cross.

    Two ragged rows are prefilled in two chunks, a wrong token is written and rolled back.
    Raises ModelError when the logits differ by more than rounding.
    """
    generator = torch.Generator().manual_seed(0)
    vocab_size = model.get_output_embeddings().weight.shape[0]
    T = max(_LENGTHS)
    tokens_BT = torch.randint(0, min(vocab_size, 1000) - 1, (2, T), generator=generator)
    tokens_BT = tokens_BT.to(model.device)
    model.set_attn_implementation("eager")
    plain = [_plain(model, tokens_BT[i : i + 1, :n]) for i, n in enumerate(_LENGTHS)]

    runner = StockRunner(model)
    runner.allocate(2, 64)
    slots = _over_slots(runner, tokens_BT)
    for row, (expected_TV, length) in enumerate(zip(plain, _LENGTHS, strict=True)):
        _require_close(model, slots[row, :length], expected_TV)
    return runner, _not_crossed(runner)


def _plain(model: Any, tokens_1T: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=tokens_1T, use_cache=False).logits
    return logits[0]


def _over_slots(runner: StockRunner, tokens_BT: Tensor) -> Tensor:
    """Logits [B, T, V] fed as: 4 tokens; one wrong token, rolled back; the rest."""
    positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand(2, -1)

    def feed(tokens: Tensor, first: int) -> Tensor:
        stop = first + tokens.shape[1]
        return runner.forward(tokens, positions_BT[:, first:stop], 64).logits

    head = feed(tokens_BT[:, :4], 0)
    feed(tokens_BT[:, 4:5] + 1, 4)
    return torch.cat([head, feed(tokens_BT[:, 4:], 4)], 1)


def _require_close(model: Any, got_TV: Tensor, expected_TV: Tensor) -> None:
    scale = expected_TV.double().std().clamp(min=1e-6)
    worst = float((got_TV.double() - expected_TV.double()).abs().max() / scale)
    allowed = _TOLERANCE[model.dtype]
    if not worst <= allowed:
        raise ModelError(
            f"{type(model).__name__}: the decoder's logits differ from the model's own by "
            f"{worst:.2g} of their spread ({allowed:g} is rounding in {model.dtype}); this "
            "architecture is not supported"
        )


def _not_crossed(runner: StockRunner) -> tuple[str, ...]:
    window = getattr(runner.config, "sliding_window", None)
    if window is None or window < max(_LENGTHS):
        return ()
    return (f"the self-test is shorter than the sliding window of {window} tokens",)
