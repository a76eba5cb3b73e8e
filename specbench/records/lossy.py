"""Lossy acceptance rules: longer accepted drafts, but another distribution. Off by default."""

from collections.abc import Mapping
from dataclasses import dataclass

# Rule -> its parameters, 0 < value <= 1, with their defaults; None: required. decode/lossy.py
# implements them.
RULES: Mapping[str, Mapping[str, float | None]] = {
    "typical": {"threshold": 0.09, "alpha": 0.3},
    "threshold": {"single": None},
}

GREEDY = "greedy: a draft is accepted if it is the target's argmax"
MATCHED = "a draft is accepted if the target's own sample equals it"
SIMULATED = "simulated: draft tokens are accepted at given rates, so the text is not the target's"
REJECTION = "min(1, p/q) with a residual (Leviathan et al. 2023, Alg. 1)"


@dataclass(frozen=True, kw_only=True, slots=True)
class LossyRule:
    """The rule that accepts drafts instead of the lossless verifier, with all its parameters."""

    name: str
    parameters: Mapping[str, float]

    def __str__(self) -> str:
        """The name, and the parameters that are not the defaults: `typical`, `typical alpha=0.5`.

        It is part of a cell's key, so other parameters make another cell.
        """
        defaults = RULES[self.name]
        given = (f"{n}={v:g}" for n, v in self.parameters.items() if v != defaults[n])
        return " ".join((self.name, *given))


def acceptance_rule(rule: LossyRule | str | None, temperature: float, *, draws: bool) -> str:
    """The rule that accepts drafts, in words; `draws`: they are sampled from a distribution q."""
    if rule is not None:
        return f"the lossy rule {rule}: the text is not the target's"
    if temperature == 0:
        return GREEDY
    return REJECTION if draws else MATCHED
