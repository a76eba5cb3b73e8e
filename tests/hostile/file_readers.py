"""Readers of files that users and other tools write, and of our own files, which users may edit."""

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from unittest.mock import patch

from specbench.forecast.engine_costs import read_file
from specbench.forward import autotune
from specbench.gate.baseline import pool, read_baseline, write_baseline
from specbench.gate.check import check
from specbench.importers import import_files
from specbench.importers.imported_cell import ImportOverrides
from specbench.inputs.config import load_pairings
from specbench.inputs.workloads import load_workload
from specbench.records import Contender, KernelChoice
from specbench.report.document import build_document
from specbench.report.document_json import to_json
from specbench.report.markdown import to_markdown
from specbench.runs import list_runs, load_run, resume_run
from specbench.runs.codec import encode_line, encode_run
from tests.forecast.test_bench_results import SPECULATIVE
from tests.gate.gate_sides import cell, figure, side
from tests.hostile import mutations
from tests.hostile.mutations import Case, Make, Mutation
from tests.runs.stored_examples import ENVIRONMENT, FAILURE, TRACE
from tools.training.texts import TextFile, TrainingText

RESULTS = Path(__file__).parents[1] / "importers" / "files"
RUN = Path(__file__).parents[1] / "runs" / "stored_sweep" / "sweep"
PAIRINGS = b"""\
default: [big, big/copy]
defaults: {dtype: float32, num_speculative_tokens: 3}
targets:
  big:
    model: owner/big
    revision: "12"
    trust_remote_code: no
    weights_gib: 15.5
    note: >-
      Two
      lines
    drafters:
      small:
        method: draft_model
        model: 'owner/small'
        device_map: cuda:1
        lossy: {rule: typical}
      copy: {method: ngram, parameters: {max_ngram: 4}}
      "later": {method: suffix, parameters: {max_depth: 3, max_spec_factor: 1.5}}
"""
# A row of each set that prompts are published in.
ROWS: Mapping[str, Mapping[str, object]] = {
    "ours": {"id": "a", "turns": ["One", "Two é"], "system": "S", "template_args": {"x": -1.5}},
    "OpenAI chat": {"messages": [{"role": "user", "content": [{"type": "text", "text": "A"}]}]},
    "SPEED-Bench": {"question_id": 7, "messages": [{"role": "user", "content": "A"}]},
    "ShareGPT": {"conversations": [{"from": "human", "value": "A"}, {"from": "gpt", "value": "B"}]},
    "OpenAI batch": {"custom_id": "c", "url": "/v1/completions", "body": {"prompt": "A"}},
    "HumanEval": {"task_id": "t/1", "prompt": "def f():", "entry_point": "f"},
    "a plain list": {"prompt": "A", "category": "b", "prediction": "B"},
    "Alpaca": {"instruction": "Add", "input": "1, 2", "output": "3"},
    "GSM8K": {"question": "1 + 1?", "answer": "2"},
    "plain text": {"text": "A"},
}
TABLE = b"""\
engine: vllm 0.32.0
unit: ms
costs:
  - {tokens: 1, cost: 10}
  - {tokens: 4, cost: 12, draft: 2, overhead: 0.5}
  - {k: 3, cost: 16, concurrency: 8, mean_acceptance_length: 2.5}
"""
CSV = b"k, cost, unit, concurrency, engine\n0, 10, ms, 1, vllm\n3, 18.5, ms, 1, vllm\n"
BENCH = SPECULATIVE | {"itls": [[0.1, 0.2]]}


def one_file(name: str, content: bytes, mutated: Mutation, read: Callable[[Path], object]) -> Make:
    """A reader that is given only the file."""

    def make(folder: Path) -> Case:
        file = folder / name
        return Case(file=file, content=content, mutated=mutated, read=partial(read, file))

    return make


def _prompts(rows: object) -> bytes:
    return json.dumps(rows).encode() + b"\n"


def _card(folder: Path) -> Case:
    """A card of unchanged prompts."""
    text = _prompts(ROWS["ours"])
    (folder / "mine.jsonl").write_bytes(text)
    digest = hashlib.sha256(text).hexdigest()
    card = f"name: mine\ndescription: Two words\nlicense: MIT\nsha256: {digest}\n"
    content = f"{card}max_new_tokens: 64\nprompts: 1\n".encode()
    read = partial(load_workload, "mine", folder=folder)
    return Case(file=folder / "mine.yaml", content=content, mutated=mutations.yaml_file, read=read)


def _some_lines() -> list[bytes]:
    """Up to three lines of every kind in the run, and of the kinds that it lacks."""
    kinds: dict[bytes, list[bytes]] = {}
    for line in (RUN / "records.jsonl").read_bytes().splitlines(keepends=True):
        kinds.setdefault(line[:18], []).append(line)
    *rest, done = [line for lines in kinds.values() for line in lines[:3]]
    return [*rest, *map(encode_line, (FAILURE, TRACE, ENVIRONMENT)), done]


def _of_run(name: str, mutated: Mutation) -> Make:
    """Reads like `report` and `list runs`; a run that can be read can be resumed and written."""

    def make(folder: Path) -> Case:
        run = folder / "sweep"
        shutil.copytree(RUN, run)
        (run / "records.jsonl").write_bytes(b"".join(_some_lines()))

        def read() -> None:
            (listing,) = list_runs(folder)
            stored = load_run(run, folder)
            assert not listing.problem
            encode_run(stored.run)
            for record in (*stored.blocks, *stored.engines, *stored.models):
                encode_line(record)
            resume_run(folder, "sweep").close()
            document = build_document(stored)
            json.dumps(to_json(document), allow_nan=False)
            to_markdown([document])

        content = (run / name).read_bytes()
        return Case(file=run / name, content=content, mutated=mutated, read=read)

    return make


def _baseline(folder: Path) -> Case:
    file = folder / "baseline.json"
    now = side(cell({"decode_speedup": figure(2.0)}, texts={"p1": "aa"}), name="a")
    write_baseline(pool([now]), file)

    def read() -> None:
        check(read_baseline(file), now)

    return Case(
        file=file,
        content=file.read_bytes(),
        mutated=mutations.json_file,
        read=read,
        place="",  # one that can be read may be of other work
    )


def _kernel_choices(folder: Path) -> Case:
    """A file of the user's cache, which is made again if it is lost."""
    contender = Contender(name="sdpa", seconds=0.1)
    kept_choice = KernelChoice(key="a", subject="attention", chosen="sdpa", contenders=(contender,))
    with (
        patch.object(autotune, "_known", {}),
        patch.dict("os.environ", XDG_CACHE_HOME=str(folder)),
    ):
        autotune.keep_choice(kept_choice)
        file = next(folder.rglob("kernels.json"))

    def read() -> None:
        with (
            patch.object(autotune, "_known", {}),
            patch.dict("os.environ", XDG_CACHE_HOME=str(folder)),
        ):
            choice = autotune.find_choice("a")
            assert choice is None or encode_choice(choice)
            autotune.keep_choice(kept_choice)

    return Case(
        file=file,
        content=file.read_bytes(),
        mutated=mutations.json_file,
        read=read,
        refuses=False,
    )


def encode_choice(choice: KernelChoice) -> bytes:
    """The record as a run stores it."""
    from specbench.records import EngineRecord

    return encode_line(EngineRecord(target="t", engine="builtin", kernels=(choice,)))


def _texts(folder: Path) -> Case:
    file = folder / "texts.jsonl"
    origin = {"target_sha256": "abc", "seed": 0}
    TextFile(file, origin, 100).add([TrainingText((1, 2, 3), 1, is_held_out=True)])

    def read() -> None:
        TextFile(file, origin, 100)

    return Case(file=file, content=file.read_bytes(), mutated=mutations.json_lines, read=read)


def _results(name: str) -> Make:
    overrides = ImportOverrides(temperature=0.0, num_speculative_tokens=4, concurrency=1)

    def read(file: Path) -> None:
        for imported in import_files([file], overrides):
            encode_line(imported.record)

    kind = mutations.json_lines if name.endswith("l") else mutations.json_file
    return one_file(name, (RESULTS / name).read_bytes(), kind, read)


def _load(file: Path) -> None:
    load_workload(str(file))


LISTED = [{**row, "id": name} for name, row in ROWS.items() if "id" not in row and name != "GSM8K"]
READERS: dict[str, Make] = {
    "pairings.yaml": one_file("pairings.yaml", PAIRINGS, mutations.yaml_file, load_pairings),
    "a workload's card": _card,
    **{
        f"prompts of {name}": one_file("prompts.jsonl", _prompts(row), mutations.json_lines, _load)
        for name, row in ROWS.items()
    },
    "prompts in an array": one_file(
        "prompts.json", json.dumps(LISTED).encode(), mutations.json_file, _load
    ),
    "prompts in gzip": one_file(
        "prompts.jsonl.gz",
        gzip.compress(b"".join(map(_prompts, LISTED)), mtime=0),
        mutations.damaged,
        _load,
    ),
    "a table of costs": one_file("costs.yaml", TABLE, mutations.yaml_file, read_file),
    "a CSV of costs": one_file("costs.csv", CSV, mutations.counter_page, read_file),
    "costs of vllm bench": one_file(
        "bench.json", json.dumps(BENCH).encode(), mutations.json_file, read_file
    ),
    "run.json": _of_run("run.json", mutations.json_file),
    "records.jsonl": _of_run("records.jsonl", mutations.json_lines),
    "a baseline": _baseline,
    "kernel choices": _kernel_choices,
    "texts of a training": _texts,
    **{f"results, {file.name}": _results(file.name) for file in sorted(RESULTS.glob("*.json*"))},
}
