"""Counts the kernels that a traced program would start on a GPU, one for every operation.

An operation that only reinterprets a tensor (a view) or allocates memory (empty) starts none. All
others count once, though a few of torch's own take several (a sort, a cumulative sum): a lower
bound. Our own kernels state their number.
"""

from collections import Counter
from typing import Any, Self

import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.forward.kernels import layer_steps, sampling, slot_attention

_FREE = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "_unsafe_view"}
_FREE |= {"detach", "alias", "lift_fresh", "device"}
# One kernel each on CUDA; a trace without it sees what a CPU build would compute them by.
_FUSED = (torch.rms_norm, rms_norm, scaled_dot_product_attention)
_OURS = "specbench"
_BY_CALL = {
    "rotary": layer_steps.LAUNCHES,
    "gated": layer_steps.LAUNCHES,
    "slot_attention": slot_attention.LAUNCHES,
    "race": sampling.LAUNCHES["race"],
    "uniform": sampling.LAUNCHES["uniform"],
    "exponential": sampling.LAUNCHES["exponential"],
    "nucleus": sampling.LAUNCHES["nucleus"],
}


class Launches(TorchDispatchMode):
    """Inside, `by_name` counts launches."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name: Counter[str] = Counter()
        self.is_inside_fused = False
        self._fused = _Fused(self)

    @property
    def total(self) -> int:
        return self.by_name.total()

    def __enter__(self) -> Self:
        self._fused.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._fused.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, name = func.name().split("::")
        name = name.split(".")[0]
        if namespace == _OURS:
            self.by_name[name] += _BY_CALL[name]
        elif not (self.is_inside_fused or func.is_view or name in _FREE):
            self.by_name[name] += 1
        return func(*args, **(kwargs or {}))


class _Fused(TorchFunctionMode):
    """Counts a fused kernel as one launch, whatever operations it consists of here."""

    def __init__(self, launches: Launches) -> None:
        super().__init__()
        self._launches = launches

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_fused = func in _FUSED and not self._launches.is_inside_fused
        if is_fused:
            self._launches.by_name[func.__name__] += 1
            self._launches.is_inside_fused = True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            if is_fused:
                self._launches.is_inside_fused = False
