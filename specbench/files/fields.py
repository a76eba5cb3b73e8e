"""Reads the fields of a config that nobody has checked: what is of another type is told by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NoReturn

from specbench.errors import ModelError

MOST_LAYERS = 1000  # what no head has; a config that says more is not followed


@dataclass(frozen=True, kw_only=True, slots=True)
class Fields:
    """A mapping of a config.json. `source` is what messages call the folder.

    Each reader returns None for a field that is not there or null, and raises ModelError with
    source, field and value for one of another type.
    """

    source: str
    values: Mapping[str, Any] = field(repr=False)
    path: str = ""  # of a mapping within the config, with a dot at its end

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def whole(self, name: str, least: int = 0, most: int | None = None) -> int | None:
        """A whole number of `least` or more."""
        value = self.values.get(name)
        if value is None:
            return None
        if not _is_whole(value) or value < least or (most is not None and value > most):
            upper = "or more" if most is None else f"to {most}"
            self.fail(name, f"a whole number, {least} {upper}")
        return int(value)

    def must(self, name: str, least: int = 0, most: int | None = None) -> int:
        """A whole number that has to be there."""
        value = self.whole(name, least, most)
        if value is None:
            self.lacks(name)
        return value

    def number(self, name: str) -> float | None:
        """A finite number."""
        value = self.values.get(name)
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or abs(value) > 1e300 or not isfinite(value):
            self.fail(name, "a number")
        return float(value)

    def flag(self, name: str) -> bool | None:
        value = self.values.get(name)
        if not isinstance(value, bool | None):
            self.fail(name, "true or false")
        return value

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        if not isinstance(value, str | None):
            self.fail(name, "a text")
        return value

    def ids(self, name: str) -> tuple[int, ...] | None:
        """A list of whole numbers, of which none is below 0; it may be empty."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(_is_whole(i) and i >= 0 for i in value):
            self.fail(name, "a list of whole numbers, 0 or more")
        return tuple(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty where there is none."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(isinstance(t, str) for t in value):
            self.fail(name, "a list of texts")
        return tuple(value)

    def section(self, name: str) -> "Fields | None":
        """A mapping within this one."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.fail(name, "a mapping")
        return Fields(source=self.source, values=value, path=f"{self.path}{name}.")

    def lacks(self, *names: str) -> NoReturn:
        raise ModelError(f"{self.source}: its config lacks {', '.join(names)}")

    def fail(self, name: str, wanted: str) -> NoReturn:
        shown = repr(self.values.get(name))
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        raise ModelError(
            f"{self.source}: config.json: {self.path}{name} is {shown}; it has to be {wanted}"
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
