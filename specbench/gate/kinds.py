"""What kind of number a metric is: what the gate trusts first, and what a single run hides."""

from enum import StrEnum

from specbench.metrics.registry import Metric


class MetricKind(StrEnum):
    """In the order of trust. Counts repeat; ratios travel between machines; times do not."""

    COUNT = "count"
    MEMORY = "memory"
    RATIO = "ratio"  # of seconds inside one run: its neighbours were measured minutes apart
    TIME = "time"  # absolute seconds, or joules: only of use on the same hardware


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
    "tokens": MetricKind.MEMORY,  # of context that is given up
    "x": MetricKind.RATIO,
    "steps": MetricKind.RATIO,
    "steps/token": MetricKind.RATIO,
}
_EXCEPTIONS = {  # seconds over seconds, in a unit that counts have, too
    "break_even_length": MetricKind.RATIO,
    "busy_share": MetricKind.RATIO,
    "bandwidth_utilisation": MetricKind.RATIO,
}

# Relative deviation between identical runs where no runs show their own. Counts and torch's live
# tensors repeat exactly, a process's memory nearly. Of a CPU benchmarks/gate.json
# recorded 10 % of a ratio to K = 0 and 6 % of seconds, on two cores of a shared machine;
# those of a GPU are assumed, not recorded. docs/ci.md tells more.
_FLOORS = {MetricKind.COUNT: 0.0, MetricKind.MEMORY: 0.005}
_FLOORS_OF_SECONDS = {
    "cpu": {MetricKind.RATIO: 0.10, MetricKind.TIME: 0.10},
    "cuda": {MetricKind.RATIO: 0.01, MetricKind.TIME: 0.02},
}


def kind_of(metric: Metric) -> MetricKind:
    """By its unit; a metric of an unknown unit is a time, the kind that is trusted least."""
    return _EXCEPTIONS.get(metric.name) or _KIND_OF_UNIT.get(metric.unit, MetricKind.TIME)


def deviation_floor(kind: MetricKind, device: str) -> float:
    """The deviation between runs (0.01 = 1 %) that is taken for granted of a kind on a device."""
    seconds = _FLOORS_OF_SECONDS.get(device, _FLOORS_OF_SECONDS["cpu"])
    return {**_FLOORS, **seconds}[kind]
