"""The fused forward: the stock runner's outputs, in any row and at any place; its weights."""

import copy
import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from specbench.errors import ModelError
from specbench.forward.fused_layers import _MAX_SHAPES, _remember
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.fused_weights import FusedWeights, fuse, unfused_reason
from specbench.forward.runner import Runner, StockRunner
from tests.decoding.fake_cuda import DEVICE, fake_cuda
from tests.decoding.fused_families import FAMILIES, LLAMA3_ROPE, TOKENS_2T, family
from tests.decoding.lossless import acceptance_rate, assert_texts, decode, make_drafter
from tests.decoding.models import (
    ARCHITECTURES,
    CLOSE,
    WINDOW,
    build,
    plain_logits,
    positions,
    ragged_requests,
    ragged_texts,
    random_prompt,
    rms_error,
    tiny_llama,
)


def over_slots(runner: Runner) -> Tensor:
    """Logits [2, T, V] of rows 1 and 2: a prefill, a rejected draft, one token, more."""
    runner.allocate(3, 64)

    def feed(tokens: Tensor, start: int) -> Tensor:
        stop = start + tokens.shape[1]
        return runner.forward(tokens, positions(start, stop, 2), 64, first_row=1).logits

    runner.forward(TOKENS_2T[:1, :5] + 1, positions(0, 5), 64)  # row 0 is another's
    head = feed(TOKENS_2T[:, :9], 0)
    feed(TOKENS_2T[:, :3] + 1, 9)
    return torch.cat([head, feed(TOKENS_2T[:, 9:10], 9), feed(TOKENS_2T[:, 10:], 10)], 1)


@pytest.mark.sampled(one_in=2, every=["name", "dtype"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", list(FAMILIES))
@torch.no_grad()
def test_fused_logits_are_as_accurate_as_stock_ones(name: str, dtype: torch.dtype) -> None:
    model = family(name).to(dtype)
    truth = over_slots(StockRunner(copy.deepcopy(model).double()))
    stock = over_slots(StockRunner(copy.deepcopy(model)))

    fused = over_slots(FusedRunner(model))

    assert fused.dtype is dtype
    assert rms_error(fused, truth) < 2 * rms_error(stock, truth)
    assert rms_error(stock, truth) < 0.05 * float(truth.std())


@pytest.mark.slow
@pytest.mark.parametrize("name", list(FAMILIES))
def test_text_of_the_fused_runner_equals_generate(name: str) -> None:
    model = family(name)
    texts = ragged_texts(model)
    target, draft, stranger = FusedRunner(model), FusedRunner(model), FusedRunner(family(name, 1))
    requests = ragged_requests()

    baseline = decode(target, make_drafter("none", target), requests, k=0)
    right = decode(target, make_drafter("draft_model", target, draft), requests, k=4)
    wrong = decode(target, make_drafter("draft_model", target, stranger), requests, k=4)

    assert_texts(baseline, texts)
    assert_texts(right, texts)
    assert_texts(wrong, texts)
    assert acceptance_rate(right) == 1
    assert acceptance_rate(wrong) < 0.2
    assert all(len(set(text)) >= 6 for text in texts)  # no text loops


_ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": LLAMA3_ROPE,
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32},
    "longrope": {
        "short_factor": [1.0, 1.5, 2.0, 2.5],
        "long_factor": [4.0] * 4,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}


@pytest.mark.parametrize("rope_type", list(_ROPES))
@torch.no_grad()
def test_rotary_positions_are_the_models_own(rope_type: str) -> None:
    rope = {"rope_type": rope_type, "rope_theta": 100.0, **_ROPES[rope_type]}
    model = tiny_llama(rope_parameters=rope)
    expected = plain_logits(model, TOKENS_2T)
    runner = FusedRunner(model)
    runner.allocate(2, 64)

    logits = runner.forward(TOKENS_2T, positions(0, TOKENS_2T.shape[1], 2), 64).logits

    torch.testing.assert_close(logits, expected, **CLOSE)
    assert runner.max_position == (32 if rope_type == "longrope" else 128)


@torch.no_grad()
def test_rotary_positions_go_on_past_the_context_that_the_config_states() -> None:
    model = tiny_llama(max_position_embeddings=16)
    expected = model(TOKENS_2T[:1]).logits

    for runner in (FusedRunner(copy.deepcopy(model)), StockRunner(model)):
        runner.allocate(1, 64)
        logits = runner.forward(TOKENS_2T[:1], positions(0, 2 * WINDOW), 64).logits
        torch.testing.assert_close(logits, expected, **CLOSE)
        assert runner.max_position == 16


@pytest.fixture
def runner() -> FusedRunner:
    runner = FusedRunner(tiny_llama())
    runner.allocate(3, 64)
    return runner


TOKENS_1T = TOKENS_2T[:1, :12]


@pytest.fixture(scope="module")
def expected_1TV() -> Tensor:
    return plain_logits(tiny_llama(), TOKENS_1T)


@torch.no_grad()
def test_outputs_survive_the_next_forward(runner: FusedRunner, expected_1TV: Tensor) -> None:
    out = runner.forward(TOKENS_1T, positions(0, 12), 64, features=(0, 1, 2))
    before = [feature.clone() for feature in out.features]

    runner.forward(TOKENS_1T + 1, positions(0, 12), 64)

    torch.testing.assert_close(out.logits, expected_1TV, **CLOSE)
    torch.testing.assert_close(list(out.features), before, rtol=0, atol=0)


@torch.no_grad()
def test_a_forward_longer_than_the_cached_shapes_is_correct(runner: FusedRunner) -> None:
    tokens_3T = torch.tensor([random_prompt(100, seed=3)]).expand(3, -1)
    runner.allocate(3, 128)

    logits = runner.forward(tokens_3T, positions(0, 100, 3), 128).logits

    torch.testing.assert_close(logits[:1], plain_logits(tiny_llama(), tokens_3T[:1]), **CLOSE)


@torch.no_grad()
def test_a_copied_row_continues_as_its_source(runner: FusedRunner, expected_1TV: Tensor) -> None:
    runner.forward(TOKENS_1T[:, :9], positions(0, 9), 64)

    runner.copy_row(0, 2, 7)

    assert not any(layer.view(3, 64, -1)[2, 7:].any() for layer in runner.cache.layers)
    tail = runner.forward(TOKENS_1T[:, 7:], positions(7, 12), 64, first_row=2).logits
    torch.testing.assert_close(tail, expected_1TV[:, 7:], **CLOSE)


@torch.no_grad()
def test_a_runner_made_in_inference_mode_works_outside_of_it(expected_1TV: Tensor) -> None:
    with torch.inference_mode():
        runner = FusedRunner(tiny_llama())
        runner.allocate(1, 64)
        runner.forward(TOKENS_1T, positions(0, 12), 64)

    logits = runner.forward(TOKENS_1T, positions(0, 12), 64).logits

    torch.testing.assert_close(logits, expected_1TV, **CLOSE)


@torch.no_grad()
def test_released_rows_leave_no_tensor_alive(runner: FusedRunner, expected_1TV: Tensor) -> None:
    runner.forward(TOKENS_1T, positions(0, 12), 64)
    storages = [StorageWeakRef(layer.untyped_storage()) for layer in runner.cache.layers]

    runner.release()

    assert [storage.expired() for storage in storages] == [True, True]
    runner.allocate(3, 64)
    logits = runner.forward(TOKENS_1T, positions(0, 12), 64).logits
    torch.testing.assert_close(logits, expected_1TV, **CLOSE)


@torch.no_grad()
def test_memory_freed_by_the_first_layers_is_available_to_all() -> None:
    runner = FusedRunner(tiny_llama())
    runner.first_layers(1).allocate(1, 64)
    assert len(runner.cache.layers) == 2


def test_the_cache_by_shape_is_bounded() -> None:
    known: dict[int, int] = {}
    for shape in range(3 * _MAX_SHAPES):
        _remember(known, shape, shape)
        assert known[shape] == shape
    assert len(known) <= _MAX_SHAPES


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes by address of all memory that the tensors occupy."""
    memory = [tensor.untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in memory}


def tensors_of(weights: FusedWeights) -> list[Tensor]:
    tensors = [weights.embedding, weights.final_norm, weights.head]
    return tensors + [t for layer in weights.layers for t in layer if isinstance(t, Tensor)]


@pytest.mark.parametrize("mirrored", [False, True], ids=["gpu", "cpu"])
@pytest.mark.parametrize("name", list(FAMILIES))
def test_fused_weights_share_the_memory_of_the_model(name: str, mirrored: bool) -> None:
    model = family(name)
    expected = plain_logits(model, TOKENS_2T)
    before = sum(storages(model.parameters()).values())

    weights = fuse(model, mirrored=mirrored)
    again = fuse(model, mirrored=mirrored)

    together = storages([*model.parameters(), *tensors_of(weights), *tensors_of(again)])
    norms = 5 * 32 * 4 if mirrored else 0  # the zeros behind the norms of 2 layers and the last
    for made in (weights, again):
        norms += sum(la.head_norm.nbytes for la in made.layers if la.head_norm is not None)
    assert sum(together.values()) == before + norms
    torch.testing.assert_close(plain_logits(model, TOKENS_2T), expected)
    is_tied = model.config.tie_word_embeddings
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == is_tied


def test_a_gpu_gets_the_memory_of_separate_matrices_back_every_few_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with fake_cuda():
        with DEVICE:
            layers = (model := tiny_llama(num_hidden_layers=10)).model.layers
        num_joined: list[int] = []

        def empty_cache() -> None:
            num_joined.append(sum(la.mlp.up_proj.weight.storage_offset() > 0 for la in layers))

        monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
        fuse(model, mirrored=False)

    assert num_joined[-1] == 10
    assert max(after - before for before, after in pairwise([0, *num_joined])) <= 4


def _of_two_dtypes(model: Any) -> None:
    model.model.norm.double()


def _with_half_a_bias(model: Any) -> None:
    model.model.layers[1].self_attn.k_proj.bias = nn.Parameter(torch.zeros(16))


def _with_another_linear(model: Any) -> None:
    class Linear8bit(nn.Linear): ...

    model.model.layers[0].mlp.down_proj = Linear8bit(48, 32, bias=False)


class Int8Tensor(Tensor):
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return [], None


def _with_quantized_weights(model: Any) -> None:
    linear = model.model.layers[0].mlp.down_proj
    linear.weight = nn.Parameter(linear.weight.detach().as_subclass(Int8Tensor))


def _with_a_bias_in_the_head(model: Any) -> None:
    model.lm_head.bias = nn.Parameter(torch.zeros(97))


def _spread(model: Any) -> None:
    model.model.layers[1].to("meta")


def _half_rotary(model: Any) -> None:
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq[:2]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_of_two_dtypes, "several dtypes: torch.float32, torch.float64"),
        (_with_half_a_bias, "some of the linear layers to be joined have a bias"),
        (_with_another_linear, "its linear layers are Linear8bit"),
        (_with_quantized_weights, "its weights are Int8Tensor (quantized)"),
        (_with_a_bias_in_the_head, "its lm_head has a bias"),
        (_spread, "spread over cpu, meta"),
        (_half_rotary, "only a part of each head"),
    ],
)
def test_a_model_that_cannot_be_fused_is_refused_with_the_reason(
    change: Callable[[Any], None], reason: str
) -> None:
    model = tiny_llama()
    assert unfused_reason(model) is None

    change(model)

    assert reason in (unfused_reason(model) or "")
    with pytest.raises(ModelError, match=r"LlamaForCausalLM.*fused"):
        FusedRunner(model)


def test_other_architectures_and_activations_are_named() -> None:
    assert re.match("Phi3ForCausalLM .*Llama", unfused_reason(build(ARCHITECTURES["Phi3"]())) or "")
    assert re.search("gelu, .*silu", unfused_reason(tiny_llama(hidden_act="gelu")) or "")
