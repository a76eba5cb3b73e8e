"""Models with unusual code: their caches, outputs and errors."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specbench.errors import ModelError, UsageError
from specbench.forward.attention.masks import (
    Reach,
    StockMasks,
    field,
    hybrid_reaches,
    reaches,
)
from specbench.forward.attention.stock import slot_attention
from specbench.forward.kernels import availability
from specbench.forward.runner import StockRunner, refuse_unsupported, state_features
from specbench.forward.self_test import make_checked_runner
from specbench.forward.slot_cache import SlotCache
from specbench.models.library_errors import errors_translated
from tests.decoding.models import build, tiny_llama


def test_layers_that_share_keys_are_unchanged() -> None:
    cache = SlotCache(2, 1, 4)
    cache.index.select(torch.tensor([[0, 1]]), 2, 0)
    cache.update(torch.arange(4.0).view(1, 1, 2, 2), torch.ones(1, 1, 2, 2), 0)

    cache.move_slots(torch.tensor([[1]]), torch.tensor([[0]]))

    assert cache.layers[0].keys[0, 0, 0].tolist() == [2, 3]
    assert not cache.layers[1].is_initialized


def test_the_cache_holds_two_key_value_pairs_per_layer() -> None:
    cache = SlotCache(1, 1, 4)
    cache.index.select(torch.tensor([[0]]), 1, 0)
    for layer in (0, 1):
        cache.update(torch.full((1, 1, 1, 2), 1.0 + layer), torch.ones(1, 1, 1, 2), layer)
    assert [layer.keys[0, 0, 0, 0].item() for layer in cache.layers] == [1, 2]
    assert cache.bytes_per_token == 2 * 2 * 2 * 4


@pytest.mark.parametrize("mask", [torch.empty(1, 1, 0, 0), torch.zeros(1, 1, 6, 3)])
def test_attention_is_contiguous_for_models_that_take_a_view_of_it(mask: torch.Tensor) -> None:
    query, keys = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)
    out, _ = slot_attention(torch.nn.Identity(), query, keys, keys, mask)
    assert out.shape == (1, 3, 4, 8)
    assert out.is_contiguous()


def test_a_field_that_differs_between_layers_is_none() -> None:
    class PerLayer:
        @property
        def head_dim(self) -> int:
            raise RuntimeError("head_dim is a per-layer attribute")

    assert field(PerLayer(), "head_dim") is None
    assert field(PerLayer(), "other") is None


def test_each_kind_of_layer_has_the_window_of_its_config() -> None:
    kinds = ["chunked_attention", "full_attention", "sliding_attention"]
    config = SimpleNamespace(layer_types=kinds, sliding_window=7, attention_chunk_size=5)
    assert reaches(config) == {
        "chunked_attention": Reach(chunk=5),
        "full_attention": Reach(),
        "sliding_attention": Reach(window=7),
    }
    assert reaches(SimpleNamespace(sliding_window=7)) == {"all": Reach(window=7)}


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["linear_attention", "full_attention"], {"full_attention": Reach(window=7)}),
        (
            ["conv", "sliding_attention", "full_attention"],
            {"full_attention": Reach(), "sliding_attention": Reach(window=7)},
        ),
        (
            ["hybrid", "hybrid_sliding"],
            {"full_attention": Reach(), "hybrid": Reach(), "hybrid_sliding": Reach(window=7)},
        ),
    ],
)
def test_windows_of_hybrids_use_the_names_of_masks(
    kinds: list[str], expected: dict[str, Reach]
) -> None:
    assert hybrid_reaches(SimpleNamespace(layer_types=kinds, sliding_window=7)) == expected


def test_whole_masks_have_one_row_per_token_and_are_never_omitted() -> None:
    config = tiny_llama().config
    assert config.num_attention_heads == 2 * config.num_key_value_heads
    places_13 = torch.arange(3)[None]

    def rows(*, are_whole: bool, is_plain: bool) -> int:
        masks = StockMasks(config, torch.float32, has_states=False, are_whole=are_whole)
        mask = masks(places_13, 3, None, is_plain=is_plain)
        assert isinstance(mask, torch.Tensor)
        return mask.shape[2]

    assert [rows(are_whole=True, is_plain=plain) for plain in (False, True)] == [3, 3]
    assert [rows(are_whole=False, is_plain=plain) for plain in (False, True)] == [6, 0]


def test_logits_are_selected_if_a_model_returns_every_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_llama()
    forward = model.forward

    def forward_without_limit(input_ids: Any = None, position_ids: Any = None, **more: Any) -> Any:
        assert "logits_to_keep" not in more
        return forward(input_ids=input_ids, position_ids=position_ids, **more)

    monkeypatch.setattr(model, "forward", forward_without_limit)
    runner = StockRunner(model)
    runner.allocate(2, 16)
    tokens_BT = torch.arange(1, 11).view(2, 5)
    positions_BT = torch.arange(5).expand(2, -1)
    every = runner.forward(tokens_BT, positions_BT, 8).logits

    both = runner.forward(tokens_BT, positions_BT, 8, last_B=torch.tensor([1, 4])).logits
    last = runner.forward(tokens_BT, positions_BT, 8, last_B=torch.tensor([2])).logits

    torch.testing.assert_close(both[:, 0], torch.stack([every[0, 1], every[1, 4]]))
    torch.testing.assert_close(last[:, 0], every[:, 2])


def test_a_configured_window_that_the_model_ignores_is_refused() -> None:
    model = tiny_llama()  # whose code has no windows
    model.config.sliding_window = 4096
    with pytest.raises(ModelError, match="sliding_window"):
        make_checked_runner(model, "stock")
    assert model.config.sliding_window == 4096


def test_errors_of_a_models_code_are_refusals_with_a_clear_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = build(tiny_llama().config)

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("two\nlines")

    monkeypatch.setattr(model.model.layers[1].self_attn.q_proj, "forward", fail)
    words = "LlamaForCausalLM does not run on plain text: its code raises AssertionError: two; choo"
    with pytest.raises(ModelError, match=words), errors_translated():
        make_checked_runner(model)
    words = "AssertionError: two; measure it with --engine transformers"
    with pytest.raises(ModelError, match=words), errors_translated():
        model(input_ids=torch.ones(1, 2, dtype=torch.long))


@pytest.mark.parametrize("error", [KeyError("ours"), UsageError("ours")])
def test_errors_of_our_own_code_are_raised_unchanged(error: Exception) -> None:
    with pytest.raises(type(error), match="ours"), errors_translated():
        raise error


def test_a_model_without_an_output_head_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="LlamaModel names no output head"):
        refuse_unsupported(tiny_llama().model)


def test_a_final_norm_by_another_name_cannot_give_the_last_layers_bare_output() -> None:
    model = tiny_llama()
    assert state_features((1, 2), model, num_layers=2) == (1, 3)
    model.model.last = model.model.norm
    del model.model.norm
    with pytest.raises(ModelError, match=r"aux layer id 2\) cannot be read"):
        state_features((1, 2), model, num_layers=2)
    assert state_features((1,), model, num_layers=2) == (1,)


def test_a_model_that_gives_no_hidden_states_is_refused_if_a_head_reads_them() -> None:
    model = tiny_llama()
    runner = StockRunner(model)
    runner.allocate(1, 8)

    def lose(_: object, __: object, out: Any) -> Any:
        out["hidden_states"] = None
        return out

    model.register_forward_hook(lose)
    tokens_1T = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert runner.forward(tokens_1T, torch.arange(3)[None], 8).logits.shape == (1, 3, 97)
        with pytest.raises(ModelError, match="LlamaForCausalLM gives no hidden states"):
            runner.forward(tokens_1T, torch.arange(3)[None], 8, features=(1,))


@pytest.mark.parametrize(
    ("changed", "value", "words"),
    [("find_spec", lambda _: None, "Triton is not installed"), ("which", lambda _: None, "no C ")],
)
def test_a_missing_triton_requirement_is_reported(
    changed: str, value: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = availability._missing.__wrapped__  # not the answer that is kept
    monkeypatch.setenv("CC", "cc")
    assert missing() is None
    monkeypatch.delenv("CC")
    monkeypatch.setattr(availability, changed, value)
    assert words in missing()
