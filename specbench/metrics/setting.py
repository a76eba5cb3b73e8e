"""What a cell was measured under, read from its key: the setting, and the part it plays there."""

from typing import NamedTuple

from specbench.records import NO_DRAFTER, CellKey

# The methods of K = 0 that others are compared with, one an engine.
BASELINE_METHODS = (NO_DRAFTER, "generate")


class Setting(NamedTuple):
    """What cells have in common that are compared: all but who drafts, how, and how far."""

    target: str
    workload: str
    engine: str
    concurrency: int
    temperature: float
    dtype: str
    context: int | None
    request_rate: float | None
    num_samples: int = 1


def setting_of(key: CellKey) -> Setting:
    """The setting that a cell was measured under."""
    return Setting(
        target=key.target,
        workload=key.workload,
        engine=key.engine,
        concurrency=key.concurrency,
        temperature=key.temperature,
        dtype=key.dtype,
        context=key.context,
        request_rate=key.request_rate,
        num_samples=key.num_samples,
    )


def is_baseline(key: CellKey) -> bool:
    """Whether the other cells of its setting are compared with this one."""
    return key.num_speculative_tokens == 0 and key.method in BASELINE_METHODS


def is_stream(key: CellKey) -> bool:
    """Whether requests overlap, so that passes are measured and not single requests."""
    return key.concurrency > 1 or key.request_rate is not None


def overlaps(key: CellKey) -> bool:
    """Whether requests run side by side: those of a stream, or the samples of one prompt."""
    return is_stream(key) or key.num_samples > 1


def marked(name: str, key: CellKey) -> str:
    """The name of a pairing, drafter or method, marked where its text is not the target's."""
    return name if key.lossy is None else f"{name} (lossy)"
