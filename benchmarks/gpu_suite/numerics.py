"""Whether the fused forward computes what the stock one does, and on which attention kernels."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_suite.machine import NO_GPU, Json, Machine, absent
from benchmarks.gpu_suite.models import FAMILIES, make_model, medium, shape
from specbench.forward.attention.backends import attention_backend, pinned_attention
from specbench.forward.runner import Runner
from specbench.forward.self_test import make_checked_runner

SIZES = (1, 5, 9)  # tokens of a forward: a plain step, and checking 4 and 8 drafts
CONTEXT = 40
_ATTENTION = ("fmha", "flash", "attention", "sdpa", "softmax")  # in names of kernels


def fused_is_stock(machine: Machine) -> Json:
    """Root mean square distance of logits, in standard deviations of a logit, by family."""
    found: Json = {}
    for dtype in (torch.bfloat16, torch.float32):
        for family in FAMILIES:
            model = make_model(medium(4, machine, family=family), dtype, machine.device)
            _bend_vectors(model)
            fused, _ = make_checked_runner(model, "fused")
            stock, _ = make_checked_runner(model, "stock")
            name = f"{family}, {str(dtype).removeprefix('torch.')}"
            found[name] = {
                f"T={size}": _distance(_logits(fused, size), _logits(stock, size)) for size in SIZES
            }
    return {"context": CONTEXT, "distance": found}


def attention(machine: Machine) -> Json:
    """The backend that torch chooses at the 8B shape, and the kernels that then ran."""
    if not machine.is_cuda:
        return absent(NO_GPU)
    config = shape("llama-8b", machine)
    config.num_hidden_layers = 2
    backends = {
        f"T={size}, span={span}": attention_backend(
            machine.device,
            torch.bfloat16,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            num_tokens=size,
            span=span,
        )
        for size in SIZES
        for span in (256, 4096)
    }
    model = make_model(config, torch.bfloat16, machine.device)
    runner, _ = make_checked_runner(model, "fused")
    kernels = {f"T={size}": sorted(set(_attention_kernels(runner, size))) for size in SIZES}
    return {"chosen": backends, "kernels": kernels}


def _bend_vectors(model: Any) -> None:
    """Norms that are all ones and biases that are all zeros would hide what is left out."""
    generator = torch.Generator(model.device).manual_seed(2)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            noise = torch.rand(len(parameter), generator=generator, device=model.device)
            parameter.data += (noise - 0.5).to(parameter.dtype)


@torch.inference_mode()
def _logits(runner: Runner, size: int) -> Tensor:
    """Logits [T, V] of a made-up text's last tokens, its first ones fed before."""
    generator = torch.Generator().manual_seed(0)
    vocab, num_tokens = min(runner.vocab_size, 1000), CONTEXT + size
    tokens_1T = torch.randint(1, vocab, (1, num_tokens), generator=generator).to(runner.device)
    places_1T = torch.arange(num_tokens, device=runner.device)[None]
    runner.allocate(1, 64)
    with pinned_attention(runner.device):
        runner.forward(tokens_1T[:, :CONTEXT], places_1T[:, :CONTEXT], 64)
        return runner.forward(tokens_1T[:, CONTEXT:], places_1T[:, CONTEXT:], 64).logits[0]


def _distance(got_TV: Tensor, expected_TV: Tensor) -> float:
    difference_TV = got_TV.double() - expected_TV.double()
    return float(difference_TV.square().mean().sqrt() / expected_TV.double().std())


def _attention_kernels(runner: Runner, size: int) -> Iterator[str]:
    _logits(runner, size)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        _logits(runner, size)
        torch.cuda.synchronize()
    events: Any = profiled.events()
    for event in events:
        is_kernel = event.device_type.name == "CUDA"
        if is_kernel and any(part in event.name.lower() for part in _ATTENTION):
            yield event.name[:120]
