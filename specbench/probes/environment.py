"""Provenance of a run: its command, commit, packages and machine, without names of hosts, users or
folders."""

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from specbench import __version__
from specbench.probes.gpu import Probe
from specbench.records import Environment

_PACKAGE = Path(__file__).parents[1]
_CPU_INFO = Path("/proc/cpuinfo")
_GIT_TIMEOUT_S = 5.0

# Packages that can change a number.
_PACKAGES = (
    "accelerate",
    "bitsandbytes",
    "causal-conv1d",
    "flash-linear-attention",
    "mamba-ssm",
    "numpy",
    "nvidia-ml-py",
    "pandas",
    "safetensors",
    "scipy",
    "sglang",
    "tokenizers",
    "torch",
    "transformers",
    "triton",
    "vllm",
)


def describe_environment(
    device: str, threads: int | None, command: Sequence[str], probe: Probe
) -> Environment:
    """The facts that are needed to repeat a run on `device`; `command` is sys.argv.

    The program is stored without its folder, the arguments as typed.
    """
    gpu = probe.gpu_facts()
    return Environment(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=(program_name(command[0]), *command[1:]),
        specbench_version=__version__,
        git_commit=git_commit(_PACKAGE) or git_commit(Path.cwd()),
        python=platform.python_version(),
        packages=package_versions(),
        platform=platform.platform(),
        cpu=cpu_model(),
        num_cpu_cores=psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        threads=threads,
        device=device,
        gpu=gpu.name,
        gpu_memory_bytes=gpu.memory_bytes,
        driver=gpu.driver,
        power_limit_w=gpu.power_limit_w,
        sm_clock_default_mhz=gpu.sm_clock_default_mhz,
        probe=probe.reason or "NVML",
    )


def program_name(path: str) -> str:
    """The name of the program without its folder; with `python -m`, the name of the package."""
    program = Path(path)
    return program.parent.name if program.name == "__main__.py" else program.name


def package_versions() -> dict[str, str]:
    """Versions of the installed packages that can change a number."""
    return {name: release for name in _PACKAGES if (release := _version(name)) is not None}


def cpu_model(cpu_info: Path = _CPU_INFO) -> str:
    """The name of the processor, or else its architecture."""
    if cpu_info.exists():
        for line in cpu_info.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def git_commit(folder: Path) -> str | None:
    """The commit checked out in `folder`, with `-dirty` if tracked files differ from it.

    None if the folder is not in a git checkout, or is ignored there (a package in a venv).
    """
    if not _git(folder, "ls-files", "."):
        return None
    commit = _git(folder, "describe", "--always", "--abbrev=40", "--exclude=*")
    # `describe --dirty` would lock the index, and leave it locked if killed with this process.
    is_dirty = commit and _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}-dirty" if is_dirty else commit


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", folder, *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
