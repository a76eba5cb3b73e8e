"""`specbench export` of a run that measured the same engine: its own flags, release and figures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.report.document import build_document
from specbench.runs import StoredRun
from specbench.words.answers import decision_sentence
from tests.cli.calls import specbench
from tests.made_records import made_block
from tests.report.stored_runs import keep
from tests.served_sessions import Sweep, key_of, served_sweep
from tests.settings.flat_settings import changed

ONE_ROW = Sweep(rows=(1,))


def exported(
    stored: StoredRun, tmp_path: Path, *options: str, engine: str = "vllm"
) -> dict[str, object]:
    keep(tmp_path / "reports", "run", stored)
    arguments = ("export", "demo/draft", "--engine", engine, "--run", "run", "--json", *options)
    ran = specbench(*arguments, cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    document: dict[str, object] = json.loads(ran.out)
    return document


def test_a_configuration_measured_on_a_server_is_exported_as_started(tmp_path):
    stored = served_sweep(ONE_ROW)
    document = exported(stored, tmp_path)
    assert document["written_for"] == "0.32.1"
    assert '"num_speculative_tokens": 4' in document["command_line"]
    run, itself, *_ = document["conditions"]
    (sentence,) = document["basis"]
    assert (run["kind"], run["figures"]) == ("of_run", {"run_id": "run"})
    assert (itself["kind"], itself["figures"]) == ("with_flags", {"engine": "vllm 0.32.1"})
    assert sentence["text"] == decision_sentence(build_document(stored).decisions[0])


def test_user_arguments_of_the_engine_are_noted_in_an_export(tmp_path):
    stored = served_sweep(ONE_ROW)
    settings = changed(stored.run.settings, engine_args=("--max-num-seqs", "64"))
    document = exported(replace(stored, run=replace(stored.run, settings=settings)), tmp_path)
    arguments = {"arguments": "--max-num-seqs 64"}
    of_engine = [r["figures"] for r in document["conditions"] if r["kind"] == "more_arguments"]
    assert of_engine == [arguments]


def test_flags_of_a_running_server_are_not_known(tmp_path):
    document = exported(served_sweep(replace(ONE_ROW, is_attached=True)), tmp_path)
    itself = document["conditions"][1]
    assert (itself["kind"], itself["figures"]) == ("without_flags", {"engine": "vllm 0.32.1"})


@pytest.mark.parametrize(
    ("version", "options", "written_for"),
    [
        ("0.12.0", (), "0.33"),  # older than the exporter knows
        ("0.32.1", ("--engine-version", "0.31"), "0.31"),
    ],
)
def test_the_export_is_for_the_measured_release_if_known(tmp_path, version, options, written_for):
    document = exported(served_sweep(replace(ONE_ROW, version=version)), tmp_path, *options)
    assert document["written_for"] == written_for


def test_a_build_of_llama_cpp_is_read_without_its_commit(tmp_path):
    stored = served_sweep(replace(ONE_ROW, engine="llama_cpp", version="b9235-1a2b3c4"))
    document = exported(stored, tmp_path, engine="llama_cpp")
    assert "b9235" in document["written_for"]
    assert document["conditions"][1]["figures"] == {"engine": "llama_cpp b9235-1a2b3c4"}


def both_engines() -> StoredRun:
    """vLLM, whose best K is 4, and our own, whose best is 2."""
    there = served_sweep(replace(ONE_ROW, confirmed=None, ks=(4,)))
    ours = {k: key_of(k, engine="builtin") for k in (0, 2)}
    sessions = served_sweep(replace(ONE_ROW, confirmed=None, ks=(2,))).blocks[:2]
    blocks = []
    for base, drafted in zip(*(session.requests for session in sessions), strict=True):
        requests = (
            replace(base, cell_id=ours[0].id),
            replace(drafted, cell_id=ours[2].id, decode_s=drafted.decode_s / 3),
        )
        blocks.append(made_block(base.prompt_id, *requests, block_id=f"own {base.prompt_id}"))
    plans = tuple(replace(there.run.cells[0], key=key) for key in ours.values())
    run = replace(there.run, cells=(*plans, *there.run.cells))
    return replace(there, run=run, blocks=(*blocks, *there.blocks))


def test_an_export_uses_the_k_measured_on_the_exported_engine(tmp_path):
    stored = both_engines()
    ks = {d.condition.engine: d.draft.k for d in build_document(stored).decisions}
    assert ks == {"builtin": 2, "vllm": 4}
    there = exported(stored, tmp_path)
    assert '"num_speculative_tokens": 4' in there["command_line"]
    elsewhere = exported(stored, tmp_path / "other", engine="sglang")
    assert "with_flags" not in {reason["kind"] for reason in elsewhere["conditions"]}
    assert "2" in elsewhere["command"][elsewhere["command"].index("--speculative-num-steps") + 1]


@pytest.mark.parametrize(
    "objective", [("latency",), ("throughput",), ("cost", "--price-per-hour", "2")]
)
def test_recommend_works_on_runs_of_a_serving_engine(tmp_path, objective):
    keep(tmp_path / "reports", "run", served_sweep())
    options = ("recommend", "run", "--objective", *objective, "--json")
    ran = specbench(*options, cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    (pick,) = json.loads(ran.out)["picks"]
    best = pick["best"]
    assert (pick["engine"], best["num_speculative_tokens"]) == ("vllm", 4)
    rows = [c["concurrency"] for c in pick["candidates"]]
    assert set(rows) == {1, 4}
    # 4 concurrent users get more in total, and each of them less.
    assert best["concurrency"] == (1 if objective[0] == "latency" else 4)
