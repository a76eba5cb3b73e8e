"""A run of schema 5 as it was stored before keys had two parts says what it said then."""

import json
from pathlib import Path
from typing import Any

from specbench.report.document import build_document
from specbench.report.document_json import to_json
from specbench.runs import load_run
from specbench.runs.codec import encode_run

RUNS = Path(__file__).parent / "runs_of_schema_5"
EXPECTED: dict[str, Any] = json.loads((RUNS / "expected.json").read_text())


WORDS = {"sentence", "reasons", "warnings"}  # for people, who are told better today
NEW_SETTINGS = {  # mostly of servers, which there were none of
    "prompt_field": None,
    "base_urls": [],
    "launch": None,
    "engine_python": None,
    "engine_args": [],
    "engine_version": None,
    "cycles": None,
    "prefix_cache": False,
    "start_timeout_s": 900.0,
    "kernels": "auto",
}
NEW_OF_ENGINES: dict[str, Any] = {"num_captures": None, "capture_s": None}
NEW_OF_ENGINES |= {"kernels": []}  # which there were no contests for
NEW_OF_ENGINES |= {"threads": None}
NEW_OF_MODELS = {"template_sha256": None, "template_clock": ""}
NEW_OF_ENVIRONMENT = {"node": None}  # of clusters


def facts(value: Any) -> Any:
    """Without words, and numbers without the digits that the order of a sum changes."""
    if isinstance(value, dict):
        return {name: facts(one) for name, one in value.items() if name not in WORDS}
    if isinstance(value, float):
        return float(f"{value:.12g}")
    return [facts(one) for one in value] if isinstance(value, list) else value


def with_new(then: dict[str, Any]) -> dict[str, Any]:
    return {
        **then,
        "settings": {**then["settings"], **NEW_SETTINGS},
        "environment": {**then["environment"], **NEW_OF_ENVIRONMENT},
    }


def test_it_has_the_cells_and_the_report_that_it_had() -> None:
    stored = load_run(RUNS / "sweep", RUNS)
    assert [key.id for key in stored.run.keys] == EXPECTED["ids"]
    found = json.loads(json.dumps(to_json(build_document(stored))))
    then = EXPECTED["report"]
    engines = [{**engine, **NEW_OF_ENGINES} for engine in then["engines"]]
    models = [{**model, **NEW_OF_MODELS} for model in then["models"]]
    then_with_new = {**with_new(then), "servers": [], "engines": engines, "models": models}
    for decision in (*found["decisions"], *then_with_new["decisions"]):
        if decision["num_speculative_tokens"] == 0:  # it quotes the best K today
            del decision["speedup"]
    assert facts(found) == facts(then_with_new)
    in_order = [list(cell) for cell in (*found["cells"], *found["decisions"])]
    assert in_order == [list(cell) for cell in (*then["cells"], *then["decisions"])]


def test_its_plan_is_stored_again_entry_for_entry() -> None:
    stored = load_run(RUNS / "sweep", RUNS)
    then = json.loads((RUNS / "sweep" / "run.json").read_bytes())
    now = {**with_new(then), "workload_prompts": {}}
    assert json.loads(encode_run(stored.run)) == now
