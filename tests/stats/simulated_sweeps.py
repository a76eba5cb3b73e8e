"""Sweeps in server sessions, simulated from recorded noise.

A log speed is the sum of its prompt's, its server's deviation, the machine's drift and the residual
of a single request. Servers: the deviation of a machine, drawn for each sweep. What is assumed for
its kind is an estimate of it with ASSUMED_FREEDOM degrees of freedom; a quiet GPU has half of that.
The mean of two sessions against two others has the deviation of one session. Single requests of the
CPU: the remainders of recorded runs (tests/gate/gate_noise.json; deviation 0.09 to 0.17, with tails
heavier than normal ones).
"""

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.gate_noise import read_noise
from specbench.stats.machine_noise import ASSUMED_FREEDOM, MachineKind

Floats = NDArray[np.float64]
RECORDED = Path(__file__).parents[1] / "gate" / "gate_noise.json"
LENGTH_SIGMA = 0.6
HEAVY_TAILS = 4.0  # degrees of freedom of Student's t


class Cells(NamedTuple):
    """[..., cycles, prompts], as `crossed_speedup` takes them; the true speedup is 1."""

    base_s: Floats
    spec_s: Floats
    base_tokens: Floats
    spec_tokens: Floats

    def sweep(self, index: int) -> "Cells":
        return Cells(*(column[index] for column in self))

    def first(self, num_cycles: int) -> "Cells":
        return Cells(*(column[..., :num_cycles, :] for column in self))


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Standard deviations of logarithms."""

    kind: MachineKind
    session: float
    prompt: float  # of true speedups
    request: float | None  # None: recorded remainders
    drift: float = 0.0  # from session to session: one step for the whole sweep, and one at random
    session_has_heavy_tails: bool = False
    failed: float = 0.0  # share of cells
    length: float = 0.0  # of sampled answers, drawn on either side

    @property
    def is_quieter(self) -> bool:
        """Whether sessions differ by less than is assumed, so that intervals are wider."""
        return self.session <= self.kind.assumed / 2

    def sweeps(
        self,
        rng: np.random.Generator,
        num_sweeps: int,
        num_cycles: int,
        num_prompts: int,
        num_ks: int = 1,
    ) -> list[Cells]:
        """The cells of each K, with one baseline for all."""
        shape = (num_sweeps, num_cycles, num_prompts)
        tokens = 100 * rng.lognormal(0.0, LENGTH_SIGMA, (num_sweeps, 1, num_prompts))
        machine = self._machine(rng, num_sweeps, num_cycles, 2 * (num_ks + 1))
        base = self._side(rng, shape, machine[:, :, [0, -1]], "base")
        sweeps = []
        for place in range(1, num_ks + 1):
            slower = rng.lognormal(-(self.prompt**2) / 2, self.prompt, tokens.shape)  # mean 1
            spec = slower * self._side(rng, shape, machine[:, :, [place, -1 - place]], "spec")
            sides = [tokens * rng.lognormal(0.0, self.length, shape) for _ in range(2)]
            cells = Cells(base * sides[0], spec * sides[1], *sides)
            cells.spec_s[rng.random(shape) < self.failed] = np.nan
            sweeps.append(cells)
        return sweeps

    def _machine(self, rng: np.random.Generator, sweeps: int, cycles: int, sessions: int) -> Floats:
        """Log seconds of every session: its server's own deviation on the drifting machine."""
        shape = (sweeps, cycles * sessions)
        session_errors = rng.normal(0.0, 1.0, shape)
        if self.session_has_heavy_tails:
            scale = 1 / np.sqrt(HEAVY_TAILS / (HEAVY_TAILS - 2))
            session_errors = scale * rng.standard_t(HEAVY_TAILS, shape)
        chi_squared = rng.chisquare(ASSUMED_FREEDOM, (sweeps, 1))
        session_errors *= self.session * np.sqrt(ASSUMED_FREEDOM / chi_squared)
        steps = rng.normal(0.0, self.drift, shape) + rng.normal(0.0, self.drift, (sweeps, 1))
        logs: Floats = session_errors + steps.cumsum(axis=1)
        return logs.reshape(sweeps, cycles, sessions)

    def _side(
        self, rng: np.random.Generator, shape: tuple[int, ...], sessions: Floats, side: str
    ) -> Floats:
        """Seconds per token in the mean of a cycle's two sessions."""
        speeds = np.exp(sessions)[..., None] * self._requests(rng, (*shape[:2], 2, shape[2]), side)
        mean: Floats = speeds.mean(axis=2)
        return mean

    def _requests(self, rng: np.random.Generator, shape: tuple[int, ...], side: str) -> Floats:
        if self.request is None:
            return rng.choice(remainders()[side], shape)
        return rng.lognormal(0.0, self.request, shape)


@cache
def remainders() -> dict[str, Floats]:
    """Residual factors of the recorded seconds of single requests; mean 1 on either side."""
    chat = next(cell for cell in read_noise(RECORDED) if cell.workload == "chat")
    factors = [np.exp(layout.rest).ravel() for layout in chat.layouts]
    return {side: f / f.mean() for side, f in zip(("base", "spec"), factors, strict=True)}


GPU, CPU = MachineKind.GPU, MachineKind.SHARED_CPU
NOISES = {
    "quiet GPU": Noise(kind=GPU, session=GPU.assumed / 2, prompt=0.15, request=0.01),
    "shared GPU": Noise(
        kind=GPU, session=GPU.assumed, prompt=0.1, request=0.05, drift=0.005, failed=0.05
    ),
    "loaded CPU": Noise(kind=CPU, session=CPU.assumed, prompt=0.2, request=None, drift=0.03),
    "noisy CPU": Noise(
        kind=CPU, session=CPU.assumed, prompt=0.3, request=None, drift=0.03, failed=0.05
    ),
    "heavy tails": Noise(
        kind=CPU,
        # The steps of the drift add half of their variance to that of a cycle's ratio.
        session=math.sqrt(CPU.assumed**2 - 0.1**2 / 2),
        prompt=0.2,
        request=None,
        drift=0.1,
        session_has_heavy_tails=True,
        length=0.2,
    ),
}
