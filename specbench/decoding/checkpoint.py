"""The files of a draft head: a config and tensors, before anyone knows what they mean."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from specbench.errors import ModelError


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """`source` is what messages call it. Tensors are on the host, in the dtype of the files.

    Tensors may be read only when they are asked for: a target's own files hold many more than
    the head in them.
    """

    source: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor] = field(repr=False)
    revision: str | None = None  # the hub's commit

    def renamed(self, rename: Mapping[str, str]) -> "Checkpoint":
        """With prefixes replaced: the first that fits a name, in the order given."""

        def new_name(name: str) -> str:
            for old, new in rename.items():
                if name.startswith(old):
                    return new + name.removeprefix(old)
            return name

        return self._mapped(new_name)

    def under(self, prefix: str) -> "Checkpoint":
        """Only what begins with the prefix, and without it."""
        return self._mapped(lambda n: n.removeprefix(prefix) if n.startswith(prefix) else None)

    def _mapped(self, new_name: Callable[[str], str | None]) -> "Checkpoint":
        """Under new names, without reading a tensor; None leaves one out."""
        names: dict[str, str] = {}
        for old in self.tensors:
            new = new_name(old)
            if new in names:
                raise ModelError(f"{self.source} does not fit: {names[new]} and {old} are one")
            if new is not None:
                names[new] = old
        return replace(self, tensors=_Renamed(self.tensors, names))

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
            *([f"missing: {_listed(missing)}"] if missing else []),
            *([f"not known: {_listed(surplus)}"] if surplus else []),
            *wrong,
        ]
        if problems:
            raise ModelError(f"{self.source} does not fit: {'; '.join(problems)}")


def _listed(names: list[str], most: int = 12) -> str:
    """Names with commas; of very many the first ones."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


class _Renamed(Mapping[str, Tensor]):
    """Another mapping's tensors under other names."""

    def __init__(self, tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> None:
        self._tensors = tensors
        self._names = names

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
