"""Settings of requests: read from rows and cards, checked, and part of a workload's identity."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import WorkloadError
from specbench.inputs.workloads import Workload, load_workload
from specbench.records import RequestSettings

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
CARD = """\
name: own
description: text
license: Apache-2.0
sha256: {sha256}
max_new_tokens: 16
prompts: {prompts}
"""


def load(folder: Path, *rows: Mapping[str, Any], card: str | None = "", **options: Any) -> Workload:
    """The workload of these rows, with a card that ends in `card` unless it is None."""
    content = "".join(json.dumps({"id": str(i), **row}) + "\n" for i, row in enumerate(rows))
    (folder / "own.jsonl").write_text(content)
    if card is None:
        return load_workload(str(folder / "own.jsonl"), **options)
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    (folder / "own.yaml").write_text(CARD.format(sha256=sha256, prompts=len(rows)) + card)
    return load_workload("own", folder=folder, **options)


def test_a_row_has_its_own_settings_and_those_of_its_card(tmp_path: Path) -> None:
    card = 'request:\n  stop: ["\\n\\n"]\n  thinking: true\n  extra_body: {min_tokens: 3}\n'
    plain, changed = load(
        tmp_path,
        {"prompt": "A"},
        {"prompt": "B", "stop": "END", "thinking": False, "response_format": FORMAT},
        card=card,
    ).prompts
    every = {"extra_body": {"min_tokens": 3}}
    assert plain.settings == RequestSettings(stop=("\n\n",), thinking=True, **every)
    assert changed.settings == RequestSettings(
        stop=("END",), thinking=False, response_format=FORMAT, **every
    )
    assert plain.template_args == {"enable_thinking": True, "thinking": True}
    assert changed.template_args == {"enable_thinking": False, "thinking": False}


def test_template_arguments_of_a_row_win_over_its_settings(tmp_path: Path) -> None:
    row = {"prompt": "A", "thinking": True, "reasoning_effort": "low"}
    (prompt,) = load(tmp_path, {**row, "template_args": {"thinking": "brief"}}).prompts
    args = {"enable_thinking": True, "thinking": "brief", "reasoning_effort": "low"}
    assert prompt.template_args == args


def test_only_valid_request_settings_are_read_from_other_files(
    tmp_path: Path,
) -> None:
    rows = {"prompt": "A", "stop": ["x"], "thinking": "I think"}, {"prompt": "B", "thinking": True}
    first, second = load(tmp_path, *rows, card=None).prompts
    assert first.settings == RequestSettings(stop=("x",))
    assert second.settings == RequestSettings(thinking=True)


def test_a_text_response_format_is_no_setting(tmp_path: Path) -> None:
    (prompt,) = load(tmp_path, {"prompt": "A", "response_format": {"type": "text"}}).prompts
    assert prompt.settings == RequestSettings()


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ({"stop": []}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"thinking": "on"}, "thinking"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"tool_choice": "any", "tools": [{}]}, "tool_choice"),
        ({"tool_choice": "auto"}, "no tools"),
        ({"extra_body": {"seed": 1}}, "extra_body: seed"),
        ({"extra_body": {"stop": "x"}}, "extra_body: stop"),
        ({"extra_body": 1}, "extra_body"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_line(
    tmp_path: Path, row: Mapping[str, Any], key: str
) -> None:
    with pytest.raises(WorkloadError) as error:
        load(tmp_path, {"prompt": "A"}, {"prompt": "B", **row})
    assert str(error.value).startswith(f"{tmp_path / 'own.jsonl'}:2: ")
    assert key in str(error.value)


@pytest.mark.parametrize(
    "card", ["request: {stop: 1}\n", "request: {stops: [a]}\n", "request: 1\n"]
)
def test_a_wrong_setting_of_a_card_is_refused_with_its_line(tmp_path: Path, card: str) -> None:
    with pytest.raises(WorkloadError, match=r"own\.yaml:7: request"):
        load(tmp_path, {"prompt": "A"}, card=card)


def test_request_settings_can_be_ignored(tmp_path: Path) -> None:
    rows = {"prompt": "A", "stop": "x", "thinking": True}, {"prompt": "B", "stop": 1}
    card = "request: {thinking: true}\n"
    for prompt in load(tmp_path, *rows, card=card, without_settings=True).prompts:
        assert (prompt.settings, prompt.template_args) == (RequestSettings(), {})


def test_other_request_settings_change_the_hash_and_are_described(tmp_path: Path) -> None:
    rows = {"prompt": "A"}, {"prompt": "B", "response_format": FORMAT}
    plain, formatted, stopped, other = (
        load(tmp_path, *rows, **options)
        for options in (
            {"without_settings": True},
            {},
            {"card": "request: {stop: x}\n"},
            {"card": "request: {stop: y}\n"},
        )
    )
    assert (plain.settings_sha256, plain.request_settings) == ("", None)
    assert formatted.request_settings == "response_format in 1 of 2"
    assert stopped.request_settings == "stop, response_format in 1 of 2"
    hashes = {w.settings_sha256 for w in (plain, formatted, stopped, other)}
    assert len(hashes) == 4
    assert len({w.sha256 for w in (plain, formatted, stopped, other)}) == 1
