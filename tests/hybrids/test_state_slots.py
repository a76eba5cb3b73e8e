"""The states that a row holds, on slots that a reader can count."""

from functools import partial
from typing import Any

import torch

from specbench.footprint import STATES_BESIDE_DRAFTS
from specbench.forward.runner import StockRunner
from specbench.forward.slot_cache import SlotCache, StateSlots
from specbench.forward.state_layers import slot_cache_class, state_layers
from tests.hybrids.models import tiny_hybrid
from tools.families.registry import tiny_model

CPU = torch.device("cpu")


def fed(slots: StateSlots, *positions: int) -> list[bool]:
    """Whether each token of row 0 is fed, at the given positions."""
    (is_fed_T,) = slots.select_steps(torch.tensor([positions]), 0).tolist()
    return is_fed_T


def test_a_forward_that_is_timed_between_rounds_leaves_no_state() -> None:
    slots = StateSlots(num_rows=1, num_slots=4, device=CPU)
    assert fed(slots, 0, 1) == [True, True]
    with slots.dry_run():
        assert fed(slots, 2, 3, 4) == [False, False, False]
    assert [slots.has_state(0, position) for position in (1, 2, 3)] == [True, True, False]
    assert fed(slots, 2, 3) == [True, True]


def test_a_state_slot_accepts_only_the_next_token_of_a_held_state() -> None:
    slots = StateSlots(num_rows=1, num_slots=4, device=CPU)
    assert fed(slots, 0, 1, 2) == [True, True, True]
    assert fed(slots, 5) == [False]  # tokens 3 and 4 were never fed
    assert fed(slots, 1, 2) == [True, True]  # rolled back


def test_a_token_that_is_not_fed_does_not_change_the_next_rows_state() -> None:
    slots = StateSlots(num_rows=2, num_slots=4, device=CPU)
    slots.select_steps(torch.arange(4).expand(2, -1), 0)
    for piece in slots.pieces:
        slots.write(0, piece, [torch.tensor([10, 20]) + piece.end])

    assert fed(slots, 9) == [False]
    slots.write(0, slots.pieces[0], [torch.tensor([99])])

    slots.select_steps(torch.tensor([[4], [4]]), 0)
    (states_B,) = slots.read(0, slots.pieces[0]) or ()
    assert states_B.tolist() == [14, 24]


def test_products_of_a_round_run_once_over_all_of_its_tokens() -> None:
    runner = StockRunner(tiny_hybrid("LFM2"))
    runner.allocate(1, 8)
    seen: list[tuple[str, int]] = []

    def note(name: str, *called: Any) -> None:
        seen.append((name, called[-1].shape[1]))

    for name, product in runner.model.model.layers[0].conv.named_children():
        product.register_forward_hook(partial(note, name))
    for start in (0, 4):  # the first time, one step shows which products there are
        seen.clear()
        positions_1T = torch.arange(start, start + 4)[None]
        runner.forward(positions_1T, positions_1T, 8)
    assert [step for step in seen if step[0] != "conv"] == [("in_proj", 4), ("out_proj", 4)]


def test_a_cache_is_rebuilt_for_more_drafts_than_it_has_states() -> None:
    runner = StockRunner(tiny_hybrid("LFM2"))
    for most_drafts in ((1,), (4, 2)):
        for num_drafts in most_drafts:
            runner.reserve(num_drafts)
        runner.allocate(1, 8)
    assert runner.cache.states is not None
    assert runner.cache.states.num_slots == 4 + STATES_BESIDE_DRAFTS


def test_a_token_that_is_not_fed_overwrites_no_keys_of_a_full_row() -> None:
    runner = StockRunner(tiny_hybrid("LFM2"))
    runner.allocate(1, 8)
    positions_1T = torch.arange(8)[None]
    runner.forward(positions_1T, positions_1T, 8, start=0)
    keys = runner.cache.layers[1].keys
    full = keys[:, :8].clone()
    runner.forward(torch.tensor([[9]]), torch.tensor([[2]]), 8)  # the state before it is gone
    assert keys[:, :8].equal(full)


def test_layers_that_cannot_continue_with_many_tokens_are_fed_one_by_one() -> None:
    runner = StockRunner(tiny_hybrid("LFM2"))
    runner.allocate(1, 8)
    num_pieces = []
    for continues in (True, False):
        runner.continues = continues
        for start in (0, 2):
            positions_1T = torch.arange(start, start + 2)[None]
            runner.forward(positions_1T, positions_1T, 4, start=start)
            assert runner.cache.states is not None
            num_pieces.append(len(runner.cache.states.pieces))
    assert num_pieces == [1, 1, 1, 2]


def test_layers_with_a_state_are_found_by_running_a_token_and_attention_is_none() -> None:
    hybrid, attention = tiny_hybrid("Falcon-H1"), tiny_hybrid("Granite, all attention")
    found = state_layers(hybrid)
    assert [layer.layer_idx for layer in found] == [0, 1]
    assert {name for name, module in hybrid.named_modules() if module in found} == {
        f"model.layers.{i}.mamba" for i in range(2)
    }
    assert state_layers(attention) == []


def test_the_layers_of_a_model_with_a_cache_of_its_own_class_are_found() -> None:
    model = tiny_hybrid("MiniMax")
    (layer,) = state_layers(model)
    assert layer.layer_idx == 0
    assert issubclass(slot_cache_class(model), SlotCache)
    assert slot_cache_class(model) is not SlotCache


def test_a_model_with_more_layers_than_its_config_says_has_no_states() -> None:
    assert state_layers(tiny_model("hrm_text", 0)) == []
