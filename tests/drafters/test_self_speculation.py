"""The target's first layers as drafter: drafts of the truncated model in the target's slots."""

from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decode.drafter import DrafterForward
from specbench.errors import ModelError, UsageError
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import Runner, StockRunner
from specbench.models.parts import cut_model
from specbench.records import Result
from tests.decoding.lossless import acceptance_rate, assert_texts, decode, make_drafter
from tests.decoding.models import (
    ARCHITECTURES,
    build,
    plain_logits,
    ragged_requests,
    ragged_texts,
    random_prompt,
    tiny_llama,
)

REQUESTS = ragged_requests()
TOKENS_2T = torch.tensor([random_prompt(9, seed=3), random_prompt(9, seed=4)])
PLACES_2T = torch.arange(9).expand(2, -1)


def deep_llama(later: float = 1.0) -> Any:
    """Four layers; the outputs of the last three are scaled by `later`."""
    model = tiny_llama(num_hidden_layers=4)
    for layer in model.model.layers[1:]:
        layer.self_attn.o_proj.weight.data *= later
        layer.mlp.down_proj.weight.data *= later
    return model


def truncated(model: Any, num_layers: int) -> Any:
    """A separate model with the first layers' weights."""
    config = type(model.config)(**{**model.config.to_dict(), "num_hidden_layers": num_layers})
    cut = build(config, seed=5)
    state = {
        name: weight for name, weight in model.state_dict().items() if name in cut.state_dict()
    }
    cut.load_state_dict(state)
    return cut


def skip(layer: Any, inputs: tuple[Tensor, ...], output: Any) -> Any:  # noqa: ARG001
    """The output of a skipped layer's hook: its input states."""
    return inputs[0] if isinstance(output, Tensor) else (inputs[0], *output[1:])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_first_layers_of_every_architecture_leave_the_model_unchanged(
    architecture: str,
) -> None:
    model = build(ARCHITECTURES[architecture]())
    model.set_attn_implementation("eager")  # Gemma 2 needs it, on some versions unasked
    whole = plain_logits(model, TOKENS_2T)
    *_, last = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
    hook = last.register_forward_hook(skip)
    expected = plain_logits(model, TOKENS_2T)
    hook.remove()
    runner = StockRunner(model)

    first = runner.first_layers(1)

    runner.allocate(2, 64)
    logits = first.forward(TOKENS_2T, PLACES_2T, 64).logits
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-3)
    logits = runner.forward(TOKENS_2T, PLACES_2T, 64).logits
    torch.testing.assert_close(logits, whole, atol=2e-4, rtol=1e-3)
    weights = {id(parameter) for parameter in model.parameters()}
    assert {id(parameter) for parameter in first.model.parameters()} < weights


class Foreign(torch.nn.Module):
    """A model as a repository's own code has it: its decoder is in a module without a config."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.config = decoder.config
        self.body = torch.nn.Sequential(decoder)

    def get_decoder(self) -> Any:
        return self.body[0]


def test_first_layers_are_found_behind_a_module_without_a_config() -> None:
    model = Foreign(tiny_llama().model)
    cut = cut_model(model, 1)
    assert list(cut.get_decoder().layers) == [model.get_decoder().layers[0]]
    assert cut.get_decoder().config is cut.config
    assert (cut.config.num_hidden_layers, model.config.num_hidden_layers) == (1, 2)
    assert len(model.get_decoder().layers) == 2


@pytest.mark.parametrize("make", [StockRunner, FusedRunner])
@torch.no_grad()
def test_first_layers_have_the_logits_of_a_truncated_model(make: Any) -> None:
    model = deep_llama()
    expected = plain_logits(truncated(model, 2), TOKENS_2T)
    first = make(model).first_layers(2)

    first.allocate(2, 64)

    logits = first.forward(TOKENS_2T, PLACES_2T, 64).logits
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("make", [StockRunner, FusedRunner])
@torch.no_grad()
def test_first_layers_share_the_targets_cache_after_it_grew(make: Any) -> None:
    """Only the target runs the prompt, and the first layers continue from it."""
    model = deep_llama()
    expected = plain_logits(truncated(model, 2), TOKENS_2T)
    runner = make(model)
    first = runner.first_layers(2)
    for max_len in (64, 128):
        runner.allocate(2, max_len)
        runner.forward(TOKENS_2T[:, :6], PLACES_2T[:, :6], 64)

        logits = first.forward(TOKENS_2T[:, 6:], PLACES_2T[:, 6:], 64).logits

        assert first.cache is runner.cache
        torch.testing.assert_close(logits, expected[:, 6:], atol=2e-4, rtol=1e-3)


def logs(results: list[Result]) -> list[Any]:
    return [(result.output_ids, result.rounds.num_accepted) for result in results]


@pytest.mark.sampled(one_in=4)
@pytest.mark.slow
@pytest.mark.parametrize("make", [StockRunner, FusedRunner])
@pytest.mark.parametrize("tree", [(), (3, 2)])
@pytest.mark.parametrize("k", [1, 4])
def test_self_speculation_drafts_like_a_truncated_draft_model(
    make: Any, tree: tuple[int, ...], k: int
) -> None:
    model = deep_llama(later=0.3)
    texts = ragged_texts(model)
    draft = StockRunner(truncated(model, 2))
    target: Runner = make(model)
    first = make_drafter("self_speculation", target, num_layers=2, tree=tree)
    other = make_drafter("draft_model", target, draft, tree=tree)

    ours = decode(target, first, REQUESTS, k=k, prefill_chunk=4)
    theirs = decode(target, other, REQUESTS, k=k, prefill_chunk=4)

    assert_texts(ours, texts)
    assert logs(ours) == logs(theirs)
    assert 0 < acceptance_rate(ours) < 1


def test_acceptance_rises_with_the_share_of_layers_that_draft() -> None:
    def accepted(later: float, num_layers: int) -> float:
        target = StockRunner(deep_llama(later))
        drafter = make_drafter("self_speculation", target, num_layers=num_layers)
        return acceptance_rate(decode(target, drafter, REQUESTS, k=4))

    assert accepted(1, 4) == accepted(0, 1) == 1
    assert accepted(1, 1) < accepted(0.1, 1) < 1


def test_a_quarter_of_the_layers_drafts_by_default() -> None:
    target = StockRunner(tiny_llama(num_hidden_layers=9))

    assert make_drafter("self_speculation", target).runner.num_layers == 2
    assert make_drafter("self_speculation", StockRunner(tiny_llama())).runner.num_layers == 1


@pytest.mark.parametrize(("tree", "num_tokens"), [((), [1, 1, 1, 1]), ((3, 2), [1, 3, 6, 6])])
def test_self_speculation_runs_one_forward_per_tree_level(
    tree: tuple[int, ...], num_tokens: list[int]
) -> None:
    drafter = make_drafter("self_speculation", StockRunner(tiny_llama()), tree=tree)

    assert drafter.resources.forwards(4) == tuple(DrafterForward(num) for num in num_tokens)


def test_more_layers_than_the_target_has_are_refused() -> None:
    with pytest.raises(UsageError, match=r"num_layers 3.*2 layers"):
        make_drafter("self_speculation", StockRunner(tiny_llama()), num_layers=3)


def test_a_model_whose_layers_are_not_found_is_refused() -> None:
    model = tiny_llama()
    runner = StockRunner(model)
    model.model.more = torch.nn.ModuleList(model.model.layers)

    with pytest.raises(ModelError, match="2 layers"):
        make_drafter("self_speculation", runner)


def test_a_model_that_is_spread_over_devices_is_refused() -> None:
    model = tiny_llama()
    runner = StockRunner(model)
    model.model.forward = model.model.forward  # what device_map does, to move tensors around

    with pytest.raises(ModelError, match="device_map"):
        make_drafter("self_speculation", runner)
