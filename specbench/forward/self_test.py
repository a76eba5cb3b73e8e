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
from specbench.forward.state_layers import state_layers

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
    stepped = _stepped(model, tokens_BT) if state_layers(model) else plain
    stock = StockRunner(model)
    if reason := _difference(stock, tokens_BT, stepped):
        raise ModelError(f"{type(model).__name__}: {reason}; this architecture is not supported")
    if stock.most_drafts is not None:
        stock.continues = _difference(stock, tokens_BT, plain, in_chunks=True) is None
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


def _stepped(model: Any, tokens_BT: Tensor) -> list[Tensor]:
    """The same with a cache of the model's own, as it decodes.

    Its recurrent layers may step otherwise than they scan: Zamba 2 bounds its time steps only in
    a scan.
    """
    attention = model.config._attn_implementation
    model.set_attn_implementation("eager")
    places_1T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]
    rows = []
    for row, length in zip(list(tokens_BT[:, None]), _LENGTHS, strict=True):
        out, logits = None, []
        for at in (slice(0, _HEAD), *(slice(t, t + 1) for t in range(_HEAD, length))):
            out = model(
                input_ids=row[:, at],
                position_ids=places_1T[:, at],  # not every model counts what it has seen
                past_key_values=out.past_key_values if out else None,
                use_cache=True,
            )
            logits.append(out.logits[0])
        rows.append(torch.cat(logits))
    model.set_attn_implementation(attention)
    return rows


def _difference(
    runner: Runner, tokens_BT: Tensor, plain: list[Tensor], *, in_chunks: bool = False
) -> str | None:
    """None where the runner's logits are the plain ones but for rounding; else what differs."""
    runner.allocate(2, _SPAN)
    slots_BTV = _in_chunks(runner, tokens_BT) if in_chunks else _over_slots(runner, tokens_BT)
    runner.release()  # rows are never given back singly: one alone would keep room for two
    rows = zip(slots_BTV, plain, strict=True)
    worst = torch.stack([distance(got[: len(row)], row) for got, row in rows]).max()
    allowed = TOLERANCE[runner.dtype]  # a head may give its logits in float32
    if worst <= allowed:
        return None
    return (
        f"the decoder's logits differ from the model's own by {worst:.2g} of their spread "
        f"({allowed:g} is rounding in {runner.dtype})"
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


def _in_chunks(runner: Runner, tokens_BT: Tensor) -> Tensor:
    """Logits [B, T, V] of a prompt that is fed in two pieces, each at once."""
    positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand_as(tokens_BT)
    pieces = (slice(0, _HEAD), slice(_HEAD, None))
    logits = [
        runner.forward(tokens_BT[:, at], positions_BT[:, at], _SPAN, start=at.start).logits
        for at in pieces
    ]
    return torch.cat(logits, 1)


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
