"""Every implementation of attention that runs without a GPU, equal to the plain one in float32.

Triton's kernels run in its interpreter, which has no product in bfloat16; float16 stands for it.
"""

import random

import pytest
import torch

from specbench.forward.attention.choice import USUAL
from specbench.forward.attention.kernel import Case, Kernel
from specbench.forward.attention.parts import Parts
from specbench.forward.attention.plain import Plain
from specbench.forward.attention.trial import Shape, Trial

CPU = torch.device("cpu")
HERE: tuple[Kernel, ...] = (USUAL, Plain(), Parts())
# Of the root mean square of what comes out.
BOUNDS = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
HEADS = [(4, 4, 64), (6, 2, 80), (4, 1, 96), (8, 2, 128), (2, 1, 256)]  # query, key/value, size


def of(heads: tuple[int, int, int], dtype: torch.dtype, window: int | None, is_tree: bool) -> Case:
    query_heads, kv_heads, head_size = heads
    return Case(
        device=CPU,
        dtype=dtype,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_size=head_size,
        window=window,
        is_tree=is_tree,
    )


def error(kernel: Kernel, trial: Trial) -> float:
    expected = trial.expected()
    got = trial.run(kernel).float()
    assert got.isfinite().all()
    return float((got - expected).abs().max() / expected.square().mean().sqrt())


@pytest.mark.slow
@pytest.mark.parametrize("num_trials", [2, pytest.param(40, marks=pytest.mark.long)])
@pytest.mark.parametrize("is_tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("kernel", HERE, ids=lambda kernel: kernel.name)
def test_it_is_the_plain_one_over_random_lengths_buckets_and_windows(
    kernel, heads, is_tree, num_trials
):
    draws = random.Random(f"{heads}{is_tree}")
    for seed in range(num_trials):
        rows, tokens = draws.randint(1, 3), draws.choice((2, 5, 11) if is_tree else (1, 2, 5, 9))
        span = draws.choice([64, 192, 512])
        length = draws.randint(1, span - tokens)
        dtype = (torch.float32, torch.float16)[seed % 2]
        window = draws.choice([None, None, 7, 40])
        case, shape = of(heads, dtype, window, is_tree), Shape(rows, tokens, length, span)
        assert error(kernel, Trial(case, shape, seed=seed)) < BOUNDS[dtype], (shape, window, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kernel", HERE[:2], ids=lambda kernel: kernel.name)
def test_so_are_torchs_in_other_dtypes(kernel, dtype):
    for is_tree in (False, True):
        trial = Trial(of(HEADS[3], dtype, None, is_tree), Shape(2, 5, 100, 256))
        assert error(kernel, trial) < BOUNDS[dtype]
