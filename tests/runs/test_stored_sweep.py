"""A stored run is read as it was measured."""

import json
from pathlib import Path
from typing import Any

from specbench.report.document import build_document
from specbench.report.document_json import to_json
from specbench.runs import load_run
from specbench.runs.codec import encode_run

RUNS = Path(__file__).parent / "stored_sweep"
EXPECTED: dict[str, Any] = json.loads((RUNS / "expected.json").read_text())


WORDS = {"sentence", "reasons", "warnings"}  # for people, who are told better today


def facts(value: Any) -> Any:
    """Without words, and numbers without the digits that the order of a sum changes."""
    if isinstance(value, dict):
        return {name: facts(one) for name, one in value.items() if name not in WORDS}
    if isinstance(value, float):
        return float(f"{value:.12g}")
    return [facts(one) for one in value] if isinstance(value, list) else value


def of_then(now: Any, then: Any) -> Any:
    """Without the keys that there were none of."""
    if isinstance(now, dict) and isinstance(then, dict):
        return {name: of_then(value, then[name]) for name, value in now.items() if name in then}
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        return [of_then(*pair) for pair in zip(now, then, strict=True)]
    return now


def test_a_stored_sweep_gives_the_same_cells_and_report_as_before() -> None:
    stored = load_run(RUNS / "sweep", RUNS)
    assert [key.id for key in stored.run.keys] == EXPECTED["ids"]
    then = EXPECTED["report"]
    found = of_then(json.loads(json.dumps(to_json(build_document(stored)))), then)
    for decision in (*found["decisions"], *then["decisions"]):
        if decision["num_speculative_tokens"] == 0:  # it quotes the best K today
            del decision["speedup"]
    assert facts(found) == facts(then)
    in_order = [list(cell) for cell in (*found["cells"], *found["decisions"])]
    assert in_order == [list(cell) for cell in (*then["cells"], *then["decisions"])]


def test_a_plan_is_stored_again_entry_by_entry() -> None:
    stored = load_run(RUNS / "sweep", RUNS)
    then = json.loads((RUNS / "sweep" / "run.json").read_bytes())
    del then["settings"]["compile"]  # of a removed option
    assert of_then(json.loads(encode_run(stored.run)), then) == then
