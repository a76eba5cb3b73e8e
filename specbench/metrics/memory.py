"""Memory and energy of a cell: of target and drafter, or at K = 0 only of the target. For a server
the memory is the capacity of its KV cache.
"""

from collections.abc import Iterable

from specbench.metrics.cell import CellData
from specbench.metrics.registry import metric
from specbench.records import ServerRecord


@metric(unit="bytes", better="lower")
def weights_bytes(cell: CellData) -> int | None:
    """Bytes of all parameters loaded; only the target's at K = 0."""
    return cell.memory.weights_bytes if cell.memory else None


@metric(unit="bytes/token", better="lower")
def kv_bytes_per_token(cell: CellData) -> int | None:
    """Bytes of KV cache per token of context; only the target's at K = 0."""
    return cell.memory.kv_bytes_per_token if cell.memory else None


@metric(unit="bytes", better="lower")
def state_bytes_per_row(cell: CellData) -> int | None:
    """Bytes of recurrent state per request, one copy per token of a round, so that drafts can be
    rolled back. Absent without recurrent layers.
    """
    return (cell.memory.state_bytes_per_row or None) if cell.memory else None


@metric(unit="bytes", better="lower")
def peak_allocated_bytes(cell: CellData) -> int | None:
    """Peak bytes of torch's CUDA allocator in live tensors."""
    return cell.memory.peak_allocated_bytes if cell.memory else None


@metric(unit="bytes", better="lower")
def peak_reserved_bytes(cell: CellData) -> int | None:
    """Peak bytes reserved by torch's CUDA allocator, fragmentation included."""
    return cell.memory.peak_reserved_bytes if cell.memory else None


@metric(unit="bytes", better="lower")
def process_peak_bytes(cell: CellData) -> int | None:
    """Peak bytes of this process: NVML's on a GPU, resident memory on a CPU."""
    return cell.memory.process_peak_bytes if cell.memory else None


@metric(unit="bytes", better="lower")
def device_peak_bytes(cell: CellData) -> int | None:
    """Peak bytes in use on the device by all processes: NVML's on a GPU, host memory on a CPU."""
    return cell.memory.device_peak_bytes if cell.memory else None


@metric(unit="bytes", better="lower")
def speculation_cost_bytes(cell: CellData) -> int | None:
    """Peak of torch's live tensors with the drafter - without it; on a CPU computed: weights, and
    the longest request's KV cache and states.
    """
    pair, target = cell.memory_pair, cell.memory_target
    if cell.k == 0 or pair is None or target is None:
        return None
    if pair.peak_allocated_bytes is not None and target.peak_allocated_bytes is not None:
        return pair.peak_allocated_bytes - target.peak_allocated_bytes
    # The peaks of a process vary by more than a small drafter takes.
    kv_bytes_per_token = pair.kv_bytes_per_token - target.kv_bytes_per_token
    state_bytes = pair.state_bytes_per_row - target.state_bytes_per_row
    weights = pair.weights_bytes - target.weights_bytes
    return weights + kv_bytes_per_token * _longest_request(cell) + state_bytes


@metric(unit="tokens", better="lower")
def speculation_cost_tokens(cell: CellData) -> float | None:
    """speculation_cost_bytes / the target's kv_bytes_per_token: the context that it costs."""
    cost = speculation_cost_bytes(cell)
    if cost is None or cell.memory_target is None or not cell.memory_target.kv_bytes_per_token:
        return None
    return cost / cell.memory_target.kv_bytes_per_token


@metric(unit="J/token", better="lower", label="J/token")
def joules_per_token(cell: CellData) -> float | None:
    """Energy per token: NVML total-energy difference over the requests / their output tokens."""
    metered = [(r.energy_j, r.num_output_tokens) for r in cell.finished if r.energy_j is not None]
    num_tokens = sum(num for _, num in metered)
    return sum(joules for joules, _ in metered) / num_tokens if num_tokens else None


@metric(unit="tokens", better="higher")
def kv_capacity_tokens(cell: CellData) -> int | None:
    """Capacity of the server's KV cache in tokens, the least of its sessions."""
    return least_kv_tokens(cell.servers)


@metric(unit="tokens", better="lower")
def kv_capacity_lost_tokens(cell: CellData) -> int | None:
    """kv_capacity_tokens without speculation - with it: the context that it costs."""
    base, speculative = least_kv_tokens(cell.baseline_servers), kv_capacity_tokens(cell)
    return None if base is None or speculative is None or cell.k == 0 else base - speculative


def least_kv_tokens(servers: Iterable[ServerRecord]) -> int | None:
    """The smallest KV cache of these server sessions, in tokens; None if no session reports one."""
    return min((s.kv_tokens for s in servers if s.kv_tokens is not None), default=None)


@metric(unit="bytes", better="lower", label="KV cache")
def kv_bytes(cell: CellData) -> int | None:
    """KV cache of target and drafter: the largest allocation of a pass, or for one request
    kv_bytes_per_token * tokens of the longest one.
    """
    if cell.key.condition.overlaps:
        allocated = (served.record.kv_bytes for served in cell.passes)
        return max((nbytes for nbytes in allocated if nbytes is not None), default=None)
    if cell.memory is None or not cell.finished:
        return None
    return cell.memory.kv_bytes_per_token * _longest_request(cell)


def _longest_request(cell: CellData) -> int:
    """Tokens of prompt and output of the longest finished request; 0 without one."""
    return max((r.num_prompt_tokens + r.num_output_tokens for r in cell.finished), default=0)
