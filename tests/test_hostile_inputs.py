"""Whatever bytes a file holds, reading it works or raises a SpecbenchError."""

import gzip
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from specbench.errors import SpecbenchError
from specbench.inputs.config import load_pairings
from specbench.inputs.workloads import load_workload

PROMPTS = b"""\
{"id": "a", "turns": ["One", "Two \\u00e9"], "system": "S", "template_args": {"x": -1.5e3}}
{"question_id": 7, "messages": [{"role": "user", "content": "A"}], "tools": [{"name": "t"}]}
{"conversations": [{"from": "human", "value": "A"}, {"from": "gpt", "value": "B"}]}
"""
PAIRINGS = b"""\
default: [big, big/copy]
defaults: {dtype: float32, num_speculative_tokens: 3}
targets:
  big:
    model: owner/big
    revision: "12"
    trust_remote_code: no
    needs_gib: 15.5
    note: >-
      Two
      lines
    drafters:
      small:
        method: draft_model
        model: 'owner/small'
        device_map: cuda:1
      copy: {method: ngram, parameters: {max_ngram: 4}}
      "later": {method: suffix, parameters: {max_depth: 3, max_spec_factor: 1.5}}
"""
SPLINTERS = (
    *(b"\0", b"\xff", b"\n", b"\t", b"  ", b'"', b"'", b"{", b"}", b"[", b"]", b":", b",", b"-"),
    *(b"? ", b"| ", b"> ", b"&a ", b"*a ", b"!!x ", b"%", b"@", b"# ", b"<<: ", b"~", b"null"),
    *(b"\\ud800", b"\\U7fffffff", b"\xf0\x9f\x98\x80", b"\xe2\x80\xa8", b"9" * 5000, b"[" * 3000),
    *(b"NaN", b"1e999", b"-0", b"0x1f", b"1_0", b"1:30", b"2024-01-01", b"yes", b".inf", b"---"),
)


def damaged(content: bytes, rng: random.Random) -> bytes:
    """The content after one to four cuts, doublings and foreign splinters."""
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(content) + 1)
        end = min(len(content), start + rng.choice([0, 0, 1, 5, 40]))
        doubled = content[start:end] * 2
        middle = rng.choice([b"", doubled, rng.choice(SPLINTERS), rng.choice(SPLINTERS)])
        content = content[:start] + middle + content[end:]
    return content


def read_damaged(
    content: bytes, path: Path, read: Callable[[], object], num_trials: int
) -> list[str]:
    """The errors of damaged copies of readable content; other exceptions pass through."""
    path.write_bytes(content)
    read()
    errors = []
    for seed in range(num_trials):
        path.write_bytes(damaged(content, random.Random(seed)))
        try:
            read()
        except SpecbenchError as error:
            errors.append(str(error))
    return errors


@pytest.mark.slow
def test_a_damaged_pairings_file_is_read_or_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "pairings.yaml"
    errors = read_damaged(PAIRINGS, path, lambda: load_pairings(path), num_trials=200)
    assert 100 < len(errors) < 200
    assert all(error.startswith(f"{path}:") for error in errors)


def test_a_damaged_prompt_file_is_read_or_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    errors = read_damaged(PROMPTS, path, lambda: load_workload(str(path)), num_trials=600)
    assert 400 < len(errors) < 600
    assert all(error.startswith(f"{path}:") for error in errors)


def test_a_damaged_gzip_file_is_read_or_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl.gz"
    content = gzip.compress(PROMPTS, mtime=0)
    errors = read_damaged(content, path, lambda: load_workload(str(path)), num_trials=300)
    assert 200 < len(errors) < 300
    assert all(error.startswith(f"{path}:") for error in errors)


@pytest.mark.parametrize("depth", [10, 100, 400, 900, 1000, 1100, 10_000])
def test_nesting_of_any_depth_is_read_or_refused(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "x": ' + "[" * depth + "]" * depth + "}\n")
    with suppress(SpecbenchError):
        load_workload(str(path))
