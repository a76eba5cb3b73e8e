"""The host's freed memory, which its allocator would keep for later."""

import ctypes
import sys


def give_back_host_memory() -> None:
    """Return it to the system where the C library can (glibc); elsewhere nothing happens."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
