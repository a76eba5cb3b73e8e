"""Which GPU of NVML's list a CUDA device index means.

NVML counts all GPUs in PCI order. CUDA counts those that CUDA_VISIBLE_DEVICES names, in its
order, and numbers them fastest first unless CUDA_DEVICE_ORDER is PCI_BUS_ID.
"""

from collections.abc import Mapping
from typing import Any


class GpuNotFoundError(Exception):
    """Says why no GPU can be named."""


def find_gpu(index: int, uuid: str | None, nvml: Any, environment: Mapping[str, str]) -> Any:
    """The NVML handle of CUDA device `index`; `uuid`, where known, is CUDA's own word for it.

    Raises GpuNotFoundError where none fits or several may.
    """
    if uuid is not None:
        return _of_uuid(uuid, nvml)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        name = str(index)
    else:
        names = [name.strip() for name in visible.split(",")]
        if index >= len(names) or not names[index]:
            raise GpuNotFoundError(f"cuda:{index} is not among CUDA_VISIBLE_DEVICES={visible!r}")
        name = names[index]
    gpus = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    if not name.isdecimal():
        return _of_uuid_prefix(name, gpus, nvml)
    if int(name) >= len(gpus):
        raise GpuNotFoundError(f"cuda:{index} is GPU {name}, and NVML knows {len(gpus)}")
    # Equal GPUs are numbered in PCI order in either case.
    models = {nvml.nvmlDeviceGetName(gpu) for gpu in gpus}
    if len(models) > 1 and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise GpuNotFoundError(
            f"cannot tell which of {len(gpus)} different GPUs is cuda:{index}; "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    return gpus[int(name)]


def _of_uuid(uuid: str, nvml: Any) -> Any:
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except nvml.NVMLError as error:
        raise GpuNotFoundError(f"NVML has no GPU {uuid} (a MIG instance?): {error}") from error


def _of_uuid_prefix(name: str, gpus: list[Any], nvml: Any) -> Any:
    if name.startswith("MIG-"):
        raise GpuNotFoundError(f"{name}: NVML tells power, energy and clocks of whole GPUs only")
    fitting = [gpu for gpu in gpus if nvml.nvmlDeviceGetUUID(gpu).startswith(name)]
    if len(fitting) != 1:
        raise GpuNotFoundError(f"NVML knows {len(fitting)} GPUs whose UUID begins with {name}")
    return fitting[0]
