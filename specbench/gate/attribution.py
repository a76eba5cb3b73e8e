"""Causes of a regression: something that changed, fewer accepted draft tokens, or longer rounds.

Tokens per second = tokens per round / seconds per round, so a loss in logarithms is the sum of one
share of each. For a speedup, seconds are in units of a K = 0 step.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from specbench.doc import Doc
from specbench.gate.figures import CellFigures
from specbench.gate.fingerprint import (
    DRAFTER,
    HARDWARE,
    Fingerprint,
    drafter_difference,
    is_software_of,
    software_changes,
)
from specbench.gate.judging import OUTPUT_TOKENS
from specbench.gate.tolerances import MetricKind, kind_of, metric_name
from specbench.metrics.registry import all_metrics
from specbench.metrics.server_facts import RunDifference
from specbench.records import CellKey

NAMED_SHARE = 0.25  # of a loss; a cause with a smaller share is not named

# Metrics that the attribution needs in addition to those that are judged.
EVIDENCE = (
    "mean_acceptance_length",
    "acceptance_rate_per_position",
    "decode_tokens_per_s",
    "round_s",
    "draft_s",
    "verify_s",
    "other_s",
    "break_even_length",
    "draft_cost_ratio",
    "verify_cost_ratio",
)
# No other count, such as launches per round, shows that fewer draft tokens are accepted.
_OF_ACCEPTANCE = (
    "mean_acceptance_length",
    "acceptance_rate",
    "conditional_acceptance_rate",
    "alpha",
)
_BEFORE_DECODING = ("ttft_s", "prefill_s", "queue_s")  # with their percentiles


class Cause(StrEnum):
    """Origins of a regression in the order of evidence: changes first, then their effects."""

    WEIGHTS = "changed weights"  # of the target or its draft, or the draft's method or parameters
    PROMPTS = "changed prompts"
    PACKAGES = "changed packages"  # also the driver, the engine and its settings
    ACCEPTANCE = "acceptance"
    TEXT = "text"  # the greedy output itself
    DRAFT_COST = "draft cost"
    VERIFICATION = "verification"
    ROUND_TIME = "round time"  # its other parts, or no part is known
    PREFILL = "prefill"
    MEMORY = "memory"
    MACHINE = "machine"  # K = 0 is also slower: driver, clocks, packages or the machine


_CAUSE_OF_PART = {"draft": Cause.DRAFT_COST, "verify": Cause.VERIFICATION}
# Causes that a drafter cannot have: it is absent at K = 0 and in a prefill.
_WITHOUT_DRAFTS = {Cause.MACHINE, Cause.PREFILL}
_CAUSE_OF_ALLOWED = {
    **dict.fromkeys(("model", "target", "tokenizer", DRAFTER, "lossy"), Cause.WEIGHTS),
    **dict.fromkeys(("prompts", "workload", "request-settings", "max-new-tokens"), Cause.PROMPTS),
    HARDWARE: Cause.MACHINE,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Shift:
    """A quantity in the baseline and in the candidate."""

    name: Annotated[str, Doc("the quantity")]
    unit: Annotated[str, Doc("of `before` and `after`; `steps`: in steps of K = 0")]
    before: Annotated[float, Doc("in the baseline")]
    after: Annotated[float, Doc("in the candidate")]

    @property
    def figure(self) -> tuple[float, float, str]:
        """As a figure of a reason."""
        return self.before, self.after, self.unit

    @property
    def log(self) -> float:
        """log(after / before); 0 if either is not positive."""
        return math.log(self.after / self.before) if self.before > 0 and self.after > 0 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Attribution:
    """Causes of a cell's regression; empty if the engine does not report its rounds."""

    cell: Annotated[CellKey, Doc("id of the baseline's cell")]
    metrics: Annotated[
        tuple[str, ...], Doc("its metrics that regressed; empty: undecided, and causes are changes")
    ]
    causes: Annotated[
        tuple[Cause, ...],
        Doc("the causes below that apply, in this order; empty if none is known"),
    ]
    acceptance: Annotated[Shift | None, Doc("`mean_acceptance_length`")]
    curve: Annotated[
        tuple[tuple[float, ...], tuple[float, ...]],
        Doc("acceptance per position, `before` and `after`"),
    ]
    round: Annotated[
        Shift | None, Doc("seconds per round; on other or slower hardware, steps of K = 0")
    ]
    step: Annotated[Shift | None, Doc("seconds per step of K = 0; absent on other hardware")]
    slower: Annotated[
        tuple[Shift, ...], Doc("parts of a round that got slower: `draft`, `verify`, `other`")
    ]
    changes: Annotated[tuple[RunDifference, ...], Doc("the changes among the causes")] = ()


def changed_causes(
    key: CellKey, baseline: Fingerprint, candidate: Fingerprint, allowed: Sequence[RunDifference]
) -> tuple[tuple[Cause, RunDifference], ...]:
    """Changes between two runs that can explain a regression of a cell.

    Changes of other drafters, targets, workloads or engines are excluded.
    """
    drafter = drafter_difference(key.pairing, baseline, candidate)
    at = key.condition
    software = software_changes(baseline, candidate)
    return (
        *([(Cause.WEIGHTS, drafter)] if drafter else []),
        *(
            (_CAUSE_OF_ALLOWED[d.name], d)
            for d in allowed
            if d.name in _CAUSE_OF_ALLOWED and _is_of(d, at.target, at.workload)
        ),
        *((Cause.PACKAGES, d) for d in software if is_software_of(d.name, at)),
    )


def _is_of(difference: RunDifference, target: str, workload: str) -> bool:
    """Whether a difference is about this target or workload, or about all of them."""
    one_of = dict.fromkeys(("model", "tokenizer"), target)
    one_of |= dict.fromkeys(("prompts", "workload"), workload)
    name = one_of.get(difference.name)
    # Their texts contain `NAME 0123abcd`, `chat template of NAME: 0123abcd` or `8 of NAME (..)`.
    texts = (f" {text} " for text in difference[1:])
    return name is None or any(f" {name}{end}" in text for text in texts for end in " :,")


def attribute(
    before: CellFigures,
    after: CellFigures,
    metrics: Sequence[str],
    *,
    same_hardware: bool,
    changed: Sequence[tuple[Cause, RunDifference]] = (),
) -> Attribution:
    """The causes of the regression of some metrics of a cell; `changed`: see `changed_causes`."""
    acceptance = _shift(before, after, "mean_acceptance_length")
    seconds = _shift(before, after, "round_s") if same_hardware else None
    steps = _shift(before, after, "break_even_length")
    step = _step(seconds, steps)
    causes = {
        cause
        for name in metrics
        for cause in _causes(name, _lost(before, after, name), acceptance, step, steps or seconds)
    }
    # A slower machine slows every part of a round: only shares of a K = 0 step show which grew.
    if step is not None and seconds is not None and step.log > NAMED_SHARE * abs(seconds.log):
        seconds, same_hardware = None, False
    slower = tuple(_slower(before, after, same_hardware=same_hardware))
    if Cause.ROUND_TIME not in causes:
        slower = ()
    elif slower:
        causes.remove(Cause.ROUND_TIME)
        causes |= {_CAUSE_OF_PART.get(part.name, Cause.ROUND_TIME) for part in slower}
    if causes and causes <= _WITHOUT_DRAFTS:
        changed = [(cause, change) for cause, change in changed if change.name != DRAFTER]
    causes |= {cause for cause, _ in changed}
    curves = tuple(cell.series("acceptance_rate_per_position") for cell in (before, after))
    return Attribution(
        cell=before.key,
        metrics=tuple(metrics),
        causes=tuple(cause for cause in Cause if cause in causes),
        acceptance=acceptance,
        curve=(curves[0], curves[1]),
        round=seconds or steps,
        step=step,
        slower=slower,
        changes=tuple(change for _, change in changed),
    )


def _lost(before: CellFigures, after: CellFigures, name: str) -> float:
    """The loss of the metric itself, in logarithms; 0 if a value is missing or not positive."""
    metric = all_metrics().get(metric_name(name))
    old, new = before.value(name), after.value(name)
    if metric is None or old is None or new is None or old <= 0 or new <= 0:
        return 0.0
    return math.log(old / new if metric.better == "higher" else new / old)


def _causes(
    name: str, lost: float, acceptance: Shift | None, step: Shift | None, round_: Shift | None
) -> Iterator[Cause]:
    """Causes of a metric's loss `lost`, if their share of it is above NAMED_SHARE."""
    base = metric_name(name)
    metric = all_metrics().get(base)
    if base == OUTPUT_TOKENS:
        yield Cause.TEXT
    elif base.startswith(_BEFORE_DECODING):
        yield Cause.PREFILL
    elif metric is None:
        return
    elif kind_of(metric) is MetricKind.MEMORY:
        yield Cause.MEMORY
    elif kind_of(metric) is MetricKind.COUNT:
        if base.startswith(_OF_ACCEPTANCE):
            yield Cause.ACCEPTANCE
    else:
        is_ratio = kind_of(metric) is MetricKind.RATIO  # relative to K = 0, whose time it excludes
        losses = {
            Cause.ACCEPTANCE: -acceptance.log if acceptance else 0.0,
            Cause.MACHINE: step.log if step and not is_ratio else 0.0,
            Cause.ROUND_TIME: round_.log if round_ else 0.0,
        }
        lost = max(lost, sum(max(0.0, loss) for loss in losses.values()))
        yield from (cause for cause, loss in losses.items() if loss > NAMED_SHARE * lost > 0)


def _slower(before: CellFigures, after: CellFigures, *, same_hardware: bool) -> Iterator[Shift]:
    """The parts of a round that got slower, if their share of the loss is large enough to name."""
    if same_hardware:
        shifts = [_shift(before, after, f"{part}_s") for part in ("draft", "verify", "other")]
    else:
        draft = _shift(before, after, "draft_cost_ratio", before.key.draft.k)
        shifts = [draft, _shift(before, after, "verify_cost_ratio")]
    known = [shift for shift in shifts if shift is not None]
    grown = sum(max(0.0, shift.after - shift.before) for shift in known)
    for shift in known:
        if shift.after - shift.before > NAMED_SHARE * grown > 0:
            yield shift


def _step(seconds: Shift | None, steps: Shift | None) -> Shift | None:
    if seconds is None or steps is None:
        return None
    return Shift(
        name="step",
        unit="s",
        before=seconds.before / steps.before,
        after=seconds.after / steps.after,
    )


def _shift(before: CellFigures, after: CellFigures, name: str, times: int = 1) -> Shift | None:
    old, new = before.value(name), after.value(name)
    if old is None or new is None:
        return None
    unit = "steps" if "ratio" in name or name == "break_even_length" else all_metrics()[name].unit
    short = name.removesuffix("_s").removesuffix("_cost_ratio")
    return Shift(name=short, unit=unit, before=times * old, after=times * new)
