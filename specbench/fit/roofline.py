"""The least that a step and a round can take: what they must read over the memory's bandwidth."""

from dataclasses import dataclass
from typing import NamedTuple

from specbench.files.model import ModelFiles
from specbench.fit.weights import Weights
from specbench.inputs.pairing import Drafter
from specbench.methods import METHODS, RoundShape
from specbench.stats.costs import bytes_per_forward, roofline_s


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
        shape: RoundShape,
    ) -> LowerBound:
        """A few checked tokens read what one does, so a verification costs a step here.

        Source: the memory side of the roofline (Williams et al. 2009).
        """
        step = self._seconds(target.read_bytes, target.kv_bytes_per_token)
        once = 0.0
        method = METHODS.get(drafter.method)
        if draft is not None:
            is_shared = method and method.head and method.head.reads_target_head
            shared = self.head_bytes if is_shared else 0
            once = self._seconds(draft.read_bytes + shared, draft.kv_bytes_per_token)
        elif method and method.num_target_layers:
            settings = method.settings(drafter.parameters)
            share = method.num_target_layers(settings, files.num_layers) / files.num_layers
            own = (target.read_bytes - self.head_bytes) * share + self.head_bytes
            once = self._seconds(round(own), round(target.kv_bytes_per_token * share))
        return LowerBound(step, step + (shape.num_forwards - shape.num_small) * once)

    def _seconds(self, read: int, kv: int) -> float:
        return roofline_s(bytes_per_forward(read, self.rows, self.context, kv), self.bytes_per_s)
