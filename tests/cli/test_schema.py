"""`specbench schema`: every key of a command's JSON, with its unit and meaning."""

import json

import pytest
from jsonschema import Draft202012Validator

from specbench.doc import docs_of
from specbench.records import CellSummary
from tests.cli.calls import specbench
from tests.test_layering import DOCUMENTS


def rows(command, cwd):
    ran = specbench("schema", command, cwd=cwd)
    assert (ran.code, ran.err) == (0, "")
    header, *lines = (line.split("\t") for line in ran.out.splitlines())
    assert header == ["key", "unit", "meaning"]
    return {key: (unit, meaning) for key, unit, meaning in lines}, len(lines)


@pytest.mark.parametrize("command", DOCUMENTS)
def test_every_key_is_listed_once_with_its_meaning(command, tmp_path):
    keys, num_lines = rows(command, tmp_path)
    assert len(keys) == num_lines
    assert all(meaning for _, meaning in keys.values())
    schema = json.loads(specbench("schema", command, "--json", cwd=tmp_path).out)
    Draft202012Validator.check_schema(schema)
    named = {key.rpartition(".")[2] for key in keys}
    objects = [schema, *schema["$defs"].values()]
    assert named == {name for part in objects for name in part.get("properties", ())}


def test_keys_are_paths_through_lists_and_names(tmp_path):
    keys, _ = rows("run", tmp_path)
    assert keys["cells[].speedup"] == ("x", docs_of(CellSummary)["speedup"].meaning)
    assert {"cells[].speedup.low", "servers[].client[].cell_id", "decisions[].text"} <= keys.keys()
    assert keys["environment.gpu_memory_bytes"][0] == "bytes"


def test_commands_that_print_the_same_document_have_the_same_keys(tmp_path):
    assert rows("report", tmp_path) == rows("sweep-k", tmp_path) == rows("run", tmp_path)
    assert specbench("schema", cwd=tmp_path).out == specbench("schema run", cwd=tmp_path).out


def test_a_command_without_a_schema_is_refused_with_those_that_have_one(tmp_path):
    ran = specbench("schema doctor", cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert all(command in ran.err for command in DOCUMENTS)


def test_the_keys_fit_80_columns_on_a_terminal(tmp_path, monkeypatch):
    monkeypatch.setattr("specbench.cli.console.is_terminal", lambda **_: True)
    ran = specbench("schema verify", cwd=tmp_path)
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= 80
