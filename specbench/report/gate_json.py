"""A gate for machines; docs/json.md explains every key."""

from typing import Any

from pydantic_core import to_jsonable_python

from specbench.gate.attribution import Attribution
from specbench.gate.baseline import Snapshot
from specbench.gate.check import Gate
from specbench.gate.judging import FALSE_ALARM, Judgement
from specbench.report.gate_words import REFUSED, cause_text, headline

JSON_VERSION = 1


def gate_json(gate: Gate) -> dict[str, Any]:
    """One document; keys are added without a new version."""
    return {
        "schema_version": JSON_VERSION,
        "verdict": gate.verdict.value,
        "sentence": headline(gate),
        "false_alarm": FALSE_ALARM,
        "num_tests": gate.num_tests,
        "baseline": _side(gate.baseline),
        "candidate": _side(gate.candidate),
        "tolerances": {t.metric: t.share for t in gate.tolerances},
        "judgements": [_judgement(judgement) for judgement in gate.judgements],
        "attributions": [_attribution(found) for found in gate.attributions],
        "allowed": [d._asdict() for d in gate.allowed],
        "changes": [d._asdict() for d in gate.changes],
        "notes": list(gate.notes),
    }


def refusal_json(reason: str) -> dict[str, Any]:
    """The document where the two sides must not be compared, or one of them cannot be read."""
    return {"schema_version": JSON_VERSION, "verdict": REFUSED, "sentence": reason}


def _side(side: Snapshot) -> dict[str, Any]:
    found: dict[str, Any] = to_jsonable_python(
        {"runs": side.origins, "fingerprint": side.fingerprint}
    )
    return found


def _judgement(judgement: Judgement) -> dict[str, Any]:
    found: dict[str, Any] = to_jsonable_python(judgement)
    return {**found, "cell": judgement.cell.id}


def _attribution(found: Attribution) -> dict[str, Any]:
    document: dict[str, Any] = to_jsonable_python(found)
    before, after = found.curve
    return {
        **document,
        "cell": found.cell.id,
        "changes": [d._asdict() for d in found.changes],
        "curve": {"before": list(before), "after": list(after)},
        "sentence": cause_text(found),
    }
