"""Options that trade the target's distribution for longer drafts: never on unless named."""

from collections.abc import Mapping
from dataclasses import dataclass

# Rule -> its parameters with their defaults; None: must be given. Each is above 0, 1 at most.
# decode/lossy.py says what they do.
RULES: Mapping[str, Mapping[str, float | None]] = {
    "typical": {"threshold": 0.09, "alpha": 0.3},
    "threshold": {"single": None},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class LossyRule:
    """Which rule accepts drafts in the verifier's place, with every parameter it has."""

    name: str
    parameters: Mapping[str, float]

    def __str__(self) -> str:
        """The name, and the parameters that are not the defaults: `typical`, `typical alpha=0.5`.

        Cells carry this text, so that other parameters are another cell.
        """
        defaults = RULES[self.name]
        given = (f"{n}={v:g}" for n, v in self.parameters.items() if v != defaults[n])
        return " ".join((self.name, *given))
