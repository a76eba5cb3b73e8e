"""One thing that was looked at when a drafter was held against a target."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["refused", "warning", "ok"]
NO_WEIGHTS = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """`target` and `draft` are the two values as text; None where one of them has none."""

    field: str
    level: Level
    target: str | None = None
    draft: str | None = None
    reason: str = ""

    @property
    def lacks_weights(self) -> bool:
        """Whether there is only a config, which is enough to plan."""
        return self.field == "weights" and NO_WEIGHTS in (self.target, self.draft)

    @property
    def keeps_from_loading(self) -> bool:
        return self.level == "refused" or self.lacks_weights

    @property
    def text(self) -> str:
        """The reason with both values."""
        values = [f"target {self.target}"] if self.target is not None else []
        values += [f"draft {self.draft}"] if self.draft is not None else []
        shown = f" ({', '.join(values)})" if values else ""
        return f"{self.field}: {self.reason}{shown}"


def finding(
    field: str, level: Level, target: object = None, draft: object = None, reason: str = ""
) -> Finding:
    """One whose values are shown as they print."""
    shown = (None if value is None else str(value) for value in (target, draft))
    of_target, of_draft = shown
    return Finding(field=field, level=level, target=of_target, draft=of_draft, reason=reason)
