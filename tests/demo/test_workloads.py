"""The bundled pair's own workloads: intact, different, and unseen in training."""

import hashlib
import json

import pytest
import yaml

from specbench.demo import WORKLOADS
from tools.demo.corpus import END, REGISTERS, SEED, training_conversations
from tools.demo.prompts import write_workloads


def lines(register: str) -> list[dict]:
    text = (WORKLOADS / f"{register}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("register", [*REGISTERS, "mixed"])
def test_the_checksum_and_the_count_are_those_of_the_file(register: str) -> None:
    about = yaml.safe_load((WORKLOADS / f"{register}.yaml").read_text(encoding="utf-8"))
    content = (WORKLOADS / f"{register}.jsonl").read_bytes()
    assert about["sha256"] == hashlib.sha256(content).hexdigest()
    assert about["prompts"] == len(lines(register)) == 40
    assert about["name"] == register


@pytest.mark.parametrize("register", [*REGISTERS, "mixed"])
def test_workload_prompts_and_ids_are_unique(register: str) -> None:
    rows = lines(register)
    assert len({line["turns"][0] for line in rows}) == len(rows)
    assert len({line["id"] for line in rows}) == len(rows)


@pytest.mark.parametrize("register", REGISTERS)
def test_workload_prompts_are_absent_from_training_conversations(register: str) -> None:
    trained = training_conversations(SEED, 0, 1500, (register,))
    seen = {conversation.turns[0][0] for conversation in trained}
    assert len(seen) > 1000
    assert not seen & {line["turns"][0] for line in lines(register)}


def test_the_prompts_of_mixed_are_those_of_code_and_chat_in_turn() -> None:
    rows = zip(lines("code"), lines("chat"), strict=True)
    shown = [line["turns"] for pair in rows for line in pair]
    assert [line["turns"] for line in lines("mixed")] == shown[:40]


@pytest.mark.long
@pytest.mark.slow
def test_the_shipped_workloads_are_what_the_script_writes(tmp_path) -> None:
    write_workloads(tmp_path, seed=SEED, trained_per_register=END)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (WORKLOADS / path.name).read_bytes()
