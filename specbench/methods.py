"""The drafting methods that pairings.yaml may name; their code lives in drafters/.

Some arrive later than others: a name is accepted here before its file is, and running it then
says that it is not here yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from specbench.shipped import PACKAGE


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """What a pairing of this method must and must not say."""

    model: Literal["required", "optional", "refused"]
    parameters: Mapping[str, range] | None = None  # whole numbers; None: the drafter checks them


METHODS: Mapping[str, Method] = {
    "draft_model": Method(model="required", parameters={}),
    "ngram": Method(
        model="refused", parameters={"max_ngram": range(1, 33), "min_ngram": range(1, 33)}
    ),
    "suffix": Method(model="refused"),
    "previous_turn": Method(model="refused"),
    "lookahead": Method(model="refused"),
    "token_recycling": Method(model="refused"),
    "medusa": Method(model="required"),
    "eagle": Method(model="required"),
    "eagle3": Method(model="required"),
    "mtp": Method(model="optional"),  # the heads are often part of the target's checkpoint
    "self_speculation": Method(model="refused"),
    "dflash": Method(model="required"),
}


@cache
def known_methods() -> Mapping[str, Method]:
    """METHODS and every other file `drafters/<name>.py`: a new drafter needs no edit here."""
    added = {
        path.stem: Method(model="optional")
        for path in sorted(PACKAGE.glob("drafters/*.py"))
        if f'@drafter("{path.stem}"' in path.read_text(encoding="utf-8")
    }
    return {**added, **METHODS}
