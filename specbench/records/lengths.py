"""How many tokens are drafted in a round: a fixed K, one picked round by round, a schedule."""

from dataclasses import dataclass
from typing import ClassVar

# Each length has `most` drafts in a round, a `label` for people and a text that names it as K, a
# piece of cells' ids, and an `order`, in which the plainer one is first.


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same K in every round; 0: no drafts."""

    most: int

    @property
    def label(self) -> str:
        return str(self.most)

    @property
    def named(self) -> str:
        return f"K={self.most}"

    @property
    def id(self) -> str:
        return f"k{self.most}"

    @property
    def order(self) -> tuple[int, int]:
        return 0, self.most


@dataclass(frozen=True, slots=True)
class Auto:
    """K is picked round by round, up to `most`."""

    most: int

    label: ClassVar[str] = "auto"
    named: ClassVar[str] = "auto"
    id: ClassVar[str] = "kauto"

    @property
    def order(self) -> tuple[int, int]:
        return 1, self.most


@dataclass(frozen=True, slots=True)
class Schedule:
    """K follows the batch size: from so many requests on, rising from 1, that K."""

    steps: tuple[tuple[int, int], ...]

    @property
    def most(self) -> int:
        return max(k for _, k in self.steps)

    @property
    def label(self) -> str:
        """Such as `8, 4 from 5`."""
        return ", ".join(f"{k} from {n}" if n > 1 else str(k) for n, k in self.steps)

    @property
    def named(self) -> str:
        return f"K={self.label}"

    @property
    def id(self) -> str:
        return "k" + ",".join(f"{k}@{n}" for n, k in self.steps)

    @property
    def order(self) -> tuple[int, int]:
        return 2, self.most


Length = Fixed | Auto | Schedule


def length_of(k: int, adaptive: bool, schedule: tuple[tuple[int, int], ...] | None) -> Length:
    """From what files have of it; ValueError where that does not fit together."""
    length = Schedule(schedule) if schedule is not None else Auto(k) if adaptive else Fixed(k)
    if adaptive is not isinstance(length, Auto) or length.most != k:
        raise ValueError(f"{length.named} is not K={k}")
    return length
