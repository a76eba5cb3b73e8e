"""How many tokens are drafted per round: a fixed K, or one picked round by round."""

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


Length = Fixed | Auto
