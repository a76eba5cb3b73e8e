"""What was spent, on a block and on a target."""

from collections.abc import Sequence
from statistics import fmean

from specbench.bench.plan import TargetPlan
from specbench.records import ALL_PROMPTS, BlockRecord, ServerRecord
from specbench.runs import StoredRun


def block_seconds(block: BlockRecord) -> dict[str, float]:
    """What each cell of a block took; of requests that overlap, their pass."""
    seconds = dict.fromkeys(block.order, 0.0)
    if block.prompt_id == ALL_PROMPTS:
        return seconds | {one.cell_id: one.seconds for one in block.passes}
    for samples in block.samples:
        seconds[samples.served.cell_id] += samples.seconds
    if not block.samples:
        for request in block.requests:
            seconds[request.cell_id] += request.total_s or 0.0
    return seconds


def spent_s(stored: StoredRun, plan: TargetPlan) -> float:
    """Seconds this run has spent on a target so far: its requests, traces and starts of servers."""
    ids = {key.id for key in stored.run.keys if key.condition.target == plan.target.name}
    served_s = sum(
        _session_s(server) for server in stored.servers if server.target == plan.target.name
    )
    spent = (
        seconds
        for block in stored.blocks
        if block.session is None
        for seconds in block_seconds(block).items()
    )
    traces = (trace for trace in stored.traces if trace.target == plan.target.name)
    decoded_s = sum(seconds for cell_id, seconds in spent if cell_id in ids)
    return decoded_s + served_s + sum(trace.seconds or 0.0 for trace in traces)


def mean_session_s(servers: Sequence[ServerRecord]) -> float | None:
    """Mean seconds of a session, start of its server included; None where none was held."""
    took_s = [_session_s(server) for server in servers if server.seconds]
    return fmean(took_s) if took_s else None


def _session_s(server: ServerRecord) -> float:
    return (server.start_s or 0.0) + server.seconds


def duration(seconds: float) -> str:
    """`40s` or `4m05s`, for people."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
