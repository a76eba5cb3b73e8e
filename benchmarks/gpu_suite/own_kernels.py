"""Our Triton kernels against torch's operations on the card in bf16, where no interpreter runs.

Attention is in autotuning.py. Shape suffixes: N tokens, B rows, T positions, V vocabulary.
"""

from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu_suite.claims import claim
from benchmarks.gpu_suite.machine import Json, Machine
from specbench.decode.sampling import Sampler
from specbench.footprint import Sizes
from specbench.forward.fused_layers import TorchSteps, TritonSteps
from specbench.forward.kernels.availability import triton_failure
from specbench.forward.workspace import JoinedCache, Workspace
from specbench.records import Sampling

BOUND = 0.016  # two roundings to bf16, relative to the largest number
EPS = 1e-6
ROWS, TOKENS, SLOTS = 2, 3, 64
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=0.8, top_p=0.9),
    Sampling(temperature=1.0, top_k=50),
)


class Stepped(NamedTuple):
    """What a layer's steps wrote."""

    queries: Tensor
    cache: Tensor
    gated: Tensor


def own_kernels(machine: Machine) -> Json:
    """Errors of a layer's steps over random numbers; draws on the device and on the host."""
    errors = {}
    for head in (64, 80, 96, 128, 256) if not machine.small else (16,):
        sizes = Sizes(hidden=64, query_heads=8, kv_heads=2, head=head, mlp=1500)
        exact = _stepped(
            TorchSteps(sizes, EPS, mirrored=False), sizes, torch.device("cpu"), torch.float32
        )
        steps = TorchSteps(sizes, EPS, mirrored=False)
        if triton_failure(machine.device) is None:
            steps = TritonSteps(sizes, EPS)
        got = _stepped(steps, sizes, machine.device, torch.bfloat16)
        errors[f"heads of {head}"] = {
            name: _error(ours, wanted)
            for name, ours, wanted in zip(Stepped._fields, got, exact, strict=True)
        }
    draws = {str(sampling): _equal_draws(machine, sampling) for sampling in SAMPLINGS}
    worst = max(error for of_head in errors.values() for error in of_head.values())
    return {
        "steps": steps.name,
        "steps_reason": triton_failure(machine.device),
        "errors": errors,
        "equal_draws": draws,
        "claims": [
            claim("worst error of a layer's steps in bf16, relative", worst, at_most=BOUND),
            # A logarithm may round otherwise, so that two tokens as likely change places.
            claim("share of draws equal to the host's", min(draws.values()), at_least=0.995),
        ],
    }


def _stepped(steps: TorchSteps, sizes: Sizes, device: torch.device, dtype: torch.dtype) -> Stepped:
    """What they write over the same numbers, which are rounded to bf16 for every dtype."""
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> Tensor:
        numbers = torch.randn(*shape, generator=generator).to(torch.bfloat16)
        return numbers.to(device, dtype)

    num_tokens = ROWS * TOKENS
    scratch = torch.zeros(
        num_tokens * sum(sizes.widths(mirrored=False)), dtype=dtype, device=device
    )
    work = Workspace(sizes, scratch, ROWS, TOKENS, mirrored=False)
    work.qkv.copy_(drawn(*work.qkv.shape))
    work.gate_up.copy_(drawn(*work.gate_up.shape))
    width = 2 * sizes.kv_heads * sizes.head
    buffer = torch.zeros(SLOTS, width, dtype=dtype, device=device)
    (kept,) = JoinedCache(1, SLOTS, [buffer]).view(1, SLOTS, 0, sizes).layers
    angles = torch.rand(SLOTS, sizes.head // 2, generator=generator) * 6
    sin = torch.cat((-angles.sin(), angles.sin()), 1)
    rope = torch.stack((angles.cos().repeat(1, 2), sin), 1).view(SLOTS, 2, 1, 2, -1)
    rope = rope.to(torch.bfloat16).to(device, dtype)
    norms = drawn(sizes.query_heads + sizes.kv_heads, sizes.head)
    layer: object = SimpleNamespace(head_norm=norms)
    slots_N = torch.randperm(SLOTS, generator=generator)[:num_tokens].to(device)
    steps.rotate_and_store(work, layer, kept, slots_N, steps.rotations(rope, slots_N.flip(0)))
    queries = work.qkv[:, : sizes.query_heads * sizes.head].clone()
    return Stepped(queries, buffer, steps.gate(work).clone())


def _error(got: Tensor, wanted: Tensor) -> float:
    return float((got.cpu().float() - wanted).abs().max() / wanted.abs().max())


def _equal_draws(machine: Machine, sampling: Sampling) -> float:
    """Share of tokens that the device draws from logits [B, T, V] as the host does."""
    generator = torch.Generator().manual_seed(2)
    B, T, V = machine.pick(8, 2), 9, machine.pick(128_256, 2_000)
    logits_BTV = torch.randn(B, T, V, generator=generator) * 3
    seeds_B = torch.arange(B) + 11
    positions_BT = torch.arange(T).expand(B, T) + 100
    parts = (logits_BTV, seeds_B, positions_BT)
    sampler = Sampler(sampling)
    own_BT = sampler.pick(*(part.to(machine.device) for part in parts))
    return float((own_BT.cpu() == sampler.pick(*parts)).float().mean())
