"""A pair padded to different sizes: plans report the behavior of each engine."""

import json
from pathlib import Path

import pytest

from tests.cli.calls import specbench
from tests.padded_pair import PADDING, ROWS, write_padded_pair

TARGET, DRAFT = f"{ROWS + PADDING:,}", f"{ROWS:,}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_padded_pair(tmp_path_factory.mktemp("padded"))


def test_pair_names_the_engines_that_do_something_special(folder: Path):
    ran = specbench("pair padded --draft draft --dry-run --json", cwd=folder)
    assert ran.code == 0, ran.err
    (drafter,) = json.loads(ran.out)["drafters"]
    notes = {f["field"]: f for f in drafter["findings"] if TARGET in f["reason"]}
    assert set(notes) == {"vllm", "sglang", "tensorrt_llm", "transformers"}
    assert "use_heterogeneous_vocab" in notes["vllm"]["reason"]
    equal = specbench("pair demo --draft draft --dry-run --json", cwd=folder)
    (drafter,) = json.loads(equal.out)["drafters"]
    assert not {"vllm", "sglang"} & {finding["field"] for finding in drafter["findings"]}


def test_a_plan_of_served_cells_states_what_the_engine_does(folder: Path):
    plan = ("run", "padded/draft", "-k", "4", "--dry-run", "--json", "--engine")
    ran = specbench(*plan, "vllm", cwd=folder)
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    (warning,) = (w["text"] for w in document["warnings"] if TARGET in w["text"])
    assert "use_heterogeneous_vocab" in warning
    assert {cell["num_speculative_tokens"] for cell in document["cells"]} == {0, 4}
    ran = specbench(*plan, "sglang", cwd=folder)
    assert ran.code == 2
    assert TARGET in ran.err
    assert DRAFT in ran.err


@pytest.mark.parametrize(("temperature", "code"), [("0", 0), ("0.7", 2)])
def test_a_plan_knows_what_an_engine_does_above_temperature_0(
    folder: Path, temperature: str, code: int
):
    plan = ("run", "padded/draft", "-k", "4", "--dry-run", "--engine", "tensorrt_llm")
    ran = specbench(*plan, "--temperature", temperature, cwd=folder)
    assert ran.code == code
    assert TARGET in ran.out + ran.err
