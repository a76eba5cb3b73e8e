"""The files of a draft head: its config, and its tensors or what a header says of them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

from specbench.errors import ModelError
from specbench.files.fields import Fields


class Shaped(Protocol):
    """A tensor as far as fitting goes."""

    @property
    def shape(self) -> tuple[int, ...]: ...


@runtime_checkable
class KnowsShapes(Protocol):
    """Tensors whose shapes are known before they are read."""

    def shape(self, name: str) -> tuple[int, ...]: ...


T_co = TypeVar("T_co", bound=Shaped, covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadFiles(Generic[T_co]):
    """A head's config and tensors, which may be read only when asked for; `source` is what messages
    call it."""

    source: str
    config: Mapping[str, Any]
    tensors: Mapping[str, T_co] = field(repr=False)
    revision: str | None = None  # the hub's commit

    @property
    def fields(self) -> Fields:
        """The config, whose values may be of any type."""
        return Fields(source=self.source, values=self.config)

    def renamed(self, rename: Mapping[str, str]) -> Self:
        """With prefixes replaced, as by `new_name`."""
        return self._mapped(lambda name: new_name(name, rename))

    def without(self, suffix: str) -> Self:
        """Without the tensors whose names end so."""
        return self._mapped(lambda name: None if name.endswith(suffix) else name)

    def under(self, prefix: str) -> Self:
        """Only what begins with the prefix, and without it."""
        return self._mapped(lambda n: n.removeprefix(prefix) if n.startswith(prefix) else None)

    def _mapped(self, new_name: Callable[[str], str | None]) -> Self:
        """Under new names, without reading a tensor; None leaves one out."""
        names: dict[str, str] = {}
        for old in self.tensors:
            new = new_name(old)
            if new in names:
                raise ModelError(f"{self.source} does not fit: {names[new]} and {old} are one")
            if new is not None:
                names[new] = old
        return replace(self, tensors=_Renamed(self.tensors, names))

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape; the tensor is not read where its file's header says it."""
        return shape_of(self.tensors, name)

    def whole_numbers(self, name: str) -> list[int]:
        """The values of a small table; ModelError if they are not whole numbers."""
        table: Any = self.tensors[name]
        try:
            numbers: list[Any] = table.tolist()
        except (TypeError, OSError):
            numbers = [None]
        if not all(isinstance(number, int) for number in numbers):
            raise ModelError(f"{self.source}: {name} has to hold whole numbers")
        return numbers

    def require(self, shapes: Mapping[str, tuple[int, ...]], optional: frozenset[str]) -> None:
        """ModelError lists every tensor that is missing, not known, or of another shape."""
        needed = set(shapes) - optional
        missing = sorted(needed - set(self.tensors))
        surplus = sorted(set(self.tensors) - set(shapes))
        wrong = [
            f"{name} is {found}, not {shape}"
            for name, shape in sorted(shapes.items())
            if name in self.tensors and (found := self.shape(name)) != shape
        ]
        problems = [
            *([f"missing: {_listed(missing)}"] if missing else []),
            *([f"not known: {_listed(surplus)}"] if surplus else []),
            *([_listed(wrong)] if wrong else []),
        ]
        if problems:
            raise ModelError(f"{self.source} does not fit: {'; '.join(problems)}")


def new_name(name: str, rename: Mapping[str, str]) -> str:
    """With its prefix replaced: the first that fits, in the order given."""
    for old, new in rename.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _listed(names: list[str], most: int = 12) -> str:
    """Names with commas; of very many the first ones."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def shape_of(tensors: Mapping[str, Shaped], name: str) -> tuple[int, ...]:
    """As the mapping itself tells, where it can tell without reading the tensor."""
    if isinstance(tensors, KnowsShapes):
        return tensors.shape(name)
    return tuple(tensors[name].shape)


class LazyTensors(Mapping[str, T_co]):
    """Tensors by name, each read when it is asked for; `names`: what it is found by."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def __contains__(self, name: object) -> bool:
        return name in self._names  # Mapping's own would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Renamed(LazyTensors[T_co]):
    """Another mapping's tensors under other names."""

    def __init__(self, tensors: Mapping[str, T_co], names: Mapping[str, str]) -> None:
        super().__init__(names)
        self._tensors = tensors

    def __getitem__(self, name: str) -> T_co:
        return self._tensors[self._names[name]]

    def shape(self, name: str) -> tuple[int, ...]:
        return shape_of(self._tensors, self._names[name])
