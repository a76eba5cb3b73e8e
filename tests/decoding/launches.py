"""Counts the kernels that a traced program would start on a GPU, one for every operation.

An operation that only looks at a tensor otherwise (a view) or makes room (empty) starts none. All
others count once, though a few of torch's own take several (a sort, a cumulative sum): a lower
bound. Kernels of ours say how many they are.
"""

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_FREE = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "_unsafe_view"}
_FREE |= {"detach", "alias", "lift_fresh"}
OURS = "specbench"


class Launches(TorchDispatchMode):
    """Inside, `by_name` counts launches; `ours` has those of one call of our operations."""

    def __init__(self, ours: dict[str, int] | None = None) -> None:
        super().__init__()
        self.by_name: Counter[str] = Counter()
        self._ours = ours or {}

    @property
    def total(self) -> int:
        return self.by_name.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, name = func.name().split("::")
        name = name.split(".")[0]
        if namespace == OURS:
            self.by_name[name] += self._ours[name]
        elif not func.is_view and name not in _FREE:
            self.by_name[name] += 1
        return func(*args, **(kwargs or {}))
