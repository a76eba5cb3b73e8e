"""How much the machine's state changes the log of a speedup, within a run and between runs.

The ratio of K to K = 0 follows the state of the machine: neighbors of a virtual machine, clocks and
caches slow K = 0 more than K. Blocks a few seconds apart share a state in part, blocks of one run
more than those of two runs. So a run is consecutive parts of a few requests, at least three, whose
states have the variance `variance` and the correlation SHARED:

    variance of the run's log ratio = variance * (SHARED + (1 - SHARED) / number of parts).

On two virtual cores, the log speedups of 10 prompts differed by 0.066 a few seconds later with the
same loaded models, and by 0.074 after a minute, another load or in another process: the time
matters, and loading again adds at most 0.026. benchmarks/coverage.json has repeated runs.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from specbench.stats.spread import Uncertainty

SHARED = 0.3  # correlation of the states of two parts of one run
PARTS = 3  # of a run at least
SECONDS_PER_RATIO = 2.0  # the ratio follows the seconds of K = 0 with a slope of 0.4 to 0.6
# Deviation of a ratio of two cells that both draft, against that of K = 0 to K. On a busy machine,
# two loads of one model in a run differed by no more than their requests' own noise explains.
ALIKE = 0.25
ASSUMED_FREEDOM = 4.0  # degrees of freedom of an assumed deviation


class MachineKind(StrEnum):
    """Kinds of machines, whose deviations are assumed before they are measured."""

    QUIET_CPU = "quiet CPU"
    UNSTEADY_CPU = "unsteady CPU"
    SHARED_CPU = "shared CPU"
    GPU = "GPU"
    SERVER = "server"

    @property
    def assumed(self) -> float:
        """The standard deviation of the log speedup between states."""
        return _ASSUMED[self]


# CPUs: repeated runs on two virtual cores. Alone on four machines 0.115, 0.10, 0.067, 0.03, whose
# mean square counts; beside other programs 0.10 to 0.16. GPU and server: assumed.
_ASSUMED = {
    MachineKind.QUIET_CPU: 0.06,
    MachineKind.UNSTEADY_CPU: 0.085,
    MachineKind.SHARED_CPU: 0.13,
    MachineKind.GPU: 0.02,
    MachineKind.SERVER: 0.05,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineNoise:
    """The variance of a log ratio between states of the machine, from `num_parts` of them."""

    kind: MachineKind
    variance: float
    degrees_of_freedom: float = ASSUMED_FREEDOM
    num_parts: int = 1
    num_earlier: int = 0  # runs that are pooled with what is assumed
    shared: float = SHARED

    @property
    def of_seconds(self) -> "MachineNoise":
        """The variance of the log seconds of K = 0, which change more than the ratio."""
        return replace(self, variance=SECONDS_PER_RATIO**2 * self.variance)

    @property
    def share(self) -> float:
        """The variance of the mean of the parts, over that of one state."""
        return self.shared + (1 - self.shared) / self.num_parts

    @property
    def of_run(self) -> Uncertainty:
        """The uncertainty of the mean of the parts."""
        return Uncertainty(
            standard_error=math.sqrt(self.variance * self.share),
            degrees_of_freedom=self.degrees_of_freedom,
        )

    def pooled(self, variance: float, freedom: float) -> "MachineNoise":
        """This variance and another one, weighted by their degrees of freedom."""
        total = self.degrees_of_freedom + freedom
        both = self.degrees_of_freedom * self.variance + freedom * variance
        return replace(self, variance=both / total, degrees_of_freedom=total)

    def of_parts(
        self, parts: ArrayLike, error: float = 0.0, shared: float = SHARED
    ) -> "MachineNoise":
        """This variance pooled with that of the log ratios of the parts of a run.

        `error`: the variance that a part's log ratio has without any change of the machine. Parts
        that share a state differ by less than those of two runs, by the factor 1 - `shared`.
        """
        logs = np.asarray(parts, dtype=np.float64)
        freedom = max(len(logs) - 1, 0)
        between = max(float(logs.var(ddof=1)) - error, 0.0) / (1 - shared) if freedom else 0.0
        noise = self.pooled(between, freedom)
        return replace(noise, num_parts=max(len(logs), 1), shared=shared)

    def with_run(self, costs: ArrayLike) -> "MachineNoise":
        """This variance pooled with that of a run, from the log ratios of its requests in order.

        Its consecutive parts are compared. Ratios per round are best, because prompts hardly differ
        in them. Too few requests make one part, whose deviation is not measured.
        """
        logs = np.asarray(costs, dtype=np.float64)
        if len(logs) < 2 * PARTS:
            return self.of_parts(())
        parts = np.array_split(logs, num_parts(len(logs)))
        error = float(np.mean([part.var(ddof=1) / len(part) for part in parts]))
        return self.of_parts([part.mean() for part in parts], error)


def assumed_noise(kind: MachineKind, *, alike: bool = False) -> MachineNoise:
    """What is assumed before a measurement. `alike`: both sides of the ratio draft, or neither, so
    that the machine's state slows both about equally."""
    return MachineNoise(kind=kind, variance=(kind.assumed * (ALIKE if alike else 1.0)) ** 2)


def num_parts(num_requests: int) -> int:
    """The parts of a run with enough requests: about as many as each of them has requests.

    A state may last for seconds or for the run. Parts that get longer and more allow for both, as
    batch means do (Flegal and Jones 2010, Batch means and spectral variance estimators in Markov
    chain Monte Carlo). In ten runs of forty prompts on two virtual cores, parts of five requests
    differed by 0.026 within a run, and the runs by 0.036, or 0.020 if they shared no state.
    """
    return max(PARTS, math.isqrt(num_requests))


def run_deviation(kind: MachineKind) -> float:
    """The deviation of the log ratios of identical runs that is assumed."""
    return replace(assumed_noise(kind), num_parts=PARTS).of_run.standard_error


def least_margin(kind: MachineKind, num_requests: int) -> float:
    """The relative margin of a run's speedup that the machine makes if its parts are all alike."""
    return math.expm1(assumed_noise(kind).with_run(np.zeros(num_requests)).of_run.margin())
