"""Files of any size are read in pieces, with a limit on memory."""

import gzip
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.inputs import prompt_rows
from specbench.inputs.prompt_rows import read_rows
from specbench.inputs.workloads import PromptSample, load_workload
from specbench.records import Message, Prompt

ITEMS: list[object] = [
    {"prompt": 'brackets ] } [ { , and "quotes" and \\ in text'},
    {"prompt": "lines\nand é, 字", "more": [{"x": [1, 2, {}]}, []]},
    {"prompt": '\\\\"'},
    {},
    [],
    "text ]",
    -1.5e3,
    None,
]


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 64, 2**20])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_json_array_is_split_into_items_at_any_chunk_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, indent: int | None, pack
) -> None:
    monkeypatch.setattr(prompt_rows, "_PIECE_BYTES", piece_bytes)
    text = "\ufeff \n" + json.dumps(ITEMS, indent=indent, ensure_ascii=False) + " \n"
    path = tmp_path / "items.json"
    path.write_bytes(pack(text.encode()))
    rows = list(read_rows(path))
    assert [json.loads(content) for _, content in rows] == ITEMS
    assert [row.number for row, _ in rows] == list(range(1, len(ITEMS) + 1))
    starts = [text.encode().split(content)[0].count(b"\n") + 1 for _, content in rows[:3]]
    assert [row.line for row, _ in rows[:3]] == starts


def prompt(number: int, length: int) -> Prompt:
    return Prompt(id=str(number), turns=((Message(role="user", content="x" * length),),))


def test_a_sample_of_prompts_does_not_depend_on_their_order() -> None:
    rng = random.Random(0)
    many = [(prompt(i, rng.randrange(9_000)), f"{rng.getrandbits(64):x}") for i in range(300)]
    kept = []
    for _ in range(5):
        rng.shuffle(many)
        sample = PromptSample(most_characters=300_000)
        for candidate, sha256 in many:
            sample.add(candidate, sha256)
        kept.append({prompt.id for prompt in sample.prompts})
        assert len(kept[-1]) + sample.num_left_out == 300
    assert kept.count(kept[0]) == 5
    assert 40 < len(kept[0]) < 80
    lowest = sorted(many, key=lambda item: int(item[1], 16))[: len(kept[0])]
    assert kept[0] == {prompt.id for prompt, _ in lowest}


def test_a_file_that_is_too_large_to_hold_says_how_much_of_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PromptSample.__init__, "__defaults__", (20_000,))
    path = tmp_path / "many.json"
    path.write_text(json.dumps([{"prompt": f"{i} " + "x" * 1000} for i in range(50)]))
    workload = load_workload(str(path))
    assert 5 < len(workload.prompts) < 15
    numbers = [int(prompt.id) for prompt in workload.prompts]
    assert numbers == sorted(numbers)
    (note,) = workload.notes
    assert re.match(rf"many\.json: {len(numbers)} of 50 prompts .*0 MiB ", note)


LOADER = """
import resource, sys
from specbench.inputs.workloads import load_workload
workload = load_workload(sys.argv[1])
print(len(workload.prompts), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.parametrize(
    ("num_bytes", "max_growth"),
    [(2**22, 2**25), pytest.param(2**30, 2**28, marks=pytest.mark.long)],
)
def test_a_file_of_any_size_takes_as_much_memory_as_a_small_one(
    tmp_path: Path, num_bytes: int, max_growth: int
) -> None:
    """1 GB and more of prompts is read in less memory than its size."""

    def measure_sample(name: str, num_rows: int) -> tuple[int, int]:
        with (tmp_path / name).open("w") as file:
            for i in range(num_rows):
                file.write(json.dumps({"id": f"p{i}", "prompt": f"{i} " + "x" * 16_000}) + "\n")
        command = [sys.executable, "-c", LOADER, str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        num_prompts, peak = map(int, done.stdout.split())
        return num_prompts, peak

    _, small = measure_sample("small.jsonl", 10)
    num_prompts, large = measure_sample("large.jsonl", num_bytes // 16_000)
    assert num_prompts > 100
    assert large - small < max_growth
