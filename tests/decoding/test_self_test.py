import pytest
import torch

from specbench.decoding import self_test
from specbench.decoding.runner import StockRunner
from specbench.decoding.self_test import make_checked_runner
from specbench.errors import ModelError
from tests.decoding.models import ARCHITECTURES, build, tiny_llama


class SeesTheFuture(StockRunner):
    def _masks(self, positions_BT, span):
        return super()._masks(positions_BT + 1, span)


class ForgetsItsOwnToken(StockRunner):
    def _masks(self, positions_BT, span):
        return super()._masks((positions_BT - 1).clamp(min=0), span)


class KeepsRejectedTokens(StockRunner):
    """Never writes a slot again: what a wrong draft left behind stays."""

    def __init__(self, model):
        super().__init__(model)
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


class StretchesPositions(StockRunner):
    def forward(self, tokens_BT, positions_BT, span, **options):
        return super().forward(tokens_BT, positions_BT * 2, span, **options)


@pytest.mark.parametrize(
    "broken",
    [SeesTheFuture, ForgetsItsOwnToken, KeepsRejectedTokens, MixesRows, StretchesPositions],
    ids=lambda broken: broken.__name__,
)
def test_a_runner_that_attends_wrongly_is_refused(broken, monkeypatch):
    monkeypatch.setattr(self_test, "StockRunner", broken)
    with pytest.raises(ModelError, match=r"LlamaForCausalLM: the decoder's logits differ"):
        make_checked_runner(tiny_llama())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_right_runner_passes_in_every_dtype(dtype):
    runner, notes = make_checked_runner(tiny_llama().to(dtype))
    assert isinstance(runner, StockRunner)
    assert notes == ()


def test_logits_that_are_not_numbers_are_refused():
    model = tiny_llama()
    model.lm_head.weight.data[3] = float("nan")
    with pytest.raises(ModelError, match="differ from the model's own by nan"):
        make_checked_runner(model)


@pytest.mark.parametrize(("window", "is_said"), [(8, False), (9, True), (4096, True)])
def test_a_window_longer_than_the_test_is_said(window, is_said):
    config = ARCHITECTURES["Mistral + window"]()
    config.sliding_window = window
    _, notes = make_checked_runner(build(config))
    said = (f"the self-test is shorter than the sliding window of {window} tokens",)
    assert notes == (said if is_said else ())
