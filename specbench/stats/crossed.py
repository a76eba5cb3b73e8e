"""Speedups of servers: prompts crossed with cycles of sessions.

A server is restarted for every K, and each start has a random effect on its speed. So sessions run
in balanced reversal: a cycle (0, K1 .. Kn, Kn .. K1, 0) has two sessions of each K, so that a
steady drift of the machine cancels. All sessions serve the same prompts.

An interval must hold for other prompts and other starts, so the variances over cycles and over
prompts are added. The noise of single requests is in both. Cameron, Gelbach and Miller (2011)
subtract it once; in simulated sweeps their intervals covered 92% to 95%, these 93% to 96%. Cycles
have equal weights, by a geometric mean. In a ratio of sums, cycles that ran while the machine was
slow would have larger weights.

If requests are served concurrently, a cycle has one figure for all prompts together. The interval
is then only over cycles: it holds for other starts, but only for these prompts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import fdtrc

from specbench.stats.intervals import LogRatio
from specbench.stats.machine_noise import MachineKind, MachineNoise, assumed_noise
from specbench.stats.spread import MIN_UNITS, Uncertainty, combined, jackknife

Floats = NDArray[np.float64]

MIN_CYCLES = 2  # fewer give no spread
FEWEST_PLANNED = 4  # fewer cycles do not determine a variance well enough
MOST_PLANNED = 12
NEAR_PROMPTS = 1.2  # times the effect that infinitely many cycles detect: more are not worth it
# If requests are served together, the variance over prompts is part of that over cycles.
NO_PROMPTS = Uncertainty(standard_error=0.0, degrees_of_freedom=math.inf)
SERVERS = assumed_noise(MachineKind.SERVER)
PROMPT_SD = 0.2  # prompts of one workload: 0.04 to 0.22 in tests/gate/gate_noise.json


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionNoise:
    """The errors of the log of a measured speedup, over cycles and over prompts."""

    cycles: MachineNoise  # of one cycle's log ratio
    prompts: Uncertainty  # the part that more cycles do not reduce

    def of_cycles(self, num_cycles: int) -> Uncertainty:
        """The part that comes from the starts and from the machine."""
        return replace(self.cycles, num_parts=num_cycles).of_run

    def spread(self, num_cycles: int) -> Uncertainty:
        """The uncertainty of the log ratio of `num_cycles` cycles; at least MIN_CYCLES."""
        return combined(self.of_cycles(num_cycles), self.prompts)

    def detectable_effect(self, num_cycles: int) -> float:
        """The relative effect (0.03: 3%) that 80% of sweeps of `num_cycles` cycles detect."""
        return math.expm1(self.spread(num_cycles).detectable())


def crossed_speedup(
    base_s: ArrayLike,
    spec_s: ArrayLike,
    base_tokens: ArrayLike,
    spec_tokens: ArrayLike,
    prior: MachineNoise = SERVERS,
) -> LogRatio:
    """Baseline seconds per token / speculative seconds per token: geometric mean over cycles.

    Arrays are [cycles, prompts], the two sessions of a cycle summed. NaN means that a request
    failed: its prompt is then excluded on both sides of this cycle. A cycle with fewer than half
    as many prompts as the fullest one is excluded. The spread is None below MIN_CYCLES cycles or
    MIN_UNITS prompts, unless there is one column, for all prompts together. `prior` has the
    variance between cycles that is known before. ValueError if another entry is not finite and
    positive, or if no request was served on both sides.
    """
    cells = _served_on_both_sides(base_s, spec_s, base_tokens, spec_tokens)
    noise = _noise(cells, prior)
    ratio = LogRatio(
        log=float(_log_ratios(cells.sum(axis=2)).mean()),
        prompts=noise.prompts if noise else None,
        num_prompts=cells.shape[2],
    )
    return ratio.on(noise.cycles) if noise else ratio


def session_noise(
    base_s: ArrayLike,
    spec_s: ArrayLike,
    base_tokens: ArrayLike,
    spec_tokens: ArrayLike,
    prior: MachineNoise = SERVERS,
) -> SessionNoise | None:
    """The noise in the inputs of `crossed_speedup`; None without a spread."""
    return _noise(_served_on_both_sides(base_s, spec_s, base_tokens, spec_tokens), prior)


def sessions_p_value(log_speeds: ArrayLike, session_sd: float) -> float:
    """The p-value that sessions of one K differ only by their standard deviation `session_sd` of
    log speeds; 1 below 2 sessions or MIN_UNITS prompts.

    `log_speeds` is [sessions, prompts]. All sessions have the same prompts, so the effects of
    prompts cancel. The noise of single requests adds to the variance of a session's mean. This is
    an F test; its second degrees of freedom are those of the sum of both variances.
    """
    logs = np.asarray(log_speeds, dtype=np.float64)
    num_sessions, num_prompts = logs.shape
    if num_sessions < 2 or num_prompts < MIN_UNITS:
        return 1.0
    deviations = logs - logs.mean(axis=0)
    means = deviations.mean(axis=1)
    residuals = deviations - means[:, None]
    freedom = (num_sessions - 1) * (num_prompts - 1)
    noise = combined(
        Uncertainty(standard_error=session_sd, degrees_of_freedom=math.inf),
        Uncertainty(
            standard_error=math.sqrt((residuals**2).sum() / freedom / num_prompts),
            degrees_of_freedom=freedom,
        ),
    )
    ratio = means.var(ddof=1) / noise.standard_error**2
    noise_freedom = min(noise.degrees_of_freedom, 1e9)  # fdtrc does not accept infinity
    return float(fdtrc(num_sessions - 1, noise_freedom, ratio))


def expected_noise(num_prompts: int | None, kind: MachineKind) -> SessionNoise | None:
    """The noise to assume before a measurement; None below MIN_UNITS prompts.

    `num_prompts` None: prompts are served together, and their noise is part of that of cycles.
    """
    cycles = assumed_noise(kind).of_parts((), shared=0.0)
    if num_prompts is None:
        return SessionNoise(cycles=cycles, prompts=NO_PROMPTS)
    if num_prompts < MIN_UNITS:
        return None
    prompts = Uncertainty(
        standard_error=PROMPT_SD / math.sqrt(num_prompts), degrees_of_freedom=num_prompts - 1.0
    )
    return SessionNoise(cycles=cycles, prompts=prompts)


def cycles_needed(noises: Sequence[SessionNoise], effect: float) -> int | None:
    """The smallest total number of cycles that detects a relative effect (0.03: 3%) in 80% of
    sweeps.

    It is between FEWEST_PLANNED and MOST_PLANNED; None if those are not enough. If prompts differ
    too much for any number of cycles, it is the number that comes close to the limit set by the
    prompts. `noises` has the noise of every K of the sweep. The noise of cycles is pooled over K:
    otherwise a K whose noise happens to look small would end the sweep too early. The effect may be
    the observed one, because intervals then still have their coverage. A sweep must not stop when
    an interval excludes 1 (tests/stats/test_crossed.py has the rates of both rules).
    """
    pooled = replace(
        noises[0].cycles, variance=float(np.mean([noise.cycles.variance for noise in noises]))
    )
    needed = [_cycles_needed(replace(noise, cycles=pooled), effect) for noise in noises]
    known = [num for num in needed if num is not None]
    return max(known) if known and len(known) == len(needed) else None


def _cycles_needed(noise: SessionNoise, effect: float) -> int | None:
    exact = replace(noise.cycles, variance=0.0)
    prompt_limit = replace(noise, cycles=exact).detectable_effect(MOST_PLANNED)
    wanted = max(effect, NEAR_PROMPTS * prompt_limit)
    planned = range(FEWEST_PLANNED, MOST_PLANNED + 1)
    return next((n for n in planned if noise.detectable_effect(n) <= wanted), None)


def _served_on_both_sides(*columns: ArrayLike) -> Floats:
    """The columns [columns, cycles, prompts], with 0 for failed requests and without cycles in
    which most requests failed."""
    cells = np.array(columns, dtype=np.float64)
    if cells.ndim != 3:
        raise ValueError("every column needs the same cycles and prompts")
    is_served = np.logical_not(np.isnan(cells).any(axis=0))
    if not is_served.any():
        raise ValueError("no request was served on both sides of a cycle")
    if not (np.isfinite(cells) & (cells > 0))[:, is_served].all():
        raise ValueError("every entry of a request that did not fail must be finite and above 0")
    num_served = is_served.sum(axis=1)
    is_full = 2 * num_served >= num_served.max()
    cells[:, ~is_served] = 0.0
    return cells[:, is_full][:, :, is_served[is_full].any(axis=0)]


def _noise(cells: Floats, prior: MachineNoise) -> SessionNoise | None:
    _, num_cycles, num_prompts = cells.shape
    if num_cycles < MIN_CYCLES or 1 < num_prompts < MIN_UNITS:
        return None
    sums = cells.sum(axis=2, keepdims=True)
    prompts: Uncertainty | None = NO_PROMPTS
    if num_prompts > 1:
        prompts = jackknife(
            _log_ratios(sums - cells).mean(axis=0),
            weights=(cells / sums).mean(axis=(0, 1)),
        )
    assert prompts is not None, "there are MIN_UNITS prompts"
    cycle_logs = _log_ratios(sums[:, :, 0])
    # Each cycle starts its servers anew, so that cycles share no state.
    return SessionNoise(cycles=prior.of_parts(cycle_logs, shared=0.0), prompts=prompts)


def _log_ratios(columns: Floats) -> Floats:
    base_s, spec_s, base_tokens, spec_tokens = np.log(columns)
    ratios: Floats = base_s - base_tokens - spec_s + spec_tokens
    return ratios
