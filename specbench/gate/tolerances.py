"""The variation of metrics between identical runs, and the losses that are tolerated.

The help of `specbench check` shows the defaults, so this imports no metric.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specbench.metrics.registry import Metric


class MetricKind(StrEnum):
    """Kinds in the order of trust: counts repeat, ratios hold on other machines, times do not."""

    COUNT = "count"
    MEMORY = "memory"
    RATIO = "ratio"  # of seconds inside one run, measured within minutes
    TIME = "time"  # absolute seconds, or joules: only comparable on the same hardware


_KIND_OF_UNIT = {
    "fraction": MetricKind.COUNT,
    "tokens/round": MetricKind.COUNT,
    "rounds": MetricKind.COUNT,
    "passes": MetricKind.COUNT,
    "tokens/request": MetricKind.COUNT,
    "requests": MetricKind.COUNT,
    "launches/round": MetricKind.COUNT,
    "waits/round": MetricKind.COUNT,
    "nats/token": MetricKind.COUNT,
    "bytes": MetricKind.MEMORY,
    "bytes/token": MetricKind.MEMORY,
    "tokens": MetricKind.MEMORY,  # of context that a draft model costs
    "x": MetricKind.RATIO,
    "steps": MetricKind.RATIO,
    "steps/token": MetricKind.RATIO,
}
_EXCEPTIONS = {  # ratios of seconds in a unit that counts also have
    "break_even_length": MetricKind.RATIO,
    "busy_share": MetricKind.RATIO,
    "bandwidth_utilization": MetricKind.RATIO,
}

# Relative deviation between identical runs, for single runs. Counts and torch's live tensors repeat
# exactly, a process's memory nearly. A machine's state changes the ratio (stats/machine_noise.py).
# On a CPU it slows K = 0 more than K, so K's seconds vary no more than the ratio (half as much in
# benchmarks/gate.json). Clocks of a GPU change both: its seconds are assumed to vary twice as much.
_FLOORS = {MetricKind.COUNT: 0.0, MetricKind.MEMORY: 0.005}
_GPU_SECONDS_PER_RATIO = 2.0


def entry_name(metric: str, i: int) -> str:
    """The name of entry i, from 1, of a metric that is a list."""
    return f"{metric}[{i}]"


def metric_name(figure: str) -> str:
    """The metric of a figure: its name, or that of the list of which it is an entry."""
    return figure.partition("[")[0]


def kind_of(metric: "Metric") -> MetricKind:
    """The kind of a metric, by its unit; an unknown unit is a time, the least trusted kind."""
    return _EXCEPTIONS.get(metric.name) or _KIND_OF_UNIT.get(metric.unit, MetricKind.TIME)


def deviation_floor(kind: MetricKind, device: str) -> float:
    """The deviation between runs that is assumed of a kind on a device: 0.01 is 1%."""
    if kind in _FLOORS:
        return _FLOORS[kind]
    from specbench.stats.machine_noise import MachineKind, run_deviation  # noqa: PLC0415 - scipy

    if not device.startswith("cuda"):
        return run_deviation(MachineKind.SHARED_CPU)
    ratio = run_deviation(MachineKind.GPU)
    return ratio if kind is MetricKind.RATIO else _GPU_SECONDS_PER_RATIO * ratio


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """How much worse a metric may become: 0.02 is 2%."""

    metric: str  # with [i] entry i of a metric that is a list
    share: float

    @property
    def percent(self) -> str:
        return f"{100 * self.share:g}%"


_SECONDS_OF_DEFAULT = {  # decode_speedup, decode_tokens_per_s
    "cpu": (0.40, 0.40),  # what two single runs can decide on a CPU
    "cuda": (0.08, 0.15),
}


def default_tolerances(device: str) -> tuple[Tolerance, ...]:
    """The default tolerances: small for counts, as large as the noise for seconds."""
    speedup, speed = _SECONDS_OF_DEFAULT.get(device, _SECONDS_OF_DEFAULT["cpu"])
    return (
        Tolerance(metric="mean_acceptance_length", share=0.02),
        Tolerance(metric="peak_allocated_bytes", share=0.03),
        Tolerance(metric="decode_speedup", share=speedup),
        Tolerance(metric="decode_tokens_per_s", share=speed),
    )


def defaults_in_words() -> str:
    """The tolerances on a GPU, and those that differ on a CPU."""
    gpu = default_tolerances("cuda")
    on_cpu = [tolerance for tolerance in default_tolerances("cpu") if tolerance not in gpu]
    return f"{_in_words(gpu)}; on a CPU {_in_words(on_cpu)}"


def _in_words(tolerances: Sequence[Tolerance]) -> str:
    return ", ".join(f"{t.metric}:{t.percent}" for t in tolerances)
