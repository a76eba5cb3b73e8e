"""The axes of measurement: what each thing that tells cells apart is called everywhere.

An axis added later is a field of `Condition` or `Draft` (keys.py) and a row of AXES: ids,
files, columns, `check --allow-different` and the words for people follow from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

REQUIRED = object()  # the default of an axis that every file has


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing that tells cells apart: an entry of a flat key."""

    path: str  # where a key has it
    meaning: str  # of its column
    unit: str = ""
    in_id: str = ""  # its piece of ids, from a `key`; left out at the default
    words: str = ""  # where it tells conditions apart, from `at`; "": the value
    usual: str = ""  # the same at the default
    # Options of --allow-different under which it may differ; each is about the first axis it has.
    allowed_by: tuple[str, ...] = ()
    default: Any = REQUIRED  # what a file without the entry means

    def of(self, key: Any) -> Any:
        return attrgetter(self.path)(key)

    def piece(self, key: Any) -> str | None:
        """Its piece of the id of a key."""
        if not self.in_id or self.of(key) == self.default:
            return None
        return self.in_id.format(key=key)

    def told(self, at: Any) -> str:
        """What it is under a condition, in words."""
        value = getattr(at, self.path.removeprefix("condition."))
        words = self.usual if value == self.default else self.words.format(at=at)
        return words or str(value)


# In the order of files and of columns.
AXES: Mapping[str, Axis] = {
    "pairing": Axis("pairing", "`target/drafter`; of K = 0 the bare target", in_id="{key.pairing}"),
    "target": Axis("condition.target", "name of the target", allowed_by=("target",)),
    "drafter": Axis(
        "draft.drafter", "name of the drafter; `none` at K = 0", allowed_by=("drafter",)
    ),
    "workload": Axis(
        "condition.workload", "name of the workload", in_id="{key.condition.workload}"
    ),
    "engine": Axis(
        "condition.engine",
        "what decoded, such as `builtin`",
        in_id="{key.condition.engine}",
        allowed_by=("engine",),
    ),
    "method": Axis(
        "draft.method",
        "how tokens are drafted, such as `draft_model`; `none` at K = 0",
        in_id="{key.draft.method}",
        allowed_by=("drafter", "engine"),
    ),
    "num_speculative_tokens": Axis(
        "draft.k",
        "K: the most tokens drafted per round",
        unit="tokens/round",
        in_id="{key.draft.length.id}",
        allowed_by=("K",),
    ),
    "concurrency": Axis(
        "condition.concurrency",
        "most requests decoded at the same time",
        unit="requests",
        in_id="c{key.condition.concurrency}",
        words="{at.requests}",
        allowed_by=("concurrency",),
    ),
    "temperature": Axis(
        "condition.temperature",
        "of sampling; 0 is greedy",
        in_id="t{key.condition.temperature:g}",
        words="temperature {at.temperature:g}",
        allowed_by=("temperature",),
    ),
    "dtype": Axis(
        "condition.dtype",
        "of the target's computation",
        in_id="{key.condition.dtype}",
        allowed_by=("dtype",),
    ),
    "adaptive": Axis(
        "draft.is_adaptive",
        "K was picked round by round, up to `num_speculative_tokens`",
        allowed_by=("K",),
        default=False,
    ),
    "context": Axis(
        "condition.context",
        "length that prompts were lengthened to; absent: unchanged",
        unit="tokens",
        in_id="x{key.condition.context}",
        words="context {at.context:,}",
        usual="prompts unchanged",
        allowed_by=("context",),
        default=None,
    ),
    "request_rate": Axis(
        "condition.request_rate",
        "arrivals; absent: closed loop, the next request starts when one ends",
        unit="requests/s",
        in_id="r{key.condition.request_rate:g}",
        words="{at.request_rate:g} requests per second",
        usual="closed loop",
        allowed_by=("request-rate",),
        default=None,
    ),
    "num_samples": Axis(
        "condition.num_samples",
        "answers to each prompt, of which the likeliest is picked",
        unit="samples",
        in_id="n{key.condition.num_samples}",
        words="best of {at.num_samples}",
        usual="one sample",
        allowed_by=("samples",),
        default=1,
    ),
    "lossy": Axis(
        "draft.lossy",
        "the rule that changes the target's distribution; absent: lossless",
        in_id="lossy {key.draft.lossy}",
        allowed_by=("lossy",),
        default=None,
    ),
}
