"""Planned cells that nobody missed: a drafter cannot, or a forecast saw no use in them."""

from specbench.pairing.forecast_check import is_left_out
from specbench.records import CellKey
from specbench.store import StoredRun


def is_meant(key: CellKey, stored: StoredRun) -> bool:
    """Whether a planned cell was left out on purpose."""
    return is_too_deep(key, stored) or is_left_out(key, stored.forecasts)


def is_too_deep(key: CellKey, stored: StoredRun) -> bool:
    """Whether a K of a default range is more than the drafter can draft."""
    if key.adaptive or not stored.run.settings.is_default_range:
        return False
    known = (e.max_k for e in stored.engines if (e.target, e.engine) == (key.target, key.engine))
    limits = [limit for max_k in known if (limit := max_k.get(key.drafter)) is not None]
    return bool(limits) and key.num_speculative_tokens > limits[-1]
