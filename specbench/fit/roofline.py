"""The least that a step and a round can take: what they must read over the memory's bandwidth."""

from dataclasses import dataclass
from typing import NamedTuple

from specbench.fit.drafting import Drafting, settings
from specbench.fit.weights import Weights
from specbench.inputs.pairing import Drafter
from specbench.model_files.model import ModelFiles
from specbench.stats.costs import bytes_per_forward, roofline_s

_THROUGH_TARGETS_HEAD = ("eagle", "mtp", "dflash")


class LowerBound(NamedTuple):
    """Least seconds of a baseline step and of a round at K."""

    step_s: float
    round_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How much is read at once, and how fast; `head_bytes` are those of the target's head."""

    rows: int
    context: int  # tokens of each row
    bytes_per_s: float
    head_bytes: int

    def lower_bound(
        self,
        files: ModelFiles,
        target: Weights,
        draft: Weights | None,
        drafter: Drafter,
        shape: Drafting,
    ) -> LowerBound:
        """A few checked tokens read what one does, so a verification costs a step here.

        Source: the memory side of the roofline (Williams et al. 2009).
        """
        step = self._seconds(target.read_bytes, target.kv_bytes_per_token)
        once = 0.0
        if draft is not None:
            shared = self.head_bytes if drafter.method in _THROUGH_TARGETS_HEAD else 0
            once = self._seconds(draft.read_bytes + shared, draft.kv_bytes_per_token)
        elif drafter.method == "self_speculation":
            asked = settings(drafter).get("num_layers")
            layers = asked if isinstance(asked, int) and asked else max(files.num_layers // 4, 1)
            share = layers / files.num_layers
            own = (target.read_bytes - self.head_bytes) * share + self.head_bytes
            once = self._seconds(round(own), round(target.kv_bytes_per_token * share))
        # What a block sees of the text before it goes through a small part of the head alone.
        passes = 1 if drafter.method == "dflash" else shape.own_forwards
        return LowerBound(step, step + passes * once)

    def _seconds(self, read: int, kv: int) -> float:
        return roofline_s(bytes_per_forward(read, self.rows, self.context, kv), self.bytes_per_s)
