"""Checks a loaded model over slots against its own plain forward, before it is trusted.

An architecture nobody tried can be wrong in silence, and so can a forward of our own; this
costs milliseconds. Shape suffixes: B rows, T tokens, V vocabulary.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from specbench.errors import ModelError
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.fused_weights import can_fuse
from specbench.forward.runner import Runner, StockRunner, refuse_unsupported

Forward = Literal["auto", "stock", "fused"]

_LENGTHS = (9, 6)  # ragged rows
_HEAD = 4  # tokens that each row is fed alone
_SPAN = 64
# Norms and rotary positions are float32 inside a float64 model.
TOLERANCE = {torch.float64: 3e-5, torch.float32: 3e-4, torch.float16: 0.02, torch.bfloat16: 0.15}


@torch.inference_mode()
def make_checked_runner(model: Any, forward: Forward = "auto") -> tuple[Runner, tuple[str, ...]]:
    """A runner whose logits equal the model's own, and what is to be said about it.

    Two rows are prefilled one by one and go on together with ragged lengths; a wrong token is
    written and rolled back. `auto` falls back from the fused forward to the stock one, and
    the notes say why. Raises ModelError when the forward asked for does not fit the model or
    its logits differ by more than rounding.
    """
    refuse_unsupported(model)
    vocab_size = min(model.get_output_embeddings().weight.shape[0], 1000)
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(0, vocab_size - 1, (2, max(_LENGTHS)), generator=generator)
    tokens_BT = tokens_BT.to(model.device)
    plain = _plain(model, tokens_BT)

    notes = _not_crossed(model)
    if forward != "stock":
        reason = can_fuse(model)
        if reason is None:
            fused = FusedRunner(model)
            reason = _difference(fused, tokens_BT, plain)
            if reason is None:
                return fused, notes
        if forward == "fused":
            raise ModelError(
                f"{type(model).__name__} cannot run with the fused forward: {reason}; "
                "ask for the forward auto or stock"
            )
        notes = (*notes, f"stock forward instead of the fused one: {reason}")
    stock = StockRunner(model)
    if reason := _difference(stock, tokens_BT, plain):
        raise ModelError(f"{type(model).__name__}: {reason}; this architecture is not supported")
    return stock, notes


def _plain(model: Any, tokens_BT: Tensor) -> list[Tensor]:
    """Logits [T, V] of each row from the model's own code, alone and without a cache."""
    attention = model.config._attn_implementation
    model.set_attn_implementation("eager")
    rows = [
        model(input_ids=tokens_BT[row : row + 1, :length], use_cache=False).logits[0]
        for row, length in enumerate(_LENGTHS)
    ]
    model.set_attn_implementation(attention)
    return rows


def _difference(runner: Runner, tokens_BT: Tensor, plain: list[Tensor]) -> str | None:
    """None where the runner's logits are the plain ones but for rounding; else what differs."""
    runner.allocate(2, _SPAN)
    slots_BTV = _over_slots(runner, tokens_BT)
    runner.release()  # rows are never given back singly: one alone would keep room for two
    rows = zip(slots_BTV, plain, strict=True)
    worst = torch.stack([distance(got[: len(row)], row) for got, row in rows]).max()
    allowed = TOLERANCE[plain[0].dtype]
    if worst <= allowed:
        return None
    return (
        f"the decoder's logits differ from the model's own by {worst:.2g} of their spread "
        f"({allowed:g} is rounding in {plain[0].dtype})"
    )


def _over_slots(runner: Runner, tokens_BT: Tensor) -> Tensor:
    """Logits [B, T, V] fed as: 4 tokens a row; one wrong token, rolled back; the rest."""
    places_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)

    def feed(tokens: Tensor, first: int, first_row: int = 0) -> Tensor:
        B, T = tokens.shape
        positions_BT = places_T[first : first + T].expand(B, -1)
        start = None if first else 0  # with a mask and without
        return runner.forward(tokens, positions_BT, _SPAN, first_row=first_row, start=start).logits

    heads = [feed(tokens_BT[row : row + 1, :_HEAD], 0, row) for row in range(len(tokens_BT))]
    feed(tokens_BT[:, _HEAD : _HEAD + 1] + 1, _HEAD)
    return torch.cat([torch.cat(heads), feed(tokens_BT[:, _HEAD:], _HEAD)], 1)


def distance(got_TV: Tensor, expected_TV: Tensor) -> Tensor:
    """Root mean square difference at the worst position, in standard deviations of a logit.

    A mean over the vocabulary, because the largest of so many differences grows with it.
    """
    difference_TV = got_TV.double() - expected_TV.double()
    spread = expected_TV.double().std().clamp(min=1e-6)
    return difference_TV.square().mean(-1).sqrt().max() / spread


def _not_crossed(model: Any) -> tuple[str, ...]:
    window = getattr(model.config.get_text_config(), "sliding_window", None)
    if window is None or window < max(_LENGTHS):
        return ()
    return (f"the self-test is shorter than the sliding window of {window} tokens",)
