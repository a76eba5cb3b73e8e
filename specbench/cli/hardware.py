"""Which GPU or machine a memory plan is for."""

from typing import TYPE_CHECKING, NamedTuple

from specbench.errors import UsageError

if TYPE_CHECKING:
    from specbench.fit.memory_plan import Place

GIB = 2**30


class Machine(NamedTuple):
    """`is_here` says that it is the one we run on."""

    name: str
    place: "Place"
    is_here: bool
    notes: tuple[str, ...]


def find_machine(
    place: "Place",
    device: str,
    *,
    gpu: str | None,
    gpu_memory: str | None,
    gpu_bandwidth: str | None,
) -> Machine:
    """The GPU that is named, else this machine's own, else its host memory; UsageError.

    Of a GPU a share is left to CUDA itself (RESERVED_BYTES).
    """
    from dataclasses import replace

    from specbench.fit.gpus import RESERVED_BYTES, find_gpu, parse_bandwidth, parse_bytes

    if gpu is None and gpu_memory is None and gpu_bandwidth is not None:
        raise UsageError("--gpu-bandwidth needs --gpu-memory, or the name of a --gpu")
    memory = parse_bytes(gpu_memory) if gpu_memory else None
    speed = parse_bandwidth(gpu_bandwidth) if gpu_bandwidth else None
    if gpu is None and memory is None:
        return _this_machine(place, device)
    known = find_gpu(gpu) if gpu is not None else None
    total = memory or (known.memory_bytes if known else 0)
    speed = speed or (known.bytes_per_s if known else None)
    if total <= RESERVED_BYTES:
        raise UsageError(
            f"--gpu-memory {gpu_memory}: CUDA itself takes {RESERVED_BYTES / GIB:g} GiB"
        )
    source = f"{known.source} of {known.name}" if known and not memory else "as given"
    notes = (_reserved(total, source),)
    placed = replace(place, device="cuda", memory_bytes=total - RESERVED_BYTES, bytes_per_s=speed)
    return Machine(known.name if known else "GPU", placed, False, notes)


def _this_machine(place: "Place", device: str) -> Machine:
    from dataclasses import replace

    from specbench.fit.gpus import RESERVED_BYTES, UnknownGpu, find_gpu
    from specbench.probes.host import host_available_bytes
    from specbench.probes.nvml import open_probe

    if device != "cpu":
        facts = open_probe("cuda:0" if device in ("auto", "cuda") else device).gpu_facts()
        if facts.memory_bytes:
            name = facts.name or "GPU"
            try:
                speed = find_gpu(name).bytes_per_s
            except UnknownGpu:
                speed = None
            total = facts.memory_bytes
            placed = replace(
                place, device="cuda", memory_bytes=total - RESERVED_BYTES, bytes_per_s=speed
            )
            return Machine(name, placed, True, (_reserved(total, "NVML"),))
    placed = replace(place, device="cpu", memory_bytes=host_available_bytes())
    note = "headroom is against host memory free now; specbench itself takes about 0.5 GiB of that"
    return Machine("CPU", placed, True, (note,))


def _reserved(total: int, source: str) -> str:
    from specbench.fit.gpus import RESERVED_BYTES

    return (
        f"{total / GIB:.4g} GiB ({source}), of which {RESERVED_BYTES / GIB:g} GiB are reserved "
        "for CUDA"
    )
