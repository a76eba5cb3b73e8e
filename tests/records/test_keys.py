"""The id, file entries, words and order of a key."""

import json
from dataclasses import MISSING, fields, replace
from typing import Any

import pytest
from pydantic import ConfigDict, TypeAdapter, ValidationError

from specbench.records import Auto, CellKey, CellPlan, Condition, DraftConfig, Fixed
from specbench.records.keys import AXES, REQUIRED
from tests.cell_keys import BASE_KEY, KEY, cell_key, with_axes

# Each axis changed on its own from its value in KEY, and the id of that cell.
OTHERS: dict[str, tuple[Any, str]] = {
    "target": ("big", "big/draft|code|builtin|draft_model|k4|c1|t0|float32"),
    "drafter": ("poor", "demo/poor|code|builtin|draft_model|k4|c1|t0|float32"),
    "workload": ("chat", "demo/draft|chat|builtin|draft_model|k4|c1|t0|float32"),
    "engine": ("vllm", "demo/draft|code|vllm|draft_model|k4|c1|t0|float32"),
    "method": ("ngram", "demo/draft|code|builtin|ngram|k4|c1|t0|float32"),
    "num_speculative_tokens": (8, "demo/draft|code|builtin|draft_model|k8|c1|t0|float32"),
    "concurrency": (16, "demo/draft|code|builtin|draft_model|k4|c16|t0|float32"),
    "temperature": (0.7, "demo/draft|code|builtin|draft_model|k4|c1|t0.7|float32"),
    "dtype": ("bfloat16", "demo/draft|code|builtin|draft_model|k4|c1|t0|bfloat16"),
    "adaptive": (True, "demo/draft|code|builtin|draft_model|kauto|c1|t0|float32"),
    "context": (4096, "demo/draft|code|builtin|draft_model|k4|c1|t0|float32|x4096"),
    "request_rate": (2.5, "demo/draft|code|builtin|draft_model|k4|c1|t0|float32|r2.5"),
    "num_samples": (4, "demo/draft|code|builtin|draft_model|k4|c1|t0|float32|n4"),
    "request_settings": (
        "thinking on",
        "demo/draft|code|builtin|draft_model|k4|c1|t0|float32|thinking on",
    ),
    "variant": ("eager", "demo/draft|code|builtin|draft_model|k4|c1|t0|float32|veager"),
    "p_min": (0.6, "demo/draft|code|builtin|draft_model|k4|c1|t0|float32|p0.6"),
    "lossy": ("typical", "demo/draft|code|builtin|draft_model|k4|c1|t0|float32|lossy typical"),
}
PLAN = TypeAdapter(CellPlan | None, config=ConfigDict(extra="forbid", strict=True))


def plan(key: CellKey) -> CellPlan:
    return CellPlan(key=key, num_prompts=1, num_repeats=1)


def test_every_axis_is_in_the_id_and_is_read_back_from_a_file() -> None:
    assert {"pairing", *OTHERS} == set(AXES)
    ids = set()
    for name, (value, its_id) in OTHERS.items():
        key = cell_key(**{name: value})
        assert key.id == its_id
        assert key.flat[name] == value
        text = PLAN.dump_json(plan(key), warnings="error")
        assert json.loads(text)["key"] == key.flat
        assert PLAN.validate_json(text) == plan(key)
        ids.add(key.id)
    assert len(ids) == len(OTHERS)


def test_a_workload_is_named_with_its_request_settings() -> None:
    plain, other = KEY.condition, cell_key(workload="json").condition
    thinking = cell_key(request_settings="thinking on").condition
    assert thinking.brief == "code (thinking on)"
    assert thinking.distinct_parts([thinking, other], also="workload") == ("code (thinking on)",)
    assert thinking.distinct_parts([thinking, plain]) == ("with thinking on",)
    assert plain.distinct_parts([thinking, plain]) == ("without request settings",)
    assert thinking.without("workload") == plain.without("workload")
    assert thinking.label == plain.label


def test_every_field_of_a_cell_key_is_an_axis_with_its_default() -> None:
    paths = {axis.path: name for name, axis in AXES.items()}
    for part, place in ((Condition, "condition"), (DraftConfig, "draft")):
        names = {field.name for field in fields(part)} - {"length"}
        assert {paths[f"{place}.{name}"] for name in names} == names
        for field in fields(part):
            if field.name in names and field.default is not MISSING:
                assert AXES[field.name].default == field.default
            elif field.name in names:
                assert AXES[field.name].default is REQUIRED


@pytest.mark.parametrize(
    "wrong",
    [
        {"pairing": "demo/poor"},
        {"temperature": "0"},
        {"color": "red"},
    ],
)
def test_entries_that_do_not_fit_together_are_refused(wrong: dict[str, Any]) -> None:
    document = {"key": {**KEY.flat, **wrong}, "num_prompts": 1, "num_repeats": 1}
    with pytest.raises(ValidationError):
        PLAN.validate_json(json.dumps(document))


def test_k_0_of_every_drafter_is_the_same_baseline() -> None:
    assert BASE_KEY.draft is DraftConfig.none
    assert BASE_KEY.is_baseline
    assert with_axes(BASE_KEY, engine="transformers", method="generate").is_baseline
    assert not with_axes(BASE_KEY, engine="transformers", method="generate_static").is_baseline
    assert BASE_KEY.pairing == "demo"


def test_labels_name_every_axis_that_differs_from_its_default() -> None:
    auto = KEY.at(Auto(8))
    assert [key.draft.label for key in (BASE_KEY, KEY, auto)] == ["K=0", "draft K=4", "draft auto"]
    lossy = cell_key(lossy="typical", context=4096, request_rate=2.5, concurrency=8)
    assert lossy.draft.label == "draft (lossy) K=4"
    assert lossy.label == (
        "demo/draft (lossy) K=4 on code, up to 8 at once, 2.5 requests per second, context 4,096"
    )
    assert lossy.condition.label == (
        "demo, temperature 0, up to 8 at once, 2.5 requests per second, context 4,096, float32, "
        "builtin engine"
    )
    served = cell_key(engine="vllm", request_rate=2.5, concurrency=8)  # no limit by the client
    assert served.condition.requests == "2.5 requests per second"
    peer = cell_key(engine="transformers", method="assisted", temperature=0.7)
    assert peer.label == "demo/draft, assisted K=4 on code, temperature 0.7"


def test_drafts_and_conditions_are_sorted_by_their_axes() -> None:
    drafts = [replace(KEY.draft, length=x) for x in (Fixed(1), Fixed(4), Auto(2))]
    assert sorted(reversed(drafts), key=lambda draft: draft.order) == drafts
    axes = ({}, {"concurrency": 4}, {"context": 512}, {"temperature": 1.0}, {"engine": "vllm"})
    conditions = [cell_key(**changes).condition for changes in axes]
    assert sorted(reversed(conditions), key=lambda at: at.order) == conditions


def test_conditions_without_an_axis_are_equal_if_they_differ_only_in_it() -> None:
    single, many = KEY.condition, cell_key(concurrency=4).condition
    assert single.without("concurrency") == many.without("concurrency")
    assert single.without("workload") != many.without("workload")
    assert many.without("concurrency").label == "demo, temperature 0, float32, builtin engine"
