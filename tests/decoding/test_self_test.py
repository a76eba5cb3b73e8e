import re
from collections import defaultdict
from typing import ClassVar

import pytest
import torch

from specbench.errors import ModelError
from specbench.forward import fused_runner, self_test
from specbench.forward.fused_layers import FusedLayers, TorchSteps
from specbench.forward.runner import StockRunner
from specbench.forward.self_test import make_checked_runner
from tests.decoding.models import ARCHITECTURES, build, tiny_llama
from tests.decoding.test_autotune import SeesOneMore


class SeesTheFuture(StockRunner):
    off = 1

    def __init__(self, model, **options):
        super().__init__(model, **options)
        right = self._masks
        self._masks = lambda at_BT, *args, **named: right(
            (at_BT + self.off).clamp(min=0), *args, **named
        )


class ForgetsItsOwnToken(SeesTheFuture):
    off = -1


class KeepsRejectedTokens(StockRunner):
    """Never writes a slot twice: what a rejected draft left behind stays."""

    def __init__(self, model, **options):
        super().__init__(model, **options)
        self.next_slot = 0

    def forward(self, tokens_BT, positions_BT, span, **options):
        fresh = positions_BT[0] >= self.next_slot
        self.next_slot = max(self.next_slot, int(positions_BT.max()) + 1)
        if not fresh.any() or fresh.all():
            return super().forward(tokens_BT, positions_BT, span, **options)
        kept = super().forward(tokens_BT[:, fresh], positions_BT[:, fresh], span, **options)
        logits_BTV = kept.logits.new_zeros(*tokens_BT.shape, kept.logits.shape[-1])
        logits_BTV[:, fresh] = kept.logits
        return kept._replace(logits=logits_BTV)


class MixesRows(StockRunner):
    def forward(self, tokens_BT, positions_BT, span, **options):
        return super().forward(tokens_BT.flip(0), positions_BT, span, **options)


class ReadsTheTokenBefore(StockRunner):
    """Correct whenever all logits are requested."""

    def forward(self, *fed, last_B=None, **options):
        return super().forward(*fed, last_B=None if last_B is None else last_B - 1, **options)


class StretchesPositions(StockRunner):
    def forward(self, tokens_BT, positions_BT, span, **options):
        return super().forward(tokens_BT, positions_BT * 2, span, **options)


@pytest.mark.parametrize(
    "broken",
    [
        *(SeesTheFuture, ForgetsItsOwnToken, KeepsRejectedTokens, MixesRows, StretchesPositions),
        ReadsTheTokenBefore,
    ],
    ids=lambda broken: broken.__name__,
)
def test_a_runner_that_attends_wrongly_is_refused(broken, monkeypatch):
    monkeypatch.setattr(self_test, "StockRunner", broken)
    with pytest.raises(ModelError, match=r"LlamaForCausalLM.*logits"):
        make_checked_runner(tiny_llama(), "stock")


class TurnsTheOtherWay(FusedLayers):
    def _rope_table(self, length):
        return super()._rope_table(length) * torch.tensor([1.0, -1.0]).view(2, 1, 1, 1)


class ForgetsRope(FusedLayers):
    def _rope_table(self, length):
        return torch.tensor([1.0, 0.0]).view(2, 1, 1, 1).expand_as(super()._rope_table(length))


class ChangesLayers(FusedLayers):
    """Computes with other layers than the model's."""

    change: ClassVar[dict[str, None]]

    def __init__(self, layers, *args, **named):
        changed = tuple(layer._replace(**self.change) for layer in layers)
        super().__init__(changed, *args, **named)


class ForgetsTheBias(ChangesLayers):
    change: ClassVar = {"qkv_bias": None}


class ForgetsTheHeadNorm(ChangesLayers):
    change: ClassVar = {"head_norm": None}


class ForgetsTheWindow(ChangesLayers):
    change: ClassVar = {"window": None}


class SeesTooMuch(FusedLayers):
    def __init__(self, *parts, **named):
        super().__init__(*parts, **named)
        self.kernels = defaultdict(lambda: SeesOneMore("further"))


class WritesToTheFirstRows(FusedLayers):
    """Rows are mixed up, although each of them is right by itself."""

    def view(self, B, span, first_row):  # noqa: ARG002
        return super().view(B, span, 0)


class WritesOnce(TorchSteps):
    def rotate_and_store(self, work, layer, kept, slots_N, turns):
        is_new = (kept.buffer[slots_N] == 0).all(1)
        elsewhere = torch.full_like(slots_N, len(kept.buffer) - 1)
        super().rotate_and_store(work, layer, kept, slots_N.where(is_new, elsewhere), turns)


class NeverWritesAgain(FusedLayers):
    """The states that a wrong draft left behind stay."""

    def __init__(self, *parts, **named):
        super().__init__(*parts, **named)
        self.steps = WritesOnce(self.sizes, self.eps, mirrored=True)


def tiny_family(name, **changes):
    """A model whose biases and norms matter."""
    config = ARCHITECTURES[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    model = build(config)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model


@pytest.mark.sampled(one_in=2, every=["broken", "dtype"])
@pytest.mark.parametrize(
    ("broken", "model"),
    [
        (TurnsTheOtherWay, lambda: tiny_family("Llama")),
        (ForgetsRope, lambda: tiny_family("Llama")),
        (ForgetsTheBias, lambda: tiny_family("Qwen2")),
        (ForgetsTheHeadNorm, lambda: tiny_family("Qwen3")),
        (ForgetsTheWindow, lambda: tiny_family("Mistral + window", sliding_window=8)),
        (ForgetsTheWindow, lambda: tiny_family("Mistral + window", sliding_window=4096)),
        (ForgetsTheWindow, lambda: tiny_family("Qwen2 + window", sliding_window=4096)),
        (SeesTooMuch, lambda: tiny_family("Llama")),
        (WritesToTheFirstRows, lambda: tiny_family("Llama")),
        (NeverWritesAgain, lambda: tiny_family("Llama")),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_fused_forward_is_caught_when_the_model_is_loaded(
    broken, model, dtype, monkeypatch
):
    model = model().to(dtype)
    right, notes = make_checked_runner(model)
    assert (right.kind, notes) == ("fused", ())
    monkeypatch.setattr(fused_runner, "FusedLayers", broken)

    runner, notes = make_checked_runner(model)

    assert runner.kind == "stock"
    assert len(notes) == 1
    assert re.search("stock forward .*fused .*logits differ", notes[0])
    with pytest.raises(ModelError, match=r"fused forward: .*logits"):
        make_checked_runner(model, "fused")


@pytest.mark.parametrize("forward", ["auto", "stock", "fused"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_correct_runner_passes_the_self_test_in_every_dtype(dtype, forward):
    runner, notes = make_checked_runner(tiny_llama().to(dtype), forward)
    assert runner.kind == ("stock" if forward == "stock" else "fused")
    assert notes == ()


@pytest.mark.parametrize("forward", ["stock", "fused"])
def test_the_self_test_does_not_change_an_allocation_of_one_row(forward):
    runner, _ = make_checked_runner(tiny_llama(), forward)
    runner.allocate(1, 128)
    rows = runner.cache if forward == "fused" else runner.cache.index
    assert (rows.num_rows, rows.max_len) == (1, 128)


def test_a_model_that_cannot_be_fused_runs_stock_with_a_note():
    model = build(ARCHITECTURES["Phi3"]())
    runner, notes = make_checked_runner(model)
    assert isinstance(runner, StockRunner)
    assert len(notes) == 1
    assert re.match("stock forward .*fused .*: Phi3ForCausalLM ", notes[0])
    with pytest.raises(ModelError, match=r"Phi3ForCausalLM.*fused"):
        make_checked_runner(model, "fused")


def test_the_fused_forward_leaves_the_attention_setting_unchanged():
    model = tiny_llama()
    before = model.config._attn_implementation
    make_checked_runner(model)
    assert model.config._attn_implementation == before


def test_logits_that_are_not_numbers_are_refused():
    model = build(ARCHITECTURES["Phi3"]())
    model.lm_head.weight.data[3] = float("nan")
    with pytest.raises(ModelError, match="by nan"):
        make_checked_runner(model)


def test_a_model_that_runs_out_of_memory_in_the_self_test_is_not_called_faulty():
    model = build(ARCHITECTURES["Phi3"]())

    def run_out(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    model.lm_head.register_forward_hook(run_out)
    with pytest.raises(torch.OutOfMemoryError):
        make_checked_runner(model)


def test_a_window_that_no_layer_has_changes_nothing():
    model = tiny_llama()
    model.config.sliding_window = 4096
    runner, notes = make_checked_runner(model)
    assert (runner.kind, notes) == ("fused", ())
