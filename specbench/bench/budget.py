"""A time budget: the time spent by blocks, sessions and targets, and the time left."""

from collections.abc import Callable, Collection, Sequence
from statistics import fmean

from specbench.records import ALL_PROMPTS, BlockPurpose, BlockRecord, ServerRecord
from specbench.runs import StoredRun

EXPLORE_SHARE = 0.8  # the rest is for the confirmation of the winners and their K = 0


class Deadline:
    """A budget in seconds, None for none; earlier sessions of the run spent `spent_s` of it.

    `explore_share`: what the exploration may take.
    """

    def __init__(
        self,
        budget_s: float | None,
        clock: Callable[[], float],
        *,
        spent_s: float = 0.0,
        explore_share: float = EXPLORE_SHARE,
    ) -> None:
        self._budget_s, self._explore_share = budget_s, explore_share
        self._clock = clock
        self._began_s = clock() - spent_s

    def seconds_left(self, phase: BlockPurpose) -> float | None:
        """Seconds until the phase should end; negative when it is late."""
        if self._budget_s is None:
            return None
        share = self._explore_share if phase == "explore" else 1.0
        return self._budget_s * share - self.spent_s

    @property
    def spent_s(self) -> float:
        return self._clock() - self._began_s

    def part(self, share: float) -> "Deadline":
        """A deadline for work that may take this share of the time left."""
        left_s = self.seconds_left("confirm")
        return self if left_s is None or share == 1 else Deadline(left_s * share, self._clock)

    def start_share(self) -> Callable[[float], bool]:
        """A check that work uses at most this share of the time that is now left for exploring.

        Always true without a budget.
        """
        left_s, began_s = self.seconds_left("explore"), self.spent_s
        return lambda share: left_s is None or self.spent_s - began_s < left_s * share

    def is_over(self, phase: BlockPurpose) -> bool:
        left_s = self.seconds_left(phase)
        return left_s is not None and left_s <= 0


def block_seconds(block: BlockRecord) -> dict[str, float]:
    """Seconds of each cell of a block; if requests overlap, of the whole pass."""
    seconds = dict.fromkeys(block.order, 0.0)
    if block.prompt_id == ALL_PROMPTS:
        return seconds | {served.cell_id: served.seconds for served in block.passes}
    for samples in block.samples:
        seconds[samples.served.cell_id] += samples.seconds
    if not block.samples:
        for request in block.requests:
            seconds[request.cell_id] += request.total_s or 0.0
    return seconds


def spent_s(stored: StoredRun, target: str, engine: str | None = None) -> float:
    """Seconds this run has spent on a target so far: on sessions of a serving engine, or on
    requests and traces of this process."""
    if engine is not None:
        at = target, engine
        return sum(_session_s(s) for s in stored.servers if (s.target, s.engine) == at)
    traces = (trace for trace in stored.traces if trace.target == target)
    ids = {key.id for key in stored.run.keys if key.condition.target == target}
    decoded_s, _ = decoded(stored, ids)
    return decoded_s + sum(trace.seconds or 0.0 for trace in traces)


def decoded(stored: StoredRun, ids: Collection[str]) -> tuple[float, int]:
    """The seconds that requests of these cells took in the process of the run, and their tokens."""
    blocks = [block for block in stored.blocks if block.session is None]
    spent = (seconds for block in blocks for seconds in block_seconds(block).items())
    requests = (request for block in blocks for request in block.requests if request.error is None)
    return (
        sum(seconds for cell_id, seconds in spent if cell_id in ids),
        sum(request.num_output_tokens for request in requests if request.cell_id in ids),
    )


def mean_session_s(servers: Sequence[ServerRecord]) -> float | None:
    """Mean seconds of a session, including the server's start; None without a session."""
    took_s = [_session_s(server) for server in servers if server.seconds]
    return fmean(took_s) if took_s else None


def _session_s(server: ServerRecord) -> float:
    return (server.start_s or 0.0) + server.seconds


def duration(seconds: float) -> str:
    """`40s` or `4m05s`, for people."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
