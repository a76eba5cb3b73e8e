"""Detects steps in a short noisy series, or else a trend.

Steps: binary segmentation (Scott and Knott 1974; Vostrikova 1981) with the least-squares split.
Each split is tested by permutation, as in E-divisive (Matteson and James 2014, arXiv:1306.4933),
with which Hunter (Fleming et al. 2023) monitors benchmarks. A permutation test assumes only that
the runs of a level are exchangeable. So at most a share SIGNIFICANCE of series without a change are
reported to have a step, for any noise and any number of runs.

Trend: the Mann-Kendall test (Mann 1945; Kendall 1975) with the slope of Theil and Sen (Sen 1968).
A drift also looks like a step, so the line and the steps are compared by BIC (Schwarz 1978).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specbench.doc import Doc

SIGNIFICANCE = 0.05
MIN_RUNS = 8  # with fewer, even the clearest step is too common among permutations
MIN_LEVEL = 3  # runs on each side of a step
_NUM_PERMUTATIONS = 999
_EQUAL = 1e-12  # relative to the scale of the values: smaller differences are rounding

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A step: from `run_index` on, the series has another level."""

    run_index: Annotated[int, Doc("of the first run of the new level, in `points`")]
    before: Annotated[float, Doc("mean of the level before")]
    after: Annotated[float, Doc("mean of the new level")]
    p_value: Annotated[float, Doc("of the test for a change", low=0, high=1)]

    @property
    def change(self) -> float | None:
        """The change relative to the level before (0.05: 5% more); None if that was 0."""
        return (self.after - self.before) / abs(self.before) if self.before else None


@dataclass(frozen=True, slots=True)
class Trend:
    """A steady rise or fall."""

    slope: Annotated[float, Doc("change per run, in `unit`")]
    p_value: Annotated[float, Doc("of the test for a trend", low=0, high=1)]


class SeriesAnalysis(NamedTuple):
    """The result for a series: steps, or a trend, or neither."""

    steps: tuple[ChangePoint, ...] = ()
    trend: Trend | None = None


def analyze_series(values: Sequence[float]) -> SeriesAnalysis:
    """The steps in order, else the trend. A series below MIN_RUNS or a constant one has neither."""
    series = np.asarray(values, dtype=np.float64)
    if len(series) < MIN_RUNS or np.ptp(series) <= _EQUAL * max(1.0, float(abs(series).max())):
        return SeriesAnalysis()
    rng = np.random.default_rng(0)
    splits = sorted(_splits(series, 0, rng))
    trend = _trend(series)
    if splits and trend and _line_bic(series) < _steps_bic(series, [at for at, _ in splits]):
        splits = []
    if splits:
        return SeriesAnalysis(steps=_steps(series, splits))
    return SeriesAnalysis(trend=trend)


def _splits(series: Values, first: int, rng: np.random.Generator) -> list[tuple[int, float]]:
    """The index and p-value of every significant split, found recursively in both parts."""
    if len(series) < 2 * MIN_LEVEL:
        return []
    gains = split_gains(series[None])[0]
    shuffled = rng.permuted(np.tile(series, (_NUM_PERMUTATIONS, 1)), axis=1)
    num_as_large = int((split_gains(shuffled).max(1) >= gains.max() * (1 - _EQUAL)).sum())
    p_value = (1 + num_as_large) / (1 + _NUM_PERMUTATIONS)
    if p_value > SIGNIFICANCE:
        return []
    at = MIN_LEVEL + int(gains.argmax())
    return [
        (first + at, p_value),
        *_splits(series[:at], first, rng),
        *_splits(series[at:], first + at, rng),
    ]


def split_gains(series_RN: Values) -> Values:
    """The sum of squares that each split explains [R, S]: n1 n2 / n (mean1 - mean2)**2.

    R series of N runs, S splits.
    """
    N = series_RN.shape[1]
    ends_S = np.arange(MIN_LEVEL, N - MIN_LEVEL + 1)
    centered_RN = series_RN - series_RN.mean(1, keepdims=True)
    sums_RS = np.cumsum(centered_RN, axis=1)[:, ends_S - 1]
    gains: Values = sums_RS**2 * N / (ends_S * (N - ends_S))
    return gains


def _steps(series: Values, splits: Sequence[tuple[int, float]]) -> tuple[ChangePoint, ...]:
    borders = [0, *(at for at, _ in splits), len(series)]
    means = [float(series[a:b].mean()) for a, b in pairwise(borders)]
    return tuple(
        ChangePoint(at, means[i], means[i + 1], p_value) for i, (at, p_value) in enumerate(splits)
    )


def _trend(series: Values) -> Trend | None:
    # It takes longer to import than the rest of `watch` and `history`.
    from scipy.stats import kendalltau, theilslopes  # noqa: PLC0415

    run_numbers = np.arange(len(series))
    p_value = float(kendalltau(run_numbers, series).pvalue)
    if p_value > SIGNIFICANCE:
        return None
    return Trend(float(theilslopes(series, run_numbers).slope), p_value)


def _line_bic(series: Values) -> float:
    run_numbers = np.arange(len(series))
    line = np.polynomial.Polynomial.fit(run_numbers, series, 1)
    return _bic(series - line(run_numbers), num_parameters=2)


def _steps_bic(series: Values, splits: Sequence[int]) -> float:
    """The BIC of a series with a step at each split; a step has two parameters: level, position."""
    left = np.concatenate([part - part.mean() for part in np.split(series, splits)])
    return _bic(left, num_parameters=1 + 2 * len(splits))


def _bic(residuals: Values, *, num_parameters: int) -> float:
    n = len(residuals)
    mean_square = max(float((residuals**2).mean()), np.finfo(np.float64).tiny)
    return n * float(np.log(mean_square)) + num_parameters * float(np.log(n))
