"""Rows to share: what a row contains, and what becomes of it in somebody else's import."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from specbench.cli.schema import json_schema
from specbench.errors import UsageError
from specbench.files.model_spec import ModelSpec
from specbench.importers import import_files
from specbench.importers.imported_cell import ImportedCell, ImportOverrides
from specbench.importers.specbench_row import COLUMNS, HASH_DIGITS, OTHER
from specbench.inputs.pairing import DrafterSpec, Pairing, Target
from specbench.inputs.stored_targets import stored_targets
from specbench.records import Interval, Kind, Reason, SpeedupVerdict
from specbench.report.document import Document, build_document
from specbench.report.rows import rows, table
from specbench.runs import StoredRun, load_run
from specbench.words.answers import text
from tests.cli.calls import specbench
from tests.gguf_files import write_gguf
from tests.report.stored_runs import SMALL, keep, stored_run
from tests.served_sessions import Sweep, served_sweep
from tests.settings.flat_settings import changed

VALIDATOR = Draft202012Validator(json_schema("row"))
MINIMAL = {
    **{"specbench_row": 1, "num_speculative_tokens": 3, "temperature": 0.0, "concurrency": 1},
    "speedup": {"estimate": 1.5, "low": 1.4, "high": 1.6},
}


def imported(tmp_path: Path, *shared: dict[str, Any]) -> tuple[ImportedCell, ...]:
    file = tmp_path / "theirs.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in shared))
    return import_files([file], ImportOverrides())


def unknown_of(cell: ImportedCell) -> list[str]:
    facts: Iterator[str] = (f for w in cell.record.warnings for f in w.figures.get("facts", ()))
    listed = [fact.removeprefix("unknown: ") for fact in facts if fact.startswith("unknown: ")]
    return listed[0].split(", ") if listed else []


def test_each_answer_has_a_row_with_its_figures_and_facts(cpu_document: Document) -> None:
    shared = list(rows(cpu_document))
    assert len(shared) == len(cpu_document.decisions) > 1
    cells = {cell.key: cell for cell in cpu_document.cells}
    for row, decision in zip(shared, cpu_document.decisions, strict=True):
        VALIDATOR.validate(json.loads(json.dumps(row, allow_nan=False)))
        assert row["verdict"] == decision.verdict
        assert row["num_speculative_tokens"] == decision.leader.draft.k
        assert decision.speedup is None or Interval(**row["speedup"]) == decision.speedup
        assert decision.end_to_end is None or Interval(**row["end_to_end"]) == decision.end_to_end
        rates = cells[decision.leader].metrics["acceptance_rate_per_position"]
        assert tuple(row["acceptance_rate_per_position"]) == rates
        assert (row["valid"], row["num_prompts"]) == (True, 6)
    first = shared[0]
    assert first["model"]["hash"] == f"weights:{'ab' * 32}"
    assert first["draft_model"]["name"] == f"demo:{first['drafter']}"
    assert (first["backend"], first["machine"]) == ("cpu", "Made-up CPU")
    assert first["engine_version"] == "specbench 0.1.0, torch 2.13.0"
    assert (first["kv_type"], first["context_limit"]) == ("float32", None)


def test_an_invalid_cell_says_so_in_its_row(gpu_document: Document) -> None:
    (decision, *_) = gpu_document.decisions
    invalid = next(c for c in gpu_document.cells if not c.valid and c.key.draft.k)
    about = replace(gpu_document, decisions=(replace(decision, leader=invalid.key),))
    (row,) = rows(about)
    assert (row["valid"], row["machine"]) == (False, "Made-up GPU")
    assert "thermal" in row["invalid_reasons"][0]


@pytest.mark.parametrize("kind", [Kind.NOTHING_VALID(), Kind.CONFIRMATION_INVALID(k=4)])
def test_an_answer_without_a_valid_measurement_says_so_in_its_row(
    cpu_document: Document, kind: Reason
) -> None:
    decision = replace(cpu_document.decisions[0], answer=(kind,), speedup=None)
    (row,) = rows(replace(cpu_document, decisions=(decision,)))
    assert (row["valid"], row["speedup"]) == (False, None)
    assert row["invalid_reasons"] == [text(kind)]


def with_gguf(stored: StoredRun, target: Path) -> Document:
    """The run as one of a GGUF target that drafts by its own n-grams."""
    key = stored.run.keys[-1]
    pairing = Pairing(
        target=Target(
            name=key.condition.target,
            model=ModelSpec(source=target.name, folder=target),
            drafters=(),
        ),
        drafter=DrafterSpec(name=key.draft.drafter, method="ngram"),
    )
    run = replace(stored.run, targets=stored_targets([pairing]))
    return build_document(replace(stored, run=run, models=()))


def test_a_served_row_has_the_build_and_what_the_server_reports(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "t.gguf")
    content = file.read_bytes()
    os.utime(file, (0, 0))
    stored = served_sweep(Sweep(engine="llama_cpp", version="b10919"))
    servers = [
        replace(s, command=("llama-server", "-ctk", "q8_0", "-m", "/home/me/t.gguf"), addresses=())
        for s in stored.servers
    ]
    servers = [replace(s, settings={"n_ctx": "4096"}) for s in servers]
    others = [
        replace(s, drafter="other", version="b2", session=f"{s.session}x", place=f"{s.place}x")
        for s in servers
    ]
    servers = [s if s.num_speculative_tokens else replace(s, version="b1") for s in servers]
    stored = replace(stored, servers=(*servers, *others))
    row = next(rows(with_gguf(stored, file)))
    VALIDATOR.validate(json.loads(json.dumps(row)))
    header = content[: len(content) - 300 * 34].rstrip(b"\0")
    ends = range(len(header), len(header) + 32)
    hashes = {f"gguf-header:{hashlib.sha256(content[:end]).hexdigest()}" for end in ends}
    assert row["model"]["hash"] in hashes
    assert (row["model"]["name"], row["model"]["quantization"]) == ("t.gguf", "Q8_0")
    assert row["draft_model"] == {"name": "none", "quantization": "none", "hash": "none"}
    assert (row["engine_version"], row["backend"]) == ("b10919", None)
    assert (row["kv_type"], row["context_limit"]) == ("q8_0 | f16", 4096)
    assert "/home/me" not in json.dumps(row)

    served = [replace(s, settings={"devices": "Vulkan0", "gguf_file": "Q4_K abc"}) for s in servers]
    row = next(rows(with_gguf(replace(stored, servers=tuple(served)), file)))
    known = {"name": "t.gguf", "quantization": "Q4_K", "hash": "gguf-header:abc"}
    assert (row["model"], row["backend"]) == (known, "vulkan")
    served = [replace(s, command=(*s.command, "-ngl", "0")) for s in served]
    assert next(rows(with_gguf(replace(stored, servers=tuple(served)), file)))["backend"] == "cpu"

    running = [replace(s, command=(), addresses=("http://there",)) for s in servers]
    row = next(rows(with_gguf(replace(stored, servers=tuple(running)), file)))
    assert (row["machine"], row["kv_type"]) == (None, None)


def test_the_hash_of_a_file_that_was_written_later_or_is_gone_is_unknown(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "t.gguf")
    os.utime(file, (4e9, 4e9))
    stored = served_sweep(Sweep(engine="llama_cpp"))
    assert next(rows(with_gguf(stored, file)))["model"]["hash"] is None
    file.unlink()
    unknown = {"name": "t.gguf", "quantization": None, "hash": None}
    assert next(rows(with_gguf(stored, file)))["model"] == unknown


def test_rows_of_others_become_one_comparison_with_their_intervals(tmp_path: Path) -> None:
    keep(tmp_path / "reports", "20261121-010203-a1b2", stored_run(SMALL))
    ran = specbench("report --row --json", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    mine = [json.loads(line) for line in ran.out.splitlines()]
    theirs = [row | {"machine": "RTX 4090", "run_id": "of-her"} for row in mine]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, mine + theirs)))
    ran = specbench("import rows.jsonl --json", cwd=tmp_path)
    assert ran.code == 0
    document = json.loads(ran.out)
    assert len(document["decisions"]) == 2 * len(mine)
    for row, decision in zip(mine + theirs, document["decisions"], strict=True):
        assert decision["speedup"] == row["speedup"]
        assert decision["end_to_end"] == row["end_to_end"]
        assert decision["verdict"] == row["verdict"]
        assert f"({row['machine']}, " in decision["variant"]
    assert [warning["kind"] for warning in document["warnings"]] == [Kind.THEIRS]
    (stored,) = {record.tool for record in load_run("latest", tmp_path / "reports").imported}
    assert stored == "specbench report --row"
    assert specbench("report", cwd=tmp_path).code in (0, 3)


def test_a_table_is_read_like_the_objects_it_shows(cpu_document: Document, tmp_path: Path) -> None:
    shared = [
        row
        | {"adaptive": row["workload"] == "code", "lossy": "typical, 0.3|x", "p_min": 0.75}
        | {"context_limit": 4096}
        for row in rows(cpu_document)
    ]
    page = tmp_path / "thread.md"
    lines = list(table(shared))
    page.write_text("\n".join(["Mine:", "", *lines[:3], "", "and", *lines[:2], *lines[3:], "end"]))
    assert len(lines) == len(shared) + 2
    of_table = import_files([page], ImportOverrides())
    of_objects = imported(tmp_path, *shared)
    for row, cell, exact in zip(shared, of_table, of_objects, strict=True):
        assert cell.key == exact.key
        draft = cell.key.draft
        assert (draft.is_adaptive, draft.k) == (row["adaptive"], row["num_speculative_tokens"])
        assert (draft.lossy, draft.p_min, draft.method) == (row["lossy"], 0.75, row["method"])
        stated, wanted = cell.record.stated, exact.record.stated
        assert stated is not None
        assert wanted is not None
        assert stated.num_prompts == wanted.num_prompts
        if wanted.speedup is not None:
            assert stated.speedup is not None
            assert stated.speedup.low == pytest.approx(wanted.speedup.low, abs=0.005)
        rates = exact.record.figures["acceptance_rate_per_position"]
        assert cell.record.figures["acceptance_rate_per_position"] == pytest.approx(rates, abs=5e-4)
        assert unknown_of(cell) == unknown_of(exact) == []
    assert f"weights:{'ab' * 32}"[: len("weights:") + HASH_DIGITS] in lines[2].split(" | ")


def test_what_a_row_lacks_is_unknown_and_never_no(tmp_path: Path) -> None:
    (cell,) = imported(tmp_path, MINIMAL)
    assert cell.key.condition.target == "unknown"
    stated = cell.record.stated
    assert stated is not None
    assert (stated.speedup, stated.end_to_end) == (Interval(estimate=1.5, low=1.4, high=1.6), None)
    assert stated.invalid_reasons == ()
    known = {"K", "temperature", "requests", "decode", OTHER}
    assert {*COLUMNS} - known <= {*unknown_of(cell)}
    assert {"dtype", "adaptive", "lossy"} <= {*unknown_of(cell)}
    page = tmp_path / "short.md"
    page.write_text("| K | temperature | requests | decode | run |\n|---|---|--:|:-:|--|\n"
                    "| 3 | 0 | 1 | 1.50x [1.40, 1.60] | r |\n")  # fmt: skip
    (short,) = import_files([page], ImportOverrides())
    assert short.record.stated == stated
    assert {*unknown_of(short)} == {*unknown_of(cell)} - {"run"}


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, SpeedupVerdict.FASTER),
        ({"valid": False, "invalid_reasons": ["the GPU was throttled"]}, SpeedupVerdict.UNDECIDED),
        ({"speedup": {"estimate": 1.5, "low": None, "high": None}}, SpeedupVerdict.UNDECIDED),
        (
            {"speedup": None, "valid": False, "invalid_reasons": ["client-bound"]},
            SpeedupVerdict.UNDECIDED,
        ),
    ],
)
def test_only_a_valid_row_with_an_interval_decides(
    tmp_path: Path, change: dict[str, Any], verdict: SpeedupVerdict
) -> None:
    (tmp_path / "row.json").write_text(json.dumps(MINIMAL | change))
    ran = specbench("import row.json --json", cwd=tmp_path)
    (decision,) = json.loads(ran.out)["decisions"]
    assert decision["verdict"] == verdict
    assert all(reason in decision["text"] for reason in change.get("invalid_reasons", ()))


def test_requests_within_limits_are_not_shared_as_a_speedup() -> None:
    stored = served_sweep()
    run = replace(stored.run, settings=changed(stored.run.settings, slo={"ttft_s": 0.2}))
    shared = [*rows(build_document(replace(stored, run=run)))]
    assert any(row["goodput"] for row in shared)
    for row in shared:
        VALIDATOR.validate(json.loads(json.dumps(row)))
        assert (row["limits"], row["speedup"], row["end_to_end"]) == ("ttft=200ms", None, None)


def test_a_synthetic_answer_is_not_valid_in_its_row(cpu_document: Document) -> None:
    decisions = tuple(replace(d, is_synthetic=True) for d in cpu_document.decisions)
    row = next(rows(replace(cpu_document, decisions=decisions)))
    assert not row["valid"]
    assert "simulated" in row["invalid_reasons"][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"specbench_row": 2}, "specbench_row: 1 is read, not 2"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens: expected K from 1 to 64"),
        ({"speedup": {"estimate": 1.5, "low": 1.6, "high": 1.7}}, "speedup.low: expected low"),
        ({"speedup": {"estimate": 0}}, "speedup.estimate: expected a ratio above 0"),
        ({"speedup": 1.5}, "speedup: expected an object"),
        ({"valid": "no"}, "valid: expected true, false or null"),
        ({"acceptance_rate_per_position": [81, 60]}, "expected shares from 0 to 1"),
        ({"temperature": None}, "does not say the temperature; give --temperature 0"),
        ({"model": {"name": ["x"]}}, "model.name: expected text"),
    ],
)
def test_an_impossible_row_is_refused_by_its_key(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        imported(tmp_path, MINIMAL | change)
    assert message in str(refused.value)
    assert "theirs.jsonl" in str(refused.value)


@pytest.mark.parametrize(
    ("table_text", "message"),
    [
        ("| K | decode | run |\n|---|---|---|\n| 3 | 1.5x |", "page.md:3: 2 cells below 3 headers"),
        ("| K | decode | run |\n|---|---|---|\n| 3 | fast | r |", "page.md:3: decode: 'fast'"),
        ("| K | decode | run |\n|---|---|---|\n| x | 1.5x | r |", "page.md:3: K: 'x'"),
        ("| K | decode | run |\n|---|---|---|", "no table with headers and a row"),
        ("no table", "no table with headers and a row"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "not a result file of a known tool"),
    ],
)
def test_a_broken_table_is_refused_by_its_line(
    tmp_path: Path, table_text: str, message: str
) -> None:
    page = tmp_path / "page.md"
    page.write_text(table_text)
    with pytest.raises(UsageError) as refused:
        import_files([page], ImportOverrides())
    assert message in str(refused.value)


def test_rows_with_one_key_that_differ_are_refused_and_equal_ones_count_once(
    tmp_path: Path,
) -> None:
    assert len(imported(tmp_path, MINIMAL, MINIMAL)) == 1
    with pytest.raises(UsageError, match="not a repeat"):
        imported(tmp_path, MINIMAL, MINIMAL | {"num_prompts": 7})


def test_a_run_without_an_answer_has_no_row(tmp_path: Path) -> None:
    base = replace(SMALL, ks=(0,), drafters=("draft",), is_complete=False)
    keep(tmp_path / "reports", "20261121-010203-a1b2", stored_run(base))
    ran = specbench("report --row", cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert "specbench sweep-k" in ran.err
    ran = specbench("report --row --open", cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")
