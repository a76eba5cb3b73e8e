"""The torch attention kernels that the decoder uses, chosen by us and recorded.

Flash attention takes no mask and serves prefills; the others take the additive mask that
ragged rows need.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

# The best first. cuDNN builds a plan for each shape, so an eager round pays for one every time its
# span grows; the efficient kernel takes any. Heads are packed (attention.py), so none is refused
# for unequal head counts.
PREFERRED = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
]


def pinned_attention(device: torch.device) -> AbstractContextManager[object]:
    """Inside, attention on a CUDA device takes the first of our backends that can serve it."""
    if device.type != "cuda":
        return nullcontext()
    return sdpa_kernel(PREFERRED, set_priority=True)


def attention_backend(
    device: torch.device,
    dtype: torch.dtype,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    num_tokens: int = 1,
    span: int = 256,
) -> str:
    """The backend of one row's forward over `num_tokens` tokens, as torch names it.

    Torch is asked with tensors of the decoder's shapes; nothing is computed. Layers with
    soft-capping or sinks do not come here: attention.py computes them itself.
    """

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device=device)

    num_queries = num_heads // num_kv_heads * num_tokens
    query = empty(1, num_kv_heads, num_queries, head_dim)
    key, value = (empty(1, span, num_kv_heads, head_dim).transpose(1, 2) for _ in range(2))
    with pinned_attention(device):
        chosen = torch._fused_sdp_choice(query, key, value, empty(1, 1, num_queries, span))
    return SDPBackend(chosen).name.lower()
