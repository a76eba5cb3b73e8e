"""Checks a loaded model over slots against its own plain forward, before it is trusted.

An architecture that was never tried can be wrong in silence, and so can our own forward; this costs
milliseconds. A head's fused layers are checked against transformers' in the same way. Shape
suffixes: B rows, T tokens, V vocabulary, F hidden size, W what the first layer's attention reads.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from specbench.errors import ModelError
from specbench.files.config import ELSEWHERE
from specbench.forward.attention.masks import field
from specbench.forward.attention.stock import attend_by
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.fused_weights import unfused_reason
from specbench.forward.layer_stack import LayerStack
from specbench.forward.runner import Runner, StockRunner, refuse_unsupported
from specbench.forward.state_layers import state_layers
from specbench.forward.tree import Branches, ancestors_of
from specbench.models.library_errors import failure_reason, model_failure
from specbench.settings.groups import ModelImplementation

_Way = Callable[[Runner, Tensor], Tensor]  # feeds a runner rows of tokens; logits [B, T, V]

_LENGTHS = (9, 6)  # ragged rows
_HEAD = 4  # tokens of each row that are fed first
_SPAN = 64
_REACHES = ("sliding_window", "attention_chunk_size")
_SHORT_REACH = 5
# Norms and rotary positions are float32 inside a float64 model.
TOLERANCE = {torch.float64: 3e-5, torch.float32: 3e-4, torch.float16: 0.02, torch.bfloat16: 0.15}


@torch.inference_mode()
def make_checked_runner(
    model: Any, forward: ModelImplementation = "auto"
) -> tuple[Runner, tuple[str, ...]]:
    """A runner with the same logits as the model, and notes about it.

    Two rows are prefilled one by one and continue together with ragged lengths; a wrong token is
    written and rolled back. `auto` falls back from the fused forward to the stock one, and
    the notes say why. Raises ModelError when the forward asked for does not fit the model or
    its logits differ by more than rounding.
    """
    refuse_unsupported(model)
    vocab_size = min(model.get_output_embeddings().weight.shape[0], 1000)
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(0, vocab_size - 1, (2, max(_LENGTHS)), generator=generator)
    tokens_BT = tokens_BT.to(model.device)
    try:
        plain = _plain(model, tokens_BT)
    except Exception as error:
        if failure := model_failure(error):
            raise ModelError(
                f"{failure.model} does not run on plain text: {failure.words}; choose a model that "
                "writes text from text"
            ) from error
        raise

    notes: tuple[str, ...] = ()
    if forward != "stock":
        reason = unfused_reason(model)
        if reason is None:
            try:
                fused = FusedRunner(model)
                reason = _difference(fused, tokens_BT, plain)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                reason = failure_reason(error)
            if reason is None:
                return fused, _not_crossed(model)
        if forward == "fused":
            raise ModelError(
                f"{type(model).__name__} cannot run with the fused forward: {reason}; "
                "use --model-impl auto or stock"
            )
        notes = (f"stock forward instead of the fused one: {reason}",)
    stepped = _stepped(model, tokens_BT) if state_layers(model) else plain
    for whole_masks in (False, True):  # some models work on masks themselves
        stock = StockRunner(model, whole_masks=whole_masks)
        reason = _failure(stock, tokens_BT, stepped) or _crossing_failure(stock, tokens_BT)
        if reason is None:
            if stock.most_drafts is not None:
                stock.continues = _failure(stock, tokens_BT, plain, _in_chunks) is None
            return stock, notes
    raise ModelError(f"{type(model).__name__}: {reason}{_positions(model)}; {ELSEWHERE}")


def _crossing_failure(stock: StockRunner, tokens_BT: Tensor) -> str | None:
    """The failure with windows and chunks so short that the test's few tokens cross them.

    A model may have a window in its config that its code ignores.
    """
    config = stock.config
    reaches = {name: field(config, name) for name in _REACHES}
    longer = {name: reach for name, reach in reaches.items() if reach and reach > _SHORT_REACH}
    if not longer:
        return None
    for name in longer:
        setattr(config, name, _SHORT_REACH)
    try:
        crossed = StockRunner(stock.model, whole_masks=stock.whole_masks)
        expected = (_stepped if state_layers(stock.model) else _plain)(stock.model, tokens_BT)
        reason = _failure(crossed, tokens_BT, expected)
    finally:
        for name, reach in longer.items():
            setattr(config, name, reach)
    return None if reason is None else f"past its {' and '.join(longer)}, {reason}"


def _positions(model: Any) -> str:
    """Why a model whose code takes no positions may differ."""
    if "position_ids" in signature(model.forward).parameters:
        return ""
    return " (its code takes no position_ids: it counts them by its own cache)"


def _plain(model: Any, tokens_BT: Tensor) -> list[Tensor]:
    """Logits [T, V] of each row from the model's own code, row by row and without a cache."""
    attention = model.config._attn_implementation
    attend_by(model, "eager")
    rows = [
        model(input_ids=tokens_BT[row : row + 1, :length], use_cache=False).logits[0]
        for row, length in enumerate(_LENGTHS)
    ]
    attend_by(model, attention)
    return rows


def _stepped(model: Any, tokens_BT: Tensor) -> list[Tensor]:
    """The same with a cache of the model's own, as it decodes.

    Its recurrent layers may step otherwise than they scan: Zamba 2 bounds its time steps only in
    a scan.
    """
    attention = model.config._attn_implementation
    attend_by(model, "eager")
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
    attend_by(model, attention)
    return rows


def _failure(runner: Runner, tokens_BT: Tensor, expected: list[Tensor], *ways: _Way) -> str | None:
    """The difference, or the error of the model's code over slots; None if all is right."""
    try:
        return _difference(runner, tokens_BT, expected, *ways)
    except Exception as error:
        if failure := model_failure(error):
            return failure.words
        raise


def _difference(
    runner: Runner, tokens_BT: Tensor, expected: list[Tensor], *ways: _Way
) -> str | None:
    """The difference of the runner's logits from the expected ones; None if it is rounding.

    It is fed in those `ways`; without any, in those that every model has to bear.
    """
    distances = []
    for way in ways or (_over_slots, _last_alone):
        runner.allocate(2, _SPAN)
        slots_BTV = way(runner, tokens_BT)
        runner.release()  # rows are never given back singly: one would keep the memory of two
        for got, row in zip(slots_BTV, expected, strict=True):
            distances.append(distance(got[: len(row)], row[-len(got) :]))
    worst = torch.stack(distances).max()
    allowed = TOLERANCE[runner.dtype]  # a head may give its logits in float32
    if worst <= allowed:
        return None
    return (
        f"the decoder's logits differ from the model's own by {worst:.2g} of their spread "
        f"({allowed:g} is rounding in {runner.dtype})"
    )


def _over_slots(runner: Runner, tokens_BT: Tensor) -> Tensor:
    """Logits [B, T, V] fed as: 4 tokens per row; one wrong token, rolled back; the rest."""
    heads_BTV = _heads(runner, tokens_BT)
    _feed(runner, tokens_BT[:, _HEAD : _HEAD + 1] + 1, _HEAD)
    return torch.cat([heads_BTV, _feed(runner, tokens_BT[:, _HEAD:], _HEAD)], 1)


def _last_alone(runner: Runner, tokens_BT: Tensor) -> Tensor:
    """Logits [B, 1, V] of each row's last token, the only ones asked for after 4 tokens per row."""
    _heads(runner, tokens_BT)
    lasts = [length - 1 - _HEAD for length in _LENGTHS]
    last_B = torch.tensor(lasts, device=tokens_BT.device)
    return _feed(runner, tokens_BT[:, _HEAD:], _HEAD, last_B=last_B)


def _in_chunks(runner: Runner, tokens_BT: Tensor) -> Tensor:
    """Logits [B, T, V] of a prompt that is fed in two pieces, each at once."""
    pieces = (slice(0, _HEAD), slice(_HEAD, None))
    logits = [_feed(runner, tokens_BT[:, at], at.start, start=at.start) for at in pieces]
    return torch.cat(logits, 1)


def _heads(runner: Runner, tokens_BT: Tensor) -> Tensor:
    """Logits [B, T, V] of the first tokens of each row, fed separately and without a mask."""
    rows = range(len(tokens_BT))
    fed = [_feed(runner, tokens_BT[r : r + 1, :_HEAD], 0, first_row=r, start=0) for r in rows]
    return torch.cat(fed)


def _feed(runner: Runner, tokens_BT: Tensor, first: int, **options: Any) -> Tensor:
    """The logits of tokens that stand at `first` and after it in every row."""
    places_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device) + first
    return runner.forward(tokens_BT, places_T.expand_as(tokens_BT), _SPAN, **options).logits


def distance(got_TV: Tensor, expected_TV: Tensor) -> Tensor:
    """Root mean square difference at the worst position, in standard deviations of a logit.

    A mean over the vocabulary, because the largest difference grows with it.
    """
    difference_TV = got_TV.double() - expected_TV.double()
    spread = expected_TV.double().std().clamp(min=1e-6)
    return difference_TV.square().mean(-1).sqrt().max() / spread


def _not_crossed(model: Any) -> tuple[str, ...]:
    window = getattr(model.config.get_text_config(), "sliding_window", None)
    if window is None or window < max(_LENGTHS):
        return ()
    return (f"the self-test is shorter than the sliding window of {window} tokens",)


_KEPT, _ALONE, _TOGETHER = 3, 4, 5  # tokens of a row: only keys, fed separately, with the other
_PARENTS = (0, 0, 1)  # of a tree of three drafts


@torch.inference_mode()
def check_layers(layers: LayerStack, forward: ModelImplementation, name: str) -> tuple[str, ...]:
    """Choose the implementation of a head's layers by `forward`; notes about it.

    `auto` falls back from fused layers to transformers' own, with the reason in the notes.
    ModelError if requested fused layers cannot run, or give other states.
    """
    if forward == "stock":
        layers.run_stock("they were asked for")
        return ()
    reason = layers.reason or _layer_difference(layers)
    if reason is None:
        return ()
    if forward == "fused":
        raise ModelError(
            f"{name}: its layers cannot run fused: {reason}; use --model-impl auto or stock"
        )
    layers.run_stock(reason)
    return (f"{name}: stock layers instead of fused ones: {reason}",)


def _layer_difference(layers: LayerStack) -> str | None:
    """The difference between the states of fused and stock layers; None if it is rounding."""
    try:
        fused_TF, stock_TF = _layer_states(layers), _layer_states(layers.as_stock())
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return failure_reason(error)
    worst, allowed = distance(fused_TF, stock_TF), TOLERANCE[stock_TF.dtype]
    if worst <= allowed:
        return None
    return (
        f"their states differ from those of transformers' own layers by {worst:.2g} of their "
        f"spread ({allowed:g} is rounding in {stock_TF.dtype})"
    )


def _layer_states(layers: LayerStack) -> Tensor:
    """States of two rows: only keys, tokens, both rows over wrong ones, a tree."""
    layers.allocate(2, _SPAN)
    attention: Any = layers.layers[0].self_attn
    width, size = attention.q_proj.in_features, attention.o_proj.out_features
    weight = attention.q_proj.weight
    generator = torch.Generator("cpu").manual_seed(0)
    at_T = torch.arange(_SPAN, device=weight.device)
    made = []

    def drawn(B: int, T: int, size: int) -> Tensor:
        numbers = torch.randn(B, T, size, generator=generator, device="cpu")
        return numbers.to(weight.device, weight.dtype)

    def feed(positions_BT: Tensor, first_row: int = 0, branches: Branches | None = None) -> None:
        B, T = positions_BT.shape
        states_BTF = drawn(B, T, size)
        entry_BTW = None if width == size else drawn(B, T, width)
        out_BTF = layers.forward(
            states_BTF,
            positions_BT,
            _SPAN,
            first_row=first_row,
            branches=branches,
            entry_BTW=entry_BTW,
        )
        made.append(out_BTF.reshape(B * T, size))

    stop = _KEPT + _ALONE
    for row in range(2):
        layers.keep(drawn(1, _KEPT, width), at_T[None, :_KEPT], _SPAN, first_row=row)
        feed(at_T[None, _KEPT:stop], row)
    starts_B1 = at_T[stop - 1 : stop + 1, None]  # row 0 takes its last token back
    feed(starts_B1 + at_T[:_TOGETHER])
    length_B1 = starts_B1 + _TOGETHER
    parents_BK = torch.tensor(_PARENTS, device=at_T.device).expand(2, -1)
    seen_BNN, depths_BN = ancestors_of(parents_BK, len(_PARENTS))
    places_BN = length_B1 + depths_BN
    slots_BN = length_B1 + at_T[: len(_PARENTS) + 1]
    feed(places_BN, branches=Branches(length_B1, slots_BN, seen_BNN, places_BN))
    layers.release()
    return torch.cat(made)
