"""What cells show in tables: a text for a value, None where there is none."""

from collections.abc import Callable

from specbench.records import CellSummary
from specbench.report.numbers import ABSENT, effect_text, scalar, significant


def metric(name: str, form: Callable[[float], str]) -> Callable[[CellSummary], str | None]:
    def text(cell: CellSummary) -> str | None:
        value = scalar(cell.metrics.get(name))
        return None if value is None else form(value)

    return text


def share_of_round(cell: CellSummary, name: str) -> float | None:
    part, whole = scalar(cell.metrics.get(name)), scalar(cell.metrics.get("round_s"))
    return None if part is None or not whole else 100 * part / whole


def split(cell: CellSummary, *names: str) -> str | None:
    """Shares of a round's time, such as 12/83%."""
    shares = [share_of_round(cell, name) for name in names]
    known = [share for share in shares if share is not None]
    return "/".join(f"{round(share)}" for share in known) + "%" if known == shares else None


def roofline(cell: CellSummary) -> str | None:
    least_s = scalar(cell.metrics.get("roofline_round_s"))
    ratio = scalar(cell.metrics.get("roofline_ratio"))
    if least_s is None or ratio is None:
        return None
    return f"{milliseconds(least_s)} ({ratio:.2f}x)"


def joined(cell: CellSummary, *names: str) -> str | None:
    values = [scalar(cell.metrics.get(name)) for name in names]
    if all(value is None for value in values):
        return None
    return ", ".join(ABSENT if value is None else significant(value) for value in values)


def detectable(cell: CellSummary) -> str | None:
    effect = cell.minimum_detectable_effect
    return None if effect is None else effect_text(effect)


def k_of(cell: CellSummary) -> str:
    mean_k = scalar(cell.metrics.get("mean_num_speculative_tokens"))
    label = cell.key.draft.length.label
    return label if mean_k is None else f"{label} {mean_k:.1f}"


def milliseconds(seconds: float) -> str:
    return significant(seconds * 1e3)


def per_second(value: float) -> str:
    return f"{value:,.{2 if value < 10 else 1}f}"
