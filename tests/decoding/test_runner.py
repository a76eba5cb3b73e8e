"""A model over slots: its outputs, its attention kernels, and the models that it refuses."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from specbench.errors import ModelError
from specbench.forward.attention.masks import additive_mask, visible
from specbench.forward.attention.stock import PREFERRED, attention_backend
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import Runner, StockRunner, refuse_unsupported
from specbench.forward.tree import StaticTree, branches_of
from specbench.records import Request
from specbench.topology import Topology
from tests.decoding.fake_cuda import DEVICE, fake_cuda
from tests.decoding.lossless import assert_texts, decode, make_drafter
from tests.decoding.models import (
    ARCHITECTURES,
    CLOSE,
    build,
    generated,
    plain_logits,
    positions,
    random_prompt,
    tiny_llama,
)

TOKENS_1T = torch.tensor([random_prompt(12, seed=1)])


@pytest.fixture(scope="module")
def expected_1TV() -> Tensor:
    return plain_logits(tiny_llama(), TOKENS_1T)


@pytest.fixture(params=[StockRunner, FusedRunner], ids=["stock", "fused"])
def runner(request: pytest.FixtureRequest) -> Runner:
    runner: Runner = request.param(tiny_llama())
    runner.allocate(3, 64)
    return runner


@torch.no_grad()
def test_logits_over_slots_are_those_of_the_plain_forward(
    runner: Runner, expected_1TV: Tensor
) -> None:
    head = runner.forward(TOKENS_1T[:, :7], positions(0, 7), 64).logits
    tail = runner.forward(TOKENS_1T[:, 7:], positions(7, 12), 64).logits

    torch.testing.assert_close(torch.cat([head, tail], 1), expected_1TV, **CLOSE)


@torch.no_grad()
def test_a_slot_that_is_written_again_holds_only_the_new_token(
    runner: Runner, expected_1TV: Tensor
) -> None:
    runner.forward(TOKENS_1T[:, :7], positions(0, 7), 64)
    runner.forward(TOKENS_1T[:, :3] + 1, positions(7, 10), 64)  # drafts that are refused

    tail = runner.forward(TOKENS_1T[:, 7:], positions(7, 12), 64).logits

    torch.testing.assert_close(tail, expected_1TV[:, 7:], **CLOSE)


@torch.no_grad()
def test_a_row_range_of_the_cache_can_be_used_on_its_own(
    runner: Runner, expected_1TV: Tensor
) -> None:
    for row in range(3):
        runner.forward(TOKENS_1T[:, :6] + row, positions(0, 6), 64, first_row=row)

    both = runner.forward(
        torch.cat([TOKENS_1T[:, 6:], TOKENS_1T[:, 6:] + 1]), positions(6, 12, 2), 64
    ).logits

    torch.testing.assert_close(both[:1], expected_1TV[:, 6:], **CLOSE)
    other_1TV = plain_logits(tiny_llama(), TOKENS_1T + 1)
    torch.testing.assert_close(both[1:], other_1TV[:, 6:], **CLOSE)


@torch.no_grad()
def test_the_slots_of_an_accepted_branch_move_within_their_own_row(
    runner: Runner, expected_1TV: Tensor
) -> None:
    """A draft one slot further than it belongs, past a sibling that was refused."""
    topology = Topology.of_paths([(0,), (1,), (1, 0)])
    tree = StaticTree(topology, torch.device("cpu")).of_rows(1)
    for row in range(3):
        runner.forward(TOKENS_1T[:, :7] + (row != 1), positions(0, 7), 64, first_row=row)
    positions_1N, branches = branches_of(tree, torch.tensor([[7]]))
    (current, first, second), refused = TOKENS_1T[0, 7:10].tolist(), 0
    nodes_1N = torch.tensor([[current, refused, first, second]])
    runner.forward(nodes_1N, positions_1N, 64, first_row=1, branches=branches)

    runner.move_slots(torch.tensor([[9, 10]]), torch.tensor([[8, 9]]), 1)

    tail = runner.forward(TOKENS_1T[:, 10:], positions(10, 12), 64, first_row=1).logits
    torch.testing.assert_close(tail, expected_1TV[:, 10:], **CLOSE)


@torch.no_grad()
def test_logits_can_be_limited_to_one_position_per_row(
    runner: Runner, expected_1TV: Tensor
) -> None:
    tokens_3T = TOKENS_1T.expand(3, -1)

    def run_rows(*last: int) -> Tensor:
        last_B = torch.tensor(last)
        return runner.forward(tokens_3T, positions(0, 12, 3), 64, last_B=last_B).logits

    torch.testing.assert_close(run_rows(11, 4, 0), expected_1TV[0, [11, 4, 0]][:, None], **CLOSE)
    torch.testing.assert_close(run_rows(4), expected_1TV[:, [4]].expand(3, -1, -1), **CLOSE)


@torch.no_grad()
def test_features_are_the_requested_hidden_states(runner: Runner) -> None:
    plain = tiny_llama()(input_ids=TOKENS_1T, use_cache=False, output_hidden_states=True)

    out = runner.forward(
        TOKENS_1T, positions(0, 12), 64, features=(0, 2, 1), last_B=torch.tensor([11])
    )

    for feature, index in zip(out.features, (0, 2, 1), strict=True):
        torch.testing.assert_close(feature, plain.hidden_states[index], **CLOSE)


def spread_llama() -> Any:
    """A model whose last layer, norm and head are on a second device, moving tensors as accelerate
    does for a device_map: inputs to each part, outputs only to the device of the first input."""
    model, second = tiny_llama(), torch.device("cuda:1")

    def moved(values: Any, device: torch.device) -> Any:
        return tree_map_only(Tensor, lambda tensor: tensor.to(device), values)

    for part in (model.model.layers[1], model.model.norm, model.lm_head):
        for module in part.modules():
            for name, weight in list(module.named_parameters(recurse=False)):
                setattr(module, name, torch.nn.Parameter(weight.to(second), requires_grad=False))
        part.register_forward_pre_hook(
            lambda _, args, kwargs: moved((args, kwargs), second), with_kwargs=True
        )
    model.register_forward_hook(lambda _, args, out: moved(out, DEVICE))  # noqa: ARG005
    return model


def test_outputs_of_a_model_on_several_devices_are_on_the_device_of_its_inputs() -> None:
    with fake_cuda():
        with DEVICE:
            runner = StockRunner(spread_llama())
        runner.allocate(1, 64)
        positions_1T = torch.arange(4, device=DEVICE)[None]
        before_norm = runner.num_layers + 1
        out = runner.forward(positions_1T, positions_1T, 64, features=(0, 2, before_norm))
        logits = runner.logits(out.features[1])

        assert {t.device for t in (out.logits, *out.features, logits)} == {DEVICE}


@torch.no_grad()
def test_the_bytes_of_a_token_are_its_keys_and_values_in_all_layers(runner: Runner) -> None:
    runner.forward(TOKENS_1T, positions(0, 12), 64)
    # 2 layers x keys and values x 2 key/value heads x 8 values x 4 bytes
    assert runner.cache.bytes_per_token == 2 * 2 * 2 * 8 * 4
    assert runner.cache.nbytes == 3 * 64 * runner.cache.bytes_per_token
    assert type(runner)(tiny_llama()).cache.bytes_per_token == 0


def test_a_cache_that_is_large_enough_is_kept(runner: Runner) -> None:
    cache = runner.cache

    runner.allocate(2, 64)
    assert runner.cache is cache

    runner.allocate(2, 65)
    assert runner.cache is not cache
    rows = getattr(runner.cache, "index", runner.cache)
    assert (rows.num_rows, rows.max_len) == (3, 65)


def seen_slots(mask: Tensor, row: int, query: int) -> list[int]:
    """The slots that are not masked."""
    slots: list[int] = (mask[row, 0, query] == 0).nonzero()[:, 0].tolist()
    return slots


def mask_of(places: list[list[int]], *, window: int | None, pack: int) -> Tensor:
    seen_BTS = visible(torch.tensor(places), torch.arange(6), window=window)
    return additive_mask(seen_BTS, torch.float32, pack=pack)


def test_a_position_attends_to_itself_and_earlier_ones() -> None:
    mask = mask_of([[2, 3], [0, 1]], window=None, pack=1)

    assert mask.shape == (2, 1, 2, 6)
    assert seen_slots(mask, 0, 0) == [0, 1, 2]
    assert seen_slots(mask, 0, 1) == [0, 1, 2, 3]
    assert seen_slots(mask, 1, 0) == [0]
    assert float(mask.min()) == torch.finfo(torch.float32).min / 2


def test_a_window_of_3_shows_a_position_and_the_two_before_it() -> None:
    mask = mask_of([[4, 1]], window=3, pack=1)

    assert seen_slots(mask, 0, 0) == [2, 3, 4]
    assert seen_slots(mask, 0, 1) == [0, 1]


def test_a_packed_mask_repeats_its_queries_per_head_of_the_group() -> None:
    mask = mask_of([[2, 3]], window=None, pack=3)

    assert mask.shape == (1, 1, 6, 6)
    assert [seen_slots(mask, 0, query)[-1] for query in range(6)] == [2, 3, 2, 3, 2, 3]


_TINY: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
}


def test_a_model_with_recurrent_state_is_refused_by_name() -> None:
    config = transformers.Mamba2Config(**_TINY, num_heads=4, head_dim=16, state_size=8, n_groups=2)

    with pytest.raises(ModelError, match="Mamba2ForCausalLM keeps recurrent state"):
        StockRunner(build(config))


def test_a_model_with_alibi_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="BloomForCausalLM uses ALiBi"):
        StockRunner(build(transformers.BloomConfig(**_TINY, n_head=4)))


def test_rope_that_depends_on_the_current_length_is_refused() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    model = tiny_llama(rope_parameters=rope)

    with pytest.raises(ModelError, match="rope_type dynamic"):
        StockRunner(model)


def test_rope_that_depends_on_the_current_length_is_found_even_in_one_kind_of_layer() -> None:
    config = ARCHITECTURES["Gemma3 + window"]()
    config.rope_parameters["full_attention"] = {
        "rope_type": "dynamic",
        "factor": 2.0,
        "rope_theta": 10_000.0,
    }

    with pytest.raises(ModelError, match="rope_type dynamic"):
        StockRunner(build(config))


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["Gemma3 + window", "GPT-NeoX"])
def test_rotary_positions_go_on_past_the_stated_context(architecture: str) -> None:
    config = ARCHITECTURES[architecture]()
    config.get_text_config().max_position_embeddings = 8
    model, tokens = build(config), torch.tensor([random_prompt(20, seed=3)])
    expected = model(tokens).logits

    runner = StockRunner(model)
    runner.allocate(1, 32)
    logits = runner.forward(tokens, torch.arange(20)[None], 32).logits

    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", ["GPT2", "GPTBigCode", "GPTJ"])
def test_positions_of_a_table_end_and_later_tokens_share_the_last(name: str) -> None:
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 8, "vocab_size": 97}
    rotary = {"rotary_dim": 4} if name == "GPTJ" else {}
    model = build(getattr(transformers, f"{name}Config")(**shape, **rotary))
    tokens, positions_1T = torch.tensor([random_prompt(20, seed=3)]), torch.arange(20)[None]
    expected = model(tokens, position_ids=positions_1T.clamp(max=7)).logits

    runner = StockRunner(model)
    runner.allocate(1, 32)
    logits = runner.forward(tokens, positions_1T, 32).logits

    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    assert runner.max_position == 8


def test_longrope_is_used_up_to_the_length_at_which_it_changes() -> None:
    config = ARCHITECTURES["Phi3"]()
    config.original_max_position_embeddings = 32
    config.rope_parameters = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
    }
    model = build(config)
    text = generated(model, random_prompt(20, seed=3), 12)
    target = StockRunner(model)
    drafter = make_drafter("draft_model", target, StockRunner(model))
    request = Request(prompt_ids=random_prompt(20, seed=3), max_new_tokens=12)

    # The drafts of the last round would reach past 32 and turn the frequencies.
    assert target.max_position == 32
    assert_texts(decode(target, drafter, [request], k=8), [text])


def test_an_unknown_kind_of_layer_is_refused_with_what_is_known() -> None:
    config = SimpleNamespace(layer_types=["full_attention", "indexed_attention"])
    whole = SimpleNamespace(get_text_config=lambda: config)
    model = SimpleNamespace(config=whole, modules=lambda: [])

    with pytest.raises(ModelError, match=r"indexed_attention; supported: .*full_attention"):
        refuse_unsupported(model)


@pytest.mark.parametrize("make", [StockRunner, FusedRunner])
@torch.no_grad()
def test_a_prompt_in_chunks_without_masks_has_the_logits_of_one_forward(make: Any) -> None:
    """Chunks of 5, 6 and 1 tokens: at the start, after others, and a single one."""
    expected_1TV = plain_logits(tiny_llama(), TOKENS_1T)
    runner = make(tiny_llama())
    runner.allocate(2, 64)
    chunks = [(0, 5), (5, 11), (11, 12)]

    logits = [
        runner.forward(
            TOKENS_1T[:, start:stop], positions(start, stop), 64, first_row=1, start=start
        ).logits
        for start, stop in chunks
    ]

    torch.testing.assert_close(torch.cat(logits, 1), expected_1TV, atol=2e-4, rtol=1e-3)


CPU = torch.device("cpu")


class Kernels(TorchDispatchMode):
    """Names of the operations that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen.add(str(func))
        return func(*args, **(kwargs or {}))


def test_the_recorded_backend_is_the_one_that_runs() -> None:
    runner = StockRunner(tiny_llama())
    runner.allocate(1, 64)
    tokens_1T = torch.zeros(1, 5, dtype=torch.long)
    name = attention_backend(
        CPU, torch.float32, num_heads=4, num_kv_heads=2, head_dim=8, num_tokens=5, span=64
    )

    with Kernels() as kernels, torch.inference_mode(False), torch.no_grad():
        runner.forward(tokens_1T, torch.arange(5)[None], 64)

    assert name == "flash_attention"
    assert any("scaled_dot_product_flash_attention_for_cpu" in seen for seen in kernels.seen)


def test_masked_attention_takes_a_kernel_that_needs_no_plan_for_each_span() -> None:
    """Flash takes no mask: of the backends that do, cuDNN builds a plan whenever a shape is new."""
    assert PREFERRED[0] is SDPBackend.FLASH_ATTENTION
    masked = [backend for backend in PREFERRED if backend is not SDPBackend.FLASH_ATTENTION]
    assert masked[0] is SDPBackend.EFFICIENT_ATTENTION
    assert SDPBackend.CUDNN_ATTENTION in masked  # takes what the efficient kernel refuses
