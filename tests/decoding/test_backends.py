"""The attention backend that a record names is the one that runs."""

import torch
from torch.nn.attention import SDPBackend
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.forward.attention.stock import PREFERRED, attention_backend
from specbench.forward.runner import StockRunner
from tests.decoding.models import tiny_llama

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
    """Flash takes no mask: of those that do, cuDNN builds a plan whenever a shape is new."""
    assert PREFERRED[0] is SDPBackend.FLASH_ATTENTION
    masked = [backend for backend in PREFERRED if backend is not SDPBackend.FLASH_ATTENTION]
    assert masked[0] is SDPBackend.EFFICIENT_ATTENTION
    assert SDPBackend.CUDNN_ATTENTION in masked  # takes what the efficient kernel refuses
