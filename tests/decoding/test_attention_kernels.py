"""Every implementation of attention that runs without a GPU, equal to plain attention in float32.

Triton's kernels run in its interpreter, which has no product in bfloat16; float16 replaces it.
"""

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specbench.forward.attention import implementations
from specbench.forward.attention.candidates import USUAL, BatchShape, Inputs
from specbench.forward.attention.implementations import (
    AttentionShape,
    FlashAttn,
    Kernel,
    PlainAttention,
    SplitKv,
    VarlenFlash,
)
from specbench.forward.kernels import slot_attention

CPU = torch.device("cpu")
HERE: tuple[Kernel, ...] = (USUAL, PlainAttention(), SplitKv())
# The largest error, relative to the output's root mean square.
BOUNDS = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
HEADS = [(4, 4, 64), (6, 2, 80), (4, 1, 96), (8, 2, 128), (2, 1, 256)]  # query, key/value, size


def shape_of(
    heads: tuple[int, int, int], dtype: torch.dtype, window: int | None, is_tree: bool
) -> AttentionShape:
    query_heads, kv_heads, head_size = heads
    return AttentionShape(
        device=CPU,
        dtype=dtype,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_size=head_size,
        window=window,
        is_tree=is_tree,
    )


def error(kernel: Kernel, inputs: Inputs) -> float:
    expected = inputs.expected()
    got = inputs.run(kernel).float()
    assert got.isfinite().all()
    return float((got - expected).abs().max() / expected.square().mean().sqrt())


@pytest.mark.sampled(one_in=4, every=["kernel", "heads", "is_tree"])
@pytest.mark.slow
@pytest.mark.parametrize("num_trials", [1, pytest.param(40, marks=pytest.mark.long)])
@pytest.mark.parametrize("is_tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("kernel", HERE, ids=lambda kernel: kernel.name)
def test_kernels_equal_plain_attention_over_random_shapes(
    kernel, heads, is_tree, num_trials, monkeypatch
):
    draws = random.Random(f"{heads}{is_tree}")
    for seed in range(num_trials):
        # With few programs each reads many slots, block by block.
        sizes = draws.choice([16, 64]), draws.choice([16, 64]), draws.choice([2, 16, 264])
        monkeypatch.setattr(slot_attention, "program_sizes", lambda *_, of=sizes, **__: of)
        rows, tokens = draws.randint(1, 3), draws.choice((2, 5, 11) if is_tree else (1, 2, 5, 9))
        span = draws.choice([64, 192, 512])
        length = draws.randint(1, span - tokens)
        dtype = (torch.float32, torch.float16)[seed % 2]
        window = draws.choice([None, None, 7, 40])
        case, shape = (
            shape_of(heads, dtype, window, is_tree),
            BatchShape(rows, tokens, length, span),
        )
        assert error(kernel, Inputs(case, shape, seed=seed)) < BOUNDS[dtype], (shape, window, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kernel", HERE[:2], ids=lambda kernel: kernel.name)
def test_torchs_kernels_equal_plain_attention_in_other_dtypes(kernel, dtype):
    for is_tree in (False, True):
        inputs = Inputs(shape_of(HEADS[3], dtype, None, is_tree), BatchShape(2, 5, 100, 256))
        assert error(kernel, inputs) < BOUNDS[dtype]


def documented_flash(
    query_BTHD: Tensor,
    keys_BSND: Tensor,
    values_BSND: Tensor,
    *,
    cache_seqlens: Tensor,
    causal: bool,
    window_size: tuple[int, int],
) -> Tensor:
    """flash-attn's function for decoding: a row's T queries are the last of its tokens."""
    assert causal
    assert cache_seqlens.dtype is torch.int32
    out = torch.empty_like(query_BTHD)
    T, G = query_BTHD.shape[1], query_BTHD.shape[2] // keys_BSND.shape[2]
    for row, used in enumerate(cache_seqlens.tolist()):
        keys, values = (
            part[row, :used].repeat_interleave(G, 1).float() for part in (keys_BSND, values_BSND)
        )
        behind_TS = (used - T + torch.arange(T))[:, None] - torch.arange(used)
        is_seen_TS = behind_TS >= 0
        if window_size[0] >= 0:
            is_seen_TS &= behind_TS <= window_size[0]
        scores = torch.einsum("thd,shd->hts", query_BTHD[row].float(), keys)
        scores = (scores * keys.shape[-1] ** -0.5).masked_fill(~is_seen_TS, -torch.inf)
        out[row] = torch.einsum("hts,shd->thd", scores.softmax(-1), values)
    return out


@pytest.mark.parametrize("window", [None, 7])
def test_flash_attn_gets_lengths_and_windows_as_documented(window, monkeypatch):
    module = type("flash_attn", (), {"flash_attn_with_kvcache": staticmethod(documented_flash)})
    monkeypatch.setattr(implementations, "import_module", lambda _: module)
    inputs = Inputs(shape_of(HEADS[1], torch.float16, window, False), BatchShape(3, 5, 60, 128))
    assert error(FlashAttn(), inputs) < BOUNDS[torch.float16]


def flash_as_torch_calls_it(
    query_NHD: Tensor,
    keys_SND: Tensor,
    values_SND: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    window_size_left: int | None,
    window_size_right: int | None,
    seqused_k: Tensor,
) -> tuple[Tensor]:
    """Each sequence has `seqused_k` keys, the first of them at `cum_seq_k`."""
    assert {part.dtype for part in (cum_seq_q, cum_seq_k, seqused_k)} == {torch.int32}
    assert (max_q, dropout_p, is_causal, return_debug_mask) == (1, 0.0, False, False)
    assert max_k >= int(seqused_k.max())
    assert cum_seq_q.tolist() == list(range(len(query_NHD) + 1))
    assert (window_size_left is None) == (window_size_right is None)
    G, out = query_NHD.shape[1] // keys_SND.shape[1], torch.empty_like(query_NHD)
    for i, used in enumerate(seqused_k.tolist()):
        first = int(cum_seq_k[i])
        oldest = 0 if window_size_left is None else max(used - 1 - window_size_left, 0)
        keys, values = (
            part[first + oldest : first + used].repeat_interleave(G, 1).float()
            for part in (keys_SND, values_SND)
        )
        scores = torch.einsum("hd,shd->hs", query_NHD[i].float(), keys) * keys.shape[-1] ** -0.5
        out[i] = torch.einsum("hs,shd->hd", scores.softmax(-1), values)
    return (out,)


@pytest.mark.parametrize("window", [None, 7])
def test_torchs_flash_gets_the_bounds_of_every_sequence(window, monkeypatch):
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", flash_as_torch_calls_it)
    inputs = Inputs(shape_of(HEADS[3], torch.float16, window, False), BatchShape(3, 5, 60, 128))
    assert error(VarlenFlash(), inputs) < BOUNDS[torch.float16]


def test_an_attention_kernel_gives_its_reason_for_unsupported_inputs():
    half = replace(shape_of(HEADS[3], torch.bfloat16, None, False), device=torch.device("cuda"))
    assert "not installed" in (FlashAttn().unsupported_reason(half) or "")
    assert "no mask" in (FlashAttn().unsupported_reason(replace(half, is_tree=True)) or "")
    assert "not float32" in FlashAttn().unsupported_reason(replace(half, dtype=torch.float32))
    assert "multiples of 8" in FlashAttn().unsupported_reason(replace(half, head_size=100))
