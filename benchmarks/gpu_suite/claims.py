"""What was predicted, beside what was measured."""

from benchmarks.gpu_suite.machine import Json


def claim(
    what: str,
    measured: float | None,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    reason: str | None = None,
) -> Json:
    """One prediction; where there is a `reason` for it, nothing was measured nor holds."""
    bounds = [f"at least {at_least:g}"] if at_least is not None else []
    bounds += [f"at most {at_most:g}"] if at_most is not None else []
    holds, measured = None, None if reason else measured
    if measured is not None:
        above = at_least is None or measured >= at_least
        holds = above and (at_most is None or measured <= at_most)  # and not where it is no number
    return {
        "what": what,
        "predicted": " and ".join(bounds),
        "measured": measured,
        "holds": holds,
        "reason": reason,
    }


def all_of(what: str, num_right: int, num: int) -> Json:
    """That each of `num` is right."""
    return claim(f"{what} ({num} in all)", num_right, at_least=num)
