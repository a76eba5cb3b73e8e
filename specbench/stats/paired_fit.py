"""Speedups of several K over one set of prompts, of which some K lack some.

Seconds are products of a prompt's and a K's effect, fitted by least squares of their logs over all
pairs. Missing seconds are predicted, so that every K is a ratio of sums over all prompts, and K
that a time budget left at five prompts compare with those that have forty. A K that has all
prompts keeps its measured ratio. What speculation gains on a prompt is similar at every K, and not
known from K = 0, which therefore only connects K that share no prompt.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specbench.stats.intervals import LogRatio
from specbench.stats.spread import MIN_UNITS, Uncertainty, jackknife

Floats = NDArray[np.float64]
BASE_WEIGHT = 1e-6  # of K = 0 in the fit, against 1 of every other K


def fitted_ratios(base_s: ArrayLike, spec_s: ArrayLike) -> list[LogRatio]:
    """log(sum of `base_s` / sum of the seconds at each K); a row of `spec_s` per K, NaN where it
    did not serve a prompt.

    ValueError if a K has no prompt, or an entry is not positive.
    """
    seconds = np.vstack([np.asarray(base_s, dtype=np.float64), np.asarray(spec_s, np.float64)])
    known: NDArray[np.bool_] = np.isfinite(seconds)
    if not known[0].all() or not known.any(axis=1).all():
        raise ValueError("K = 0 needs every prompt, and every K at least one")
    if not (seconds[known] > 0).all():
        raise ValueError("seconds must be above 0")
    n = seconds.shape[1]
    logs = _log_ratios(seconds)
    shares = seconds[0] / seconds[0].sum()
    # A K that loses its only prompt keeps its estimate: such a K has no spread.
    left_out = [
        np.where(known[1:, rest].any(axis=1), _log_ratios(seconds[:, rest]), logs)
        if n > 1
        else logs
        for rest in ~np.eye(n, dtype=bool)
    ]
    return [
        LogRatio(
            log=float(log),
            prompts=_spread(values, shares[has], int(has.sum())),
            num_prompts=int(has.sum()),
        )
        for log, values, has in zip(logs, np.array(left_out).T, known[1:], strict=True)
    ]


def _spread(left_out: Floats, shares: Floats, num_prompts: int) -> Uncertainty | None:
    """The jackknife over all prompts, with the degrees of freedom of those that the K served."""
    if num_prompts < MIN_UNITS:
        return None
    every = jackknife(left_out, np.full(len(left_out), 1 / len(left_out)))
    assert every is not None, "there are at least as many prompts"
    weights = shares / shares.sum()
    return Uncertainty(
        standard_error=every.standard_error,
        degrees_of_freedom=max(1.0, 1 / float(weights @ weights) - 1),
    )


def _log_ratios(seconds: Floats) -> Floats:
    known = ~np.isnan(seconds)
    if not known.all():
        with np.errstate(invalid="ignore"):
            predicted = _predicted(np.log(seconds), known)
        seconds = np.where(known, seconds, np.exp(predicted))
    totals = np.log(seconds.sum(axis=1))
    ratios: Floats = totals[0] - totals[1:]
    return ratios


def _predicted(logs: Floats, known: NDArray[np.bool_]) -> Floats:
    """The effect of the K (rows) plus that of the prompt (columns)."""
    weights = known * np.where(np.arange(len(logs)) == 0, BASE_WEIGHT, 1.0)[:, None]
    filled, sums = np.where(known, logs, 0.0), weights.sum(axis=0)
    means = (weights * filled).sum(axis=0) / sums
    # Without the effects of prompts, the normal equations have one unknown per K.
    system = np.diag(weights.sum(axis=1)) - (weights / sums) @ weights.T
    of_k = np.linalg.lstsq(system, (weights * (filled - means)).sum(axis=1), rcond=None)[0]
    fitted: Floats = of_k[:, None] + means - of_k @ weights / sums
    return fitted
