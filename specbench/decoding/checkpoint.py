"""The files of a draft head: a config and tensors, before anyone knows what they mean."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from specbench.errors import ModelError


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """`source` is what messages call it. Tensors are on the host, in the dtype of the files."""

    source: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor] = field(repr=False)

    def renamed(self, rename: Mapping[str, str]) -> "Checkpoint":
        """With prefixes replaced: the first that fits a name, in the order given."""

        def new_name(name: str) -> str:
            for old, new in rename.items():
                if name.startswith(old):
                    return new + name.removeprefix(old)
            return name

        tensors = {new_name(name): tensor for name, tensor in self.tensors.items()}
        return Checkpoint(source=self.source, config=self.config, tensors=tensors)

    def require(self, shapes: Mapping[str, tuple[int, ...]], optional: frozenset[str]) -> None:
        """ModelError lists every tensor that is missing, not known, or of another shape."""
        needed = set(shapes) - optional
        missing = sorted(needed - set(self.tensors))
        surplus = sorted(set(self.tensors) - set(shapes))
        wrong = [
            f"{name} is {tuple(self.tensors[name].shape)}, not {shape}"
            for name, shape in sorted(shapes.items())
            if name in self.tensors and tuple(self.tensors[name].shape) != shape
        ]
        problems = [
            *([f"missing: {', '.join(missing)}"] if missing else []),
            *([f"not known: {', '.join(surplus)}"] if surplus else []),
            *wrong,
        ]
        if problems:
            raise ModelError(f"{self.source} does not fit: {'; '.join(problems)}")
