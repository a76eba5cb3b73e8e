"""What can be found wrong in a second: names, files, devices and folders, before torch is imported.

Everything here is checked again where it is used.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.errors import UsageError
from specbench.settings import SERVED, RunSettings

if TYPE_CHECKING:
    from specbench.inputs.pairing import Pairing

# Of NVIDIA's driver, of Windows' under Linux, and of AMD's, whose GPUs torch calls cuda too.
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def look_first(
    settings: RunSettings, pairings: "Sequence[Pairing]", out: Path | None = None
) -> None:
    """UsageError or WorkloadError for a device, a folder, a workload or a plan that cannot be."""
    from specbench.bench.planning import plan_targets

    device = settings.machine.device
    if not set(settings.load.engines) <= set(SERVED):
        _require_driver(device)
    if out is not None:
        _require_writable(out)
    if not settings.servers.base_urls:  # else the plan hangs on what runs there
        plan_targets(settings, pairings, lambda t: settings.machine.dtype or t.model.dtype)


def _require_driver(device: str) -> None:
    is_linux = sys.platform == "linux"
    if device.startswith("cuda") and is_linux and not any(map(os.path.exists, _GPU_FILES)):
        raise UsageError(
            f"--device {device}: this machine has no GPU driver; leave --device out for the CPU"
        )


def _require_writable(out: Path) -> None:
    place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not place.is_dir():
        raise UsageError(f"--out {out}: {place} is a file; name a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UsageError(f"--out {out}: {place} is not writable; name another folder")
