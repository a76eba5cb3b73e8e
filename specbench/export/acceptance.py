"""The measured acceptance of a pairing as a file that other programs replay.

`importers/` reads both formats back, and defines their names.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import yaml

from specbench.errors import UsageError
from specbench.export.winner import Selection
from specbench.files.model_spec import ModelSpec
from specbench.importers.golden_lengths import DRAFT_MODEL, METADATA, MODE
from specbench.importers.speculation_profile import CHAIN, PER_K, SCHEMA_VERSION, TOLERANCE
from specbench.inputs.pairing import Pairing
from specbench.methods import find_method
from specbench.metrics.cell import CellData
from specbench.metrics.registry import number_of
from specbench.records import CellSummary, Interval, RunRecord
from specbench.stats.intervals import interval, log_ratio
from specbench.stats.rounds import conditional_rates, mean_length_from_rates
from specbench.words.answers import joined

FORMATS = ("speculation-profile", "golden")


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredAcceptance:
    """The cells of a pairing with a fixed K and valid acceptance in one setting."""

    pairing: Pairing
    cells: Mapping[int, CellSummary]  # by K, rising
    data: Mapping[int, CellData]  # empty for an imported run
    conditions: Mapping[str, Any]


def measured_acceptance(
    pairing: Pairing,
    run: RunRecord,
    summaries: Sequence[CellSummary],
    cells: Sequence[CellData],
    at: Selection,
) -> MeasuredAcceptance:
    """The selected cells of the first setting; UsageError if there are none, or if they are of
    several workloads."""
    measured = [
        cell
        for cell in summaries
        if cell.key.pairing == pairing.name
        and cell.key.draft.is_fixed
        and at.includes(cell.key.condition)
        and at.engine in (None, cell.key.condition.engine)
        and number_of(cell.metrics, "mean_acceptance_length") is not None
    ]
    bound = {cell.key: cell.client_bound for cell in cells}  # counts do not depend on the client
    valid = [c for c in measured if all(r == bound.get(c.key) for r in c.invalid_reasons)]
    if not valid:
        reasons = joined(dict.fromkeys(r for cell in measured for r in cell.invalid_reasons))
        raise UsageError(
            f"the run has no valid acceptance of {pairing.name} in this setting"
            f"{f' ({reasons})' if reasons else ''}; measure it with `specbench sweep-k`"
        )
    if len(workloads := sorted({cell.key.condition.workload for cell in valid})) > 1:
        raise UsageError(f"measured on {', '.join(workloads)}: name one of them with --workload")
    first = min((cell.key.condition for cell in valid), key=lambda c: c.order)
    chosen = {c.key.draft.k: c for c in valid if c.key.condition == first}
    return MeasuredAcceptance(
        pairing=pairing,
        conditions={
            "dataset": first.workload,
            "temperature": first.temperature,
            "concurrency": first.concurrency,
            "engine": first.engine,
            "dtype": first.dtype,
            "hardware": run.environment.processor,
            "run": run.run_id,
            "specbench": run.environment.specbench_version,
            "measured_at": run.environment.created_at,
        },
        cells=dict(sorted(chosen.items())),
        data={cell.k: cell for cell in cells if cell.key in {c.key for c in chosen.values()}},
    )


def _over_prompts(cell: CellData | None, *, when_drafted: bool) -> Interval | None:
    """The mean acceptance length with its interval; None if rounds are not counted by request."""
    rounds: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for request in cell.finished if cell else ():
        if (log := request.rounds) is not None:
            num = len(log) - log.num_drafted.count(0) * when_drafted
            num_accepted = sum(log.num_accepted)
        elif (counts := request.counts) is not None:
            num = (when_drafted and counts.num_drafting) or counts.num_rounds
            num_accepted = counts.num_accepted
        else:
            return None
        rounds[request.prompt_id] += num
        accepted[request.prompt_id] += num_accepted
    prompts = [prompt for prompt, num in rounds.items() if num]
    if not prompts:
        return None
    num_rounds = np.array([rounds[prompt] for prompt in prompts])
    emitted = num_rounds + np.array([accepted[prompt] for prompt in prompts])
    return interval(log_ratio([emitted], [num_rounds]))


def speculation_profile(measured: MeasuredAcceptance, k: int | None) -> dict[str, Any]:
    """Model Optimizer's profile of K; None: the deepest K. The format has no field for an
    interval, so it is one of the conditions."""
    lengths = {str(k): _length(cell) for k, cell in measured.cells.items()}
    k = max(measured.cells) if k is None else k
    if k not in measured.cells:
        raise UsageError(f"-k {k}: the run measured K={', '.join(lengths)}")
    figures, drafter = measured.cells[k].metrics, measured.pairing.drafter
    names = ("acceptance_rate_per_position", "acceptance_histogram")
    marginal, counts = (
        list(value) if isinstance(value := figures.get(name), tuple) else None for name in names
    )
    length = _over_prompts(measured.data.get(k), when_drafted=False)
    return {
        "schema_version": SCHEMA_VERSION,
        "measured": True,
        "producer": "specbench",
        "method": drafter.method,
        "draft_checkpoint": _model_names(drafter.model),
        "target_model": _model_names(measured.pairing.target.model),
        "num_speculative_tokens": k,
        "block_size": None,
        "max_supported_k": k,
        "verification_method": "longest_prefix",
        "conditional_accept_rates": marginal and list(conditional_rates(marginal)),
        "marginal_accept_rates": marginal,
        "mean_accept_length": lengths[str(k)],
        "mean_accept_length_per_request": number_of(figures, "mean_acceptance_length_per_request"),
        "accept_length_model": CHAIN if _is_chain(measured.pairing, k) else PER_K,
        "accept_length_by_k": lengths,
        "acceptance_length_histogram": counts
        and {str(i): int(num) for i, num in enumerate(counts, start=1)},
        "per_category": None,
        "measurement_conditions": {
            **measured.conditions,
            "num_samples": measured.cells[k].num_requests,
            "num_prompts": measured.cells[k].num_prompts,
            "mean_accept_length_95_interval": length and [length.low, length.high],
        },
        "validation": marginal and _validation(marginal, lengths[str(k)]),
    }


def _validation(marginal: Sequence[float], mean_length: float) -> dict[str, Any]:
    """The format's own checks: the rates imply the mean length, and they never rise."""
    implied = mean_length_from_rates(marginal)
    rises = [
        {"position": i, "value": rate, "previous": marginal[i - 1]}
        for i, rate in enumerate(marginal)
        if i and rate > marginal[i - 1] + 1e-9
    ]
    return {
        "mean_consistency": {
            "implied_mean_accept_length": implied,
            "reported_mean_accept_length": mean_length,
            "abs_delta": abs(implied - mean_length),
            "tolerance": TOLERANCE,
            "passed": abs(implied - mean_length) <= TOLERANCE,
        },
        "marginal_monotonicity": {"passed": not rises, "violations": rises},
    }


def golden_lengths(measured: MeasuredAcceptance, mode: str) -> str:
    """InferenceX's lengths for a thinking mode (on, off), with conditions and intervals in
    comments."""
    lengths = {k: _length(cell, "_when_drafted") for k, cell in measured.cells.items()}
    about = " | ".join(f"{k}: {v}" for k, v in measured.conditions.items())
    comments = ["acceptance length = 1 + accepted / rounds that drafted, by K", about]
    for k, cell in measured.data.items():
        length = _over_prompts(cell, when_drafted=True)
        if length is not None and length.low is not None and length.high is not None:
            comments.append(f"K={k}: 95% interval {length.low:.3f} to {length.high:.3f}")
    draft = _model_names(measured.pairing.drafter.model)
    body: dict[str, Any] = {METADATA: {DRAFT_MODEL: draft["id"]}} if draft else {}
    body = {**body, measured.pairing.target.name: {f"{MODE}{mode}": lengths}}
    return "".join(f"# {line}\n" for line in comments) + yaml.safe_dump(body, sort_keys=False)


def _length(cell: CellSummary, kind: str = "") -> float:
    length = number_of(cell.metrics, f"mean_acceptance_length{kind}")
    return length or number_of(cell.metrics, "mean_acceptance_length") or 1.0


def _is_chain(pairing: Pairing, k: int) -> bool:
    """Whether the pairing drafts token by token, so that a smaller K drafts the same tokens."""
    method, parameters = find_method(pairing.drafter.method), pairing.drafter.parameters
    is_chain = method.tree(method.settings(parameters)) is None
    return is_chain and method.shape(parameters, k).num_forwards == k


def _model_names(spec: ModelSpec | None) -> dict[str, str] | None:
    """A model's id with only its last two parts: a published file contains no paths."""
    if spec is None:
        return None
    about = {"id": "/".join(PurePath(spec.source).parts[-2:])}
    return {**about, "revision": spec.revision} if spec.revision else about
