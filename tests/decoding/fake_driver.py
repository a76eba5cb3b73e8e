"""CUDA's graphs and torch's allocator, as far as a capture uses them, with a log of the calls.

A pool that was never ended makes `empty_cache` raise, as torch 2.11's allocator does, and no pool
can be recorded to twice.
"""

from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
import torch

GRAPH_BYTES = 100  # the allocator's, for the tensors of a graph
OWN_BYTES = 7  # outside the allocator, for the graph's executable


class FakeDriver:
    """Replaces torch.cuda. `fails` is the error that the next capture raises at its end."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.fails: str | None = None
        self.reserved, self.free = 1000, 10 << 30
        self.underway: list[object] = []
        self.uses: Counter[object] = Counter()
        self._num_pools = 0
        driver = self

        class Graph:
            def __init__(self) -> None:
                self._pool: object = None
                self._has_ended = False

            def capture_begin(self, pool: object, capture_error_mode: str) -> None:
                assert capture_error_mode == "thread_local"
                driver.log.append(f"begin {pool}")
                assert pool not in driver.underway, "already recording to the pool"
                driver.underway.append(pool)
                driver.uses[pool] += 1
                self._pool = pool

            def capture_end(self) -> None:
                driver.log.append("capture_end")
                if driver.fails:
                    message, driver.fails = driver.fails, None
                    raise RuntimeError(message)
                driver.underway.remove(self._pool)
                self._has_ended = True
                driver.reserved += GRAPH_BYTES
                driver.free -= GRAPH_BYTES + OWN_BYTES

            def pool(self) -> object:
                if not self._has_ended:
                    raise RuntimeError("called pool() without a preceding successful capture")
                return self._pool

            def reset(self) -> None:
                driver.log.append("reset")
                driver.uses[self._pool] -= 1

            def replay(self) -> None:
                driver.log.append("replay")

        class Stream:
            def wait_stream(self, other: object) -> None: ...

        def end(device: int, pool: object) -> None:
            self.log.append(f"end {pool} on {device}")
            if pool not in self.underway:
                raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
            self.underway.remove(pool)

        def release(device: int, pool: object) -> None:
            self.log.append(f"release {pool} on {device}")
            self.uses[pool] -= 1
            assert self.uses[pool] >= 0, "released more often than taken"

        fakes: dict[str, Any] = {
            "CUDAGraph": Graph,
            "Stream": Stream,
            "current_stream": Stream,
            "stream": lambda _: nullcontext(),
            "synchronize": lambda: None,
            "empty_cache": self._empty_cache,
            "memory_reserved": lambda: self.reserved,
            "mem_get_info": lambda: (self.free, 80 << 30),
            "graph_pool_handle": self._new_pool,
            "current_device": lambda: 0,
        }
        for name, fake in fakes.items():
            patch.setattr(torch.cuda, name, fake)
        patch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)
        patch.setattr(torch._C, "_cuda_releasePool", release, raising=False)

    def _empty_cache(self) -> None:
        self.log.append("empty_cache")
        if self.underway:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    def _new_pool(self) -> str:
        self._num_pools += 1
        return f"pool{self._num_pools}"
