"""Checks in a separate process whether torch, Triton and flash-attn work on this machine's GPU.

So `doctor` does not import torch, and a library that crashes does not end it.
"""

import json
import os
import subprocess
import sys
from typing import Any

TIMEOUT_S = 120.0  # a first import of torch from a network disk takes a minute


def check_gpu() -> dict[str, Any]:
    """`device` (the one that a run takes), `num_gpus`, `compute_capability`, `triton`,
    `flash_attn` (None if it works, else the reason) and `problem`, if they are known."""
    command = [sys.executable, "-c", "from specbench.cli import gpu_check; gpu_check.main()"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"torch did not find its GPU within {TIMEOUT_S:g} s"}
    if done.returncode:
        *_, reason = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"problem": f"torch cannot use the GPU: {reason}"}
    checked: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return checked


def describe_gpu() -> dict[str, Any]:
    """The facts of `check_gpu`, in a process that may import torch."""
    import torch

    from specbench.errors import UsageError
    from specbench.probes.device import find_device

    try:
        device = find_device("auto")
    except UsageError as error:
        return {"problem": str(error).removeprefix("--device auto: ")}
    if device.type == "cpu":
        return {"device": "cpu"}
    # Only now: it also imports transformers.
    from specbench.forward.attention.implementations import import_failure
    from specbench.forward.kernels.availability import triton_failure

    major, minor = torch.cuda.get_device_capability(device)
    return {
        "device": str(device),
        "num_gpus": torch.cuda.device_count(),
        "compute_capability": f"{major}.{minor}",
        "triton": triton_failure(device),
        "flash_attn": import_failure(),
    }


def main() -> None:
    """Print one line of JSON; libraries may print before it."""
    print(f"\n{json.dumps(describe_gpu())}")
