"""Compiles rounds instead of capturing them: no Python between the operations on a CPU.

It stands where graphs do (graphs.py), so buckets, fallback and read-back are theirs. On a GPU
the compiled round is what gets captured.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from specbench.execution.cuda_graphs import NUM_WARM_UPS, Captured, Graphs

T = TypeVar("T")

_MAX_PROGRAMS = 256  # of one function; the compiler's own limit of 8 is against accidents


class CompiledRounds:
    """Graphs made by torch's compiler; with `inner`, compiled functions are captured by it.

    The compiler's own graphs are not used. `compile_s` is the time spent on compiling.
    """

    def __init__(self, inner: Graphs | None = None, *, backend: str = "inductor") -> None:
        self._inner = inner
        self._backend = backend
        self.compile_s: float | None = 0.0

    @property
    def reserved_bytes(self) -> int:
        return 0 if self._inner is None else self._inner.reserved_bytes

    @property
    def num_captures(self) -> int:
        return 0 if self._inner is None else self._inner.num_captures

    @property
    def capture_s(self) -> float:
        return 0.0 if self._inner is None else self._inner.capture_s

    def capture(self, run: Callable[[], T], *, num_warm_ups: int = NUM_WARM_UPS) -> Captured[T]:
        """Compile a function for the shapes it meets, and run it.

        Raises RuntimeError where the compiler cannot.
        """
        options: dict[str, str | int | bool | Callable[..., Any]] = {}
        if self._backend == "inductor" and self._inner is None:
            # Nothing hides what a call from Python costs, as a graph does.
            options["cpp_wrapper"] = True
        program = torch.compile(
            run, fullgraph=True, dynamic=False, backend=self._backend, options=options or None
        )
        began = time.perf_counter()
        try:
            with torch._dynamo.config.patch(recompile_limit=_MAX_PROGRAMS):
                output = program()
        except RuntimeError as error:
            said = " ".join(str(error).splitlines()[:2])  # some begin with who says it
            raise RuntimeError(f"torch.compile: {said}") from error
        self.compile_s = (self.compile_s or 0.0) + time.perf_counter() - began
        if self._inner is not None:
            return self._inner.capture(program, num_warm_ups=num_warm_ups)
        return Captured(output=output, replay=lambda: _write(output, program()))


def _write(held: Any, new: Any) -> None:
    """Put what a function returned where its first answer lies."""
    if isinstance(held, Tensor):
        held.copy_(new)
    elif held is not None:
        for one, other in zip(held, new, strict=True):
            _write(one, other)
