"""The GPU or machine of a memory plan."""

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from specbench.errors import UsageError
from specbench.fit.gpus import (
    GIB,
    RESERVED_BYTES,
    UnknownGpu,
    find_gpu,
    parse_bandwidth,
    parse_bytes,
)

if TYPE_CHECKING:
    from specbench.fit.memory_plan import DeploymentSpec


class MachineSummary(NamedTuple):
    """A machine, its free memory, and notes on these figures."""

    name: str
    setup: "DeploymentSpec"
    notes: tuple[str, ...]


def find_machine(
    setup: "DeploymentSpec",
    device: str,
    *,
    gpu: str | None,
    gpu_memory: str | None,
    gpu_bandwidth: str | None,
) -> MachineSummary:
    """The named GPU without the memory that CUDA reserves, else this machine's GPU or CPU.

    UsageError for a GPU that is unknown or has too little memory.
    """
    if gpu is None and gpu_memory is None and gpu_bandwidth is not None:
        raise UsageError("--gpu-bandwidth needs --gpu-memory, or the name of a --gpu")
    memory = parse_bytes(gpu_memory) if gpu_memory else None
    speed = parse_bandwidth(gpu_bandwidth) if gpu_bandwidth else None
    if gpu is None and memory is None:
        return this_machine(setup, device)
    known = find_gpu(gpu) if gpu is not None else None
    total = memory or (known.memory_bytes if known else 0)
    speed = speed or (known.bytes_per_s if known else None)
    if total <= RESERVED_BYTES:
        raise UsageError(
            f"--gpu-memory {gpu_memory}: CUDA itself takes {RESERVED_BYTES / GIB:g} GiB"
        )
    source = f"vendor datasheet of {known.name}" if known and not memory else "as given"
    notes = (_reserved(total, source),)
    planned = replace(
        setup,
        device="cuda",
        memory_bytes=total - RESERVED_BYTES,
        bytes_per_s=speed,
        compute_capability=known.compute_capability if known else None,
        gpu=known.name if known else None,
    )
    return MachineSummary(known.name if known else "GPU", planned, notes)


def this_machine(setup: "DeploymentSpec", device: str) -> MachineSummary:
    """The GPU or CPU that a run with `--device` would use, with its free memory now.

    A GPU without memory of its own shares the host's. The memory of a GPU is unknown if its driver
    does not report it. Does not import torch.
    """
    from specbench.probes.gpu import has_gpu_driver, open_probe
    from specbench.probes.host import host_available_bytes

    if device != "cpu" and (device != "auto" or torch_build() != "CPU"):
        probe = open_probe("cuda:0" if device in ("auto", "cuda") else device)
        facts = probe.gpu_facts()
        name = facts.name or "GPU"
        setup = replace(setup, compute_capability=facts.compute_capability, gpu=facts.name)
        if facts.memory_bytes or facts.shares_host_memory:
            try:
                speed = find_gpu(name).bytes_per_s
            except UnknownGpu:
                speed = None
            if facts.memory_bytes:
                free, source = facts.memory_bytes - (probe.device_used_bytes() or 0), "by NVML"
            else:
                free, source = host_available_bytes(), "of the host, whose memory this GPU shares"
            planned = replace(
                setup, device="cuda", memory_bytes=free - RESERVED_BYTES, bytes_per_s=speed
            )
            return MachineSummary(name, planned, (_reserved(free, f"free now, {source}"),))
        if facts.name or has_gpu_driver():
            why = probe.reason or "NVML does not report it"
            note = f"the GPU's free memory is unknown, so nothing is compared with it: {why}"
            return MachineSummary(name, replace(setup, device="cuda"), (note,))
    planned = replace(setup, device="cpu", memory_bytes=host_available_bytes())
    note = "headroom is against host memory free now; specbench itself takes about 0.5 GiB of that"
    return MachineSummary("CPU", planned, (note,))


def torch_build() -> str | None:
    """`CUDA 13.0`, `HIP 7.1`, or `CPU` for a build without GPUs; None if it is unknown."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    built = re.findall(r"^(cuda|hip)\b[^=\n]*=\s*['\"]?([^'\"\s]+)", text, re.MULTILINE)
    versions = [f"{kind.upper()} {version}" for kind, version in built if version != "None"]
    return versions[0] if versions else "CPU" if built else None


def _reserved(total: int, source: str) -> str:
    return (
        f"{total / GIB:.4g} GiB ({source}), of which {RESERVED_BYTES / GIB:g} GiB are reserved "
        "for CUDA"
    )
