"""What to run for an objective, for machines."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pydantic_core import to_jsonable_python

from specbench.decide.objective import Candidate, Objective, Pick
from specbench.records import CellKey, Condition
from specbench.report.document import Document
from specbench.report.recommendation import (
    headline,
    is_untried,
    open_question,
    reasons,
    shared_picks,
    unanswered,
)

SCHEMA_VERSION = 1


def recommendation_json(
    document: Document,
    picks: Sequence[Pick],
    objective: Objective,
    *,
    workloads: Sequence[str] = (),
) -> dict[str, Any]:
    """The machine form: `picks`, each with its candidates, `shared` and `unanswered`."""
    document_json: dict[str, Any] = to_jsonable_python(
        {
            "schema_version": SCHEMA_VERSION,
            "run_id": document.run.run_id,
            "synthetic": document.run.settings.decoder.is_synthetic,
            "objective": asdict(objective) | {"unit": objective.unit},
            "picks": [
                {
                    "workload": one.condition.workload,
                    "target": one.condition.target,
                    **_setting_json(one.condition),
                    "sentence": headline(document, one, objective) + document.mark,
                    "is_untried": is_untried(document, one),
                    "is_undecided": open_question(document, one) is not None,
                    "best": _candidate_json(one.best, objective) if one.best else None,
                    "candidates": [_candidate_json(c, objective) for c in one.candidates],
                    "reasons": list(reasons(document, one)),
                }
                for one in picks
            ],
            "shared": [
                {
                    "target": shared.key.condition.target,
                    **_setting_json(shared.key.condition),
                    "best": _key_json(shared.key),
                    "regret": dict(shared.regret),
                }
                for shared in shared_picks(picks)
            ],
            "unanswered": unanswered(document, picks, workloads),
        }
    )
    return document_json


def _candidate_json(candidate: Candidate, objective: Objective) -> dict[str, Any]:
    counted = "requests" if objective.name == "goodput" else "tokens"
    return {
        **_key_json(candidate.key),
        "value": candidate.value,
        f"{counted}_per_s": candidate.rate,
        f"{counted}_per_s_low": candidate.cautious_rate,
        "broken_limits": list(candidate.broken),
    }


def _setting_json(at: Condition) -> dict[str, Any]:
    """What tells picks of one workload apart; the batch size is part of the answer."""
    answered = ("target", "workload", "concurrency")
    return {name: value for name, value in at.flat.items() if name not in answered}


def _key_json(key: CellKey) -> dict[str, Any]:
    first = ("pairing", "method", "num_speculative_tokens", "adaptive", "concurrency", "lossy")
    return key.entries(*first, without={*key.condition.flat, "drafter"} - {"concurrency"})
