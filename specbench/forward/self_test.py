"""Checks a loaded model over slots against its plain forward, before it is used.

An untested architecture may be silently wrong, and so may our own forward. The check takes only
milliseconds. A head's fused layers are checked against transformers' in the same way. Shape
suffixes: B rows, T tokens, V vocabulary, F hidden size, W input size of the first layer's
attention.
"""

from collections.abc import Callable
from functools import partial
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
from specbench.forward.state_layers import cache_of, state_layers
from specbench.forward.tree import Branches, ancestors_of
from specbench.library_facts import cache_argument
from specbench.models.library_errors import failure_reason, model_failure
from specbench.settings.groups import ModelImplementation

# Runs rows of tokens in one particular pattern of forwards; returns logits [B, T, V].
_FeedPattern = Callable[[Runner, Tensor], Tensor]

_LENGTHS = (9, 6)  # ragged rows
_NUM_FIRST = 4  # tokens of each row that run first, as its prompt
_SPAN = 64
_REACH_FIELDS = ("sliding_window", "attention_chunk_size")
_SHORT_REACH = 5
# Norms and rotary positions are float32 inside a float64 model.
TOLERANCE = {torch.float64: 3e-5, torch.float32: 3e-4, torch.float16: 0.02, torch.bfloat16: 0.15}


@torch.inference_mode()
def make_checked_runner(
    model: Any, forward: ModelImplementation = "auto"
) -> tuple[Runner, tuple[str, ...]]:
    """A runner with the same logits as the model, and notes about it.

    Two rows are prefilled one by one and continue together with ragged lengths; a wrong token is
    written and rolled back. `auto` falls back from the fused forward to the stock one, with the
    reason in the notes. ModelError if the requested forward does not support the model, or its
    logits differ by more than rounding.
    """
    try:
        refuse_unsupported(model)
        vocab_size = min(model.get_output_embeddings().weight.shape[0], 1000)
        generator = torch.Generator().manual_seed(0)
        tokens_BT = torch.randint(0, vocab_size - 1, (2, max(_LENGTHS)), generator=generator)
        tokens_BT = tokens_BT.to(model.device)
        plain = _plain_logits(model, tokens_BT)
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
                reason = _difference(fused, tokens_BT, plain) or _short_reach_failure(
                    partial(FusedRunner, model), model, tokens_BT
                )
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                reason = failure_reason(error)
            if reason is None:
                return fused, ()
        if forward == "fused":
            raise ModelError(
                f"{type(model).__name__} cannot run with the fused forward: {reason}; "
                "use --model-impl auto or stock"
            )
        notes = (f"stock forward instead of the fused one: {reason}",)
    stepped = _stepped_logits(model, tokens_BT) if state_layers(model) else plain
    for whole_masks in (False, True):  # the code of some models modifies masks
        make = partial(StockRunner, model, whole_masks=whole_masks)
        stock = make()
        reason = _failure(stock, tokens_BT, stepped) or _short_reach_failure(make, model, tokens_BT)
        if reason is None:
            if stock.most_drafts is not None:
                stock.continues = _failure(stock, tokens_BT, plain, _two_chunks) is None
            return stock, notes
    raise ModelError(f"{type(model).__name__}: {reason}{_position_hint(model)}; {ELSEWHERE}")


def _short_reach_failure(make: Callable[[], Runner], model: Any, tokens_BT: Tensor) -> str | None:
    """The failure of a runner with windows and chunks so short that the few tokens of the test
    exceed them.

    It detects models whose code ignores the window in their config.
    """
    config = model.config.get_text_config()
    reaches = {name: field(config, name) for name in _REACH_FIELDS}
    longer = {name: reach for name, reach in reaches.items() if reach and reach > _SHORT_REACH}
    if not longer:
        return None
    for name in longer:
        setattr(config, name, _SHORT_REACH)
    try:
        crossed = make()
        expected = (_stepped_logits if state_layers(model) else _plain_logits)(model, tokens_BT)
        reason = _failure(crossed, tokens_BT, expected)
    finally:
        for name, reach in longer.items():
            setattr(config, name, reach)
    return None if reason is None else f"past its {' and '.join(longer)}, {reason}"


def _position_hint(model: Any) -> str:
    """A hint for models whose code takes no positions; else empty."""
    if "position_ids" in signature(model.forward).parameters:
        return ""
    return " (its code takes no position_ids: it counts them by its own cache)"


def _plain_logits(model: Any, tokens_BT: Tensor) -> list[Tensor]:
    """Logits [T, V] of each row by the model's own code, row by row and without a cache."""
    attention = model.config._attn_implementation
    attend_by(model, "eager")
    rows = [
        model(input_ids=tokens_BT[row : row + 1, :length], use_cache=False).logits[0]
        for row, length in enumerate(_LENGTHS)
    ]
    attend_by(model, attention)
    return rows


def _stepped_logits(model: Any, tokens_BT: Tensor) -> list[Tensor]:
    """Logits [T, V] of each row by the model's own code with its own cache, as it decodes.

    Recurrent layers may compute steps differently from scans: Zamba 2 bounds its time steps only
    in a scan.
    """
    attention = model.config._attn_implementation
    attend_by(model, "eager")
    positions_1T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]
    rows = []
    for row, length in zip(list(tokens_BT[:, None]), _LENGTHS, strict=True):
        out, logits = None, []
        for at in (slice(0, _NUM_FIRST), *(slice(t, t + 1) for t in range(_NUM_FIRST, length))):
            out = model(
                input_ids=row[:, at],
                position_ids=positions_1T[:, at],  # not every model counts its tokens
                **{cache_argument(model.forward): cache_of(out) if out else None},
                use_cache=True,
            )
            logits.append(out.logits[0])
        rows.append(torch.cat(logits))
    attend_by(model, attention)
    return rows


def _failure(
    runner: Runner, tokens_BT: Tensor, expected: list[Tensor], *patterns: _FeedPattern
) -> str | None:
    """The difference, or the error of the model's code over slots; None if the logits agree."""
    try:
        return _difference(runner, tokens_BT, expected, *patterns)
    except Exception as error:
        if failure := model_failure(error):
            return failure.words
        raise


def _difference(
    runner: Runner, tokens_BT: Tensor, expected: list[Tensor], *patterns: _FeedPattern
) -> str | None:
    """The difference of the runner's logits from the expected ones; None if it is rounding.

    The tokens run in these patterns; by default, in those that every model must support.
    """
    distances = []
    for feed in patterns or (_over_slots, _last_only):
        runner.allocate(2, _SPAN)
        slots_BTV = feed(runner, tokens_BT)
        runner.release()  # otherwise a run with one row would keep the memory of two
        for got, row in zip(slots_BTV, expected, strict=True):
            distances.append(distance(got[: len(row)], row[-len(got) :]))
    worst = torch.stack(distances).max()
    allowed = TOLERANCE[runner.dtype]  # even if the output head returns float32
    if worst <= allowed:
        return None
    return (
        f"the decoder's logits differ from the model's own by {worst:.2g} of their spread "
        f"({allowed:g} is rounding in {runner.dtype})"
    )


def _over_slots(runner: Runner, tokens_BT: Tensor) -> Tensor:
    """Logits [B, T, V] of 4 tokens per row; then a wrong token, rolled back; then the rest."""
    first_BTV = _first_tokens(runner, tokens_BT)
    _feed(runner, tokens_BT[:, _NUM_FIRST : _NUM_FIRST + 1] + 1, _NUM_FIRST)
    return torch.cat([first_BTV, _feed(runner, tokens_BT[:, _NUM_FIRST:], _NUM_FIRST)], 1)


def _last_only(runner: Runner, tokens_BT: Tensor) -> Tensor:
    """Logits [B, 1, V] of only the last token of each row, in a forward after the first tokens."""
    _first_tokens(runner, tokens_BT)
    lasts = [length - 1 - _NUM_FIRST for length in _LENGTHS]
    last_B = torch.tensor(lasts, device=tokens_BT.device)
    return _feed(runner, tokens_BT[:, _NUM_FIRST:], _NUM_FIRST, last_B=last_B)


def _two_chunks(runner: Runner, tokens_BT: Tensor) -> Tensor:
    """Logits [B, T, V] of a prompt prefilled in two chunks."""
    pieces = (slice(0, _NUM_FIRST), slice(_NUM_FIRST, None))
    logits = [_feed(runner, tokens_BT[:, at], at.start, start=at.start) for at in pieces]
    return torch.cat(logits, 1)


def _first_tokens(runner: Runner, tokens_BT: Tensor) -> Tensor:
    """Logits [B, T, V] of the first tokens of each row, by a separate forward without a mask."""
    rows = range(len(tokens_BT))
    fed = [_feed(runner, tokens_BT[r : r + 1, :_NUM_FIRST], 0, first_row=r, start=0) for r in rows]
    return torch.cat(fed)


def _feed(runner: Runner, tokens_BT: Tensor, first: int, **options: Any) -> Tensor:
    """The logits of tokens at positions `first`, `first` + 1 .. in every row."""
    positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device) + first
    return runner.forward(tokens_BT, positions_T.expand_as(tokens_BT), _SPAN, **options).logits


def distance(got_TV: Tensor, expected_TV: Tensor) -> Tensor:
    """Root mean square difference at the worst position, in standard deviations of a logit.

    The mean is over the vocabulary; the largest difference would grow with its size.
    """
    difference_TV = got_TV.double() - expected_TV.double()
    spread = expected_TV.double().std().clamp(min=1e-6)
    return difference_TV.square().mean(-1).sqrt().max() / spread


# Tokens of a row: only their keys and values; in a separate forward; in one for both rows.
_NUM_KEYS, _NUM_SEPARATE, _NUM_BATCHED = 3, 4, 5
_PARENTS = (0, 0, 1)  # of a tree of three draft tokens


@torch.inference_mode()
def check_layers(layers: LayerStack, forward: ModelImplementation, name: str) -> tuple[str, ...]:
    """Choose the implementation of a head's layers by `forward`; returns notes about it.

    `auto` falls back from fused layers to transformers' own, with the reason in the notes.
    ModelError if fused layers were requested but cannot run, or return different states.
    """
    if forward == "stock":
        layers.run_stock("they were requested")
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
    """States [N, F] of two rows in all patterns that heads use: keys only, separate rows, a batch
    that overwrites a wrong token, and a tree."""
    layers.allocate(2, _SPAN)
    attention: Any = layers.layers[0].self_attn
    width, size = attention.q_proj.in_features, attention.o_proj.out_features
    weight = attention.q_proj.weight
    generator = torch.Generator("cpu").manual_seed(0)
    at_T = torch.arange(_SPAN, device=weight.device)
    made = []

    def random_states(B: int, T: int, size: int) -> Tensor:
        numbers = torch.randn(B, T, size, generator=generator, device="cpu")
        return numbers.to(weight.device, weight.dtype)

    def feed(positions_BT: Tensor, first_row: int = 0, branches: Branches | None = None) -> None:
        B, T = positions_BT.shape
        states_BTF = random_states(B, T, size)
        entry_BTW = None if width == size else random_states(B, T, width)
        out_BTF = layers.forward(
            states_BTF,
            positions_BT,
            _SPAN,
            first_row=first_row,
            branches=branches,
            entry_BTW=entry_BTW,
        )
        made.append(out_BTF.reshape(B * T, size))

    stop = _NUM_KEYS + _NUM_SEPARATE
    for row in range(2):
        layers.write_kv(
            random_states(1, _NUM_KEYS, width), at_T[None, :_NUM_KEYS], _SPAN, first_row=row
        )
        feed(at_T[None, _NUM_KEYS:stop], row)
    starts_B1 = at_T[stop - 1 : stop + 1, None]  # row 0 rolls its last token back
    feed(starts_B1 + at_T[:_NUM_BATCHED])
    length_B1 = starts_B1 + _NUM_BATCHED
    parents_BK = torch.tensor(_PARENTS, device=at_T.device).expand(2, -1)
    seen_BNN, depths_BN = ancestors_of(parents_BK, len(_PARENTS))
    positions_BN = length_B1 + depths_BN
    slots_BN = length_B1 + at_T[: len(_PARENTS) + 1]
    feed(positions_BN, branches=Branches(length_B1, slots_BN, seen_BNN, positions_BN))
    layers.release()
    return torch.cat(made)
