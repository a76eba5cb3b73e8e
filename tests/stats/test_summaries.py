import numpy as np
import pytest

from specbench.stats.summaries import percentile


@pytest.mark.parametrize(("percent", "needed"), [(90, 10), (95, 20), (99, 100)])
def test_a_percentile_equals_numpys_or_is_absent_for_few_values(percent: int, needed: int) -> None:
    for seed in range(200):
        values = np.random.default_rng(seed).lognormal(size=needed + seed).tolist()
        assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))
        assert percentile(values[: seed % needed], percent) is None
