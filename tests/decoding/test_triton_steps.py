"""Triton's kernels of a layer's small operations, in its interpreter, equal to torch's operations.

The interpreter rounds to bfloat16 as a GPU does. It lacks only products (slot_attention).
"""

from collections import defaultdict

import pytest
import torch

from specbench.footprint import Sizes
from specbench.forward.attention.implementations import SplitKv
from specbench.forward.fused_layers import TorchSteps, TritonSteps
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.workspace import JoinedCache, Workspace
from tests.decoding.fake_cuda import DEVICE, fake_cuda
from tests.decoding.fused_families import family
from tests.decoding.launches import Launches

BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # relative
SIZES = [
    Sizes(hidden=64, query_heads=4, kv_heads=2, head=64, mlp=96),
    Sizes(hidden=64, query_heads=3, kv_heads=3, head=80, mlp=1500),
    Sizes(hidden=64, query_heads=4, kv_heads=1, head=96, mlp=33),
    Sizes(hidden=64, query_heads=2, kv_heads=1, head=256, mlp=64),
]
EPS = 1e-6


def results(steps, sizes, dtype, head_norm, rounded_to):
    """Queries, the cache and the gated product once the steps have run over the same numbers."""
    generator = torch.Generator().manual_seed(1)
    B, T, num_slots = 2, 3, 40

    def drawn(*shape):
        return torch.randn(*shape, generator=generator).to(rounded_to).to(dtype)

    N, scratch = B * T, torch.zeros(B * T * sum(sizes.widths(mirrored=False)), dtype=dtype)
    work = Workspace(sizes, scratch, B, T, mirrored=False)
    work.qkv.copy_(drawn(*work.qkv.shape))
    work.gate_up.copy_(drawn(*work.gate_up.shape))
    width = 2 * sizes.kv_heads * sizes.head
    cache = JoinedCache(1, num_slots, [torch.zeros(num_slots, width, dtype=dtype)])
    (kept,) = cache.view(1, num_slots, 0, sizes).layers
    angles = torch.rand(num_slots, sizes.head // 2, generator=generator) * 6
    cos, sin = angles.cos().repeat(1, 2), torch.cat((-angles.sin(), angles.sin()), 1)
    rope = torch.stack((cos, sin), 1).view(num_slots, 2, 1, 2, -1).to(rounded_to).to(dtype)
    weights = drawn(sizes.query_heads + sizes.kv_heads, sizes.head)
    layer = type("Layer", (), {"head_norm": weights if head_norm else None})
    order = torch.randperm(num_slots, generator=generator)[:N]
    # Strided columns of a table, as in a round.
    slots_N, positions_N = torch.stack((order, order.flip(0)), 1).unbind(1)
    steps.rotate_and_store(work, layer, kept, slots_N, steps.rotations(rope, positions_N))
    gated = steps.gate(work)
    queries = work.qkv[:, : sizes.query_heads * sizes.head]
    return queries.clone(), kept.buffer.clone(), gated.clone()


@pytest.mark.sampled(one_in=4, every=["sizes", "dtype", "head_norm"])
@pytest.mark.parametrize("head_norm", [False, True], ids=["plain", "head norm"])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"{sizes.head}")
def test_triton_steps_equal_torch_operations(sizes, dtype, head_norm):
    exact = results(TorchSteps(sizes, EPS, mirrored=False), sizes, torch.float32, head_norm, dtype)
    got = results(TritonSteps(sizes, EPS), sizes, dtype, head_norm, dtype)
    for ours, theirs in zip(got, exact, strict=True):
        torch.testing.assert_close(ours.float(), theirs, rtol=BOUNDS[dtype], atol=BOUNDS[dtype] / 4)


def launches_per_layer(name: str, *, triton: bool) -> int:
    """Forwards of two layers minus those of one, over 5 tokens, on fake CUDA tensors."""
    with fake_cuda():
        with DEVICE:
            whole = FusedRunner(family(name))
        if triton:
            whole = whole.with_triton()
            whole.layers.kernels = defaultdict(SplitKv)
        whole.allocate(1, 64)
        tokens_1T = torch.zeros(1, 5, dtype=torch.long, device=DEVICE)
        counted = []
        for runner in (whole.first_layers(1), whole.first_layers(2)):
            runner.forward(tokens_1T, tokens_1T, 64)  # allocates what later forwards reuse
            with Launches() as launches:
                runner.forward(tokens_1T, tokens_1T, 64)
            counted.append(launches.total)
    return counted[1] - counted[0]


@pytest.mark.parametrize(("name", "before"), [("Llama", 15), ("Qwen2", 15), ("Qwen3", 17)])
def test_triton_reduces_the_launches_per_layer_to_ten(name, before):
    assert launches_per_layer(name, triton=False) == before
    assert launches_per_layer(name, triton=True) == 10
