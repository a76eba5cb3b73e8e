"""The implementations of attention, and the one that each kind of layer runs on."""

from collections import defaultdict
from collections.abc import Mapping, MutableMapping

from torch.nn.attention import SDPBackend

from specbench.forward.attention.flash_attn import FlashAttn
from specbench.forward.attention.kernel import Kernel
from specbench.forward.attention.masked import Masked
from specbench.forward.attention.plain import Plain
from specbench.forward.attention.split_kv import SplitKv
from specbench.forward.attention.varlen import VarlenFlash

Kernels = MutableMapping[tuple[int | None, bool], Kernel]  # by window, and whether it is a tree

# What runs until there was a contest: whichever of its kernels torch picks.
USUAL = Masked("torch")
# In the order that decides among equals.
KERNELS: tuple[Kernel, ...] = (
    SplitKv(),
    FlashAttn(),
    VarlenFlash(),
    Masked("efficient", SDPBackend.EFFICIENT_ATTENTION),
    Masked("cudnn", SDPBackend.CUDNN_ATTENTION),
    USUAL,
    Plain(),
)
BY_NAME: Mapping[str, Kernel] = {kernel.name: kernel for kernel in KERNELS}


def usual_kernels() -> Kernels:
    """Torch's own everywhere."""
    return defaultdict(lambda: USUAL)
