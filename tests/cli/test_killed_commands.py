"""`kill -9` at random moments of commands, then `--resume`: nothing is lost, nothing doubled."""

import json
import math
import random
import shlex
import shutil
import sys
import time
from collections import Counter
from itertools import takewhile
from pathlib import Path

import psutil
import pytest

from specbench.bench.served.cycles import FIRST_CONFIRMING
from specbench.inputs.config import load_pairings
from specbench.metrics import aggregate
from specbench.metrics.aggregate import aggregate_run
from specbench.records import SESSIONS_PER_K
from specbench.report.document import build_document
from specbench.runs import load_run
from specbench.servers import traffic
from tests.bench.fake_runs import write_prompts
from tests.bench.served import fake_vllm
from tests.bench.served.running import running
from tests.cli.calls import specbench
from tests.cli.sessions import session
from tests.tiny_pair import write_pair

MAX_LINES = 10  # before a kill
LATE = 4  # the maximum of stored lines until the kill
MAX_DELAY_S = 0.05  # until the kill, in which no machine writes a whole report
PATIENCE_S = 300.0
TINY = ("--max-new-tokens", "4", "--threads", "1", "--device", "cpu")
COMMANDS = {
    "run": ("tiny/draft", "-k", "2", *TINY),
    "sweep-k": ("tiny/draft", "-k", "0..2", *TINY),
    "pair": (
        "./target",
        "--draft",
        "./draft",
        "--draft",
        "ngram",
        "-k",
        "1,2",
        "--measure-top",
        "1",
        *TINY,
    ),
}
SERVED_KS = (0, 2)
SERVED = ("sweep-k", "tiny/draft", "--engine", "vllm", "--warmup", "1", "--max-new-tokens", "16")
MAX_SESSION_S = 0.5  # a server's start, its warm-up and its requests: a kill comes within one


def stored_lines(root: Path) -> bytes:
    """The stored lines of the only run there, without a line that is cut short."""
    files = list(root.glob("*/records.jsonl"))
    assert len(files) < 2
    content = files[0].read_bytes() if files else b""
    return content[: content.rfind(b"\n") + 1]


def kill_in(arguments, cwd, root, num_lines, delay_s):
    """Run the command until it has stored this many more lines, and kill it a moment later.

    A few lines later it waits to be killed, so that no kill comes after the end of the run,
    however late this process sees the lines. Without `num_lines` it is killed after all
    measurements.
    """
    before = stored_lines(root).count(b"\n")
    most = None if num_lines is None else num_lines + LATE
    patience_ends_s = time.monotonic() + PATIENCE_S
    with session(*arguments, cwd=cwd, max_records=most) as running:
        while running.process.is_alive() and time.monotonic() < patience_ends_s:
            now = stored_lines(root)
            if num_lines is None and b'{"type":"done"' in now:
                break
            if num_lines is not None and now.count(b"\n") >= before + num_lines:
                break
            time.sleep(0.002)
        time.sleep(delay_s)
        running.process.kill()
        running.process.join()
        assert running.process.exitcode == -9, running.err.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "num_kills", "num_prompts"),
    [
        ("sweep-k", 1, 5),
        *(pytest.param(command, 14, 120, marks=pytest.mark.long) for command in COMMANDS),
    ],
)
def test_killed_commands_neither_lose_nor_repeat_a_stored_block(
    command, num_kills, num_prompts, tiny, tmp_path
):
    rng = random.Random(command)
    root, kept = tmp_path / "out", tmp_path / "kept.yaml"
    prompts = write_prompts(tmp_path / "many.jsonl", [f"prompt {i}" for i in range(num_prompts)])
    out = ("--runs-dir", str(root), *(("--output", str(kept)) if command == "pair" else ()))
    start = (command, *COMMANDS[command], "-w", prompts, "--num-prompts", str(num_prompts), *out)
    resume = (command, *(("./target",) if command == "pair" else ()), *out, "--resume")

    # Also while it starts, and finally while it writes its report.
    moments = [rng.randint(1, MAX_LINES) for _ in range(num_kills)]
    if num_kills > 3:
        moments[0] = moments[num_kills // 2] = 0
        moments[-1] = None
    stored = b""
    for num_lines in moments:
        delay_s = rng.uniform(0, MAX_DELAY_S)
        kill_in(resume if stored else start, tiny, root, num_lines, delay_s)
        now = stored_lines(root)
        assert now.startswith(stored)  # what was stored before a kill is there after the next
        stored = now
        is_complete = bool(stored) and load_run("latest", root, also_empty=True).is_complete
        assert is_complete == (num_lines is None)

    last = specbench(*resume, cwd=tiny)
    assert last.is_complete, last.err
    run = load_run("latest", root)
    assert stored_lines(root).startswith(stored)
    assert run.is_complete
    explored = [block for block in run.blocks if block.purpose == "explore"]
    counts = Counter(block.prompt_id for block in explored)
    assert counts == Counter(f"p{i}" for i in range(num_prompts))
    assert all(set(block.order) == set(explored[0].order) for block in explored)
    assert len({block.block_id for block in run.blocks}) == len(run.blocks)
    answered = {(r.prompt_id, r.turn) for r in run.references}
    assert len(answered) == len(run.references) == num_prompts
    if command == "pair" and "not written" not in last.err:
        assert load_pairings(kept).all


def wait_until_ended(engine):
    """Wait until no process has the engine's file among its arguments."""
    patience_ends_s = time.monotonic() + PATIENCE_S
    while left := [
        p for p in psutil.process_iter(["cmdline"]) if engine in (p.info["cmdline"] or ())
    ]:
        assert time.monotonic() < patience_ends_s, left
        time.sleep(0.02)


def served_requests(run, purpose="explore"):
    """How often each request counts in the analysis, with the tokens of its answer."""
    return Counter(
        (r.cell_id, r.prompt_id, r.turn, r.repeat, r.num_output_tokens)
        for cell in aggregate_run(run, purpose)
        for r in cell.requests
    )


def served_cells(run):
    """The prompts, requests and output tokens of each K in the report."""
    return {
        cell.key.draft.k: (
            cell.num_prompts,
            cell.num_requests,
            cell.metrics["num_output_tokens"],
        )
        for cell in build_document(run).cells
    }


def whole_cycles(run, cycles):
    """Sessions of the cycles of two K that are complete, each in only one of its attempts.

    A cycle with a missing session is measured again completely, a complete one never.
    """
    attempts = Counter((server.cycle, server.attempt) for server in run.servers)
    whole = [cycle for (cycle, _), num in attempts.items() if num == 2 * SESSIONS_PER_K]
    assert len(set(whole)) == len(whole)
    return set(whole).intersection(cycles)


def recommended(run):
    """K of each recommendation in the report."""
    return [decision.draft.k for decision in build_document(run).decisions]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_started", "num_kills"),
    [
        (True, 1),
        pytest.param(False, 10, marks=pytest.mark.long),
        pytest.param(True, 10, marks=pytest.mark.long),
    ],
)
def test_killed_served_runs_neither_lose_nor_repeat_a_session(is_started, num_kills, tmp_path):
    rng = random.Random(is_started)
    write_pair(tmp_path)
    config = tmp_path / "target" / "config.json"  # a context that holds prompts and a template
    config.write_text(
        json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 1024})
    )
    turns = [f"prompt {i}" for i in range(3)] + [["Say hello", "And again"]]
    prompts = write_prompts(tmp_path / "short.jsonl", turns)
    engine = str(shutil.copy(fake_vllm.__file__, tmp_path / "engine.py"))
    num_cycles = num_kills + 1  # a kill comes before the second cycle of a command at the latest
    root, whole = tmp_path / "out", tmp_path / "whole"
    resume = ("sweep-k", "--runs-dir", str(root), "--resume")

    with running(*(() if is_started else SERVED_KS)) as servers:
        urls = [word for server in servers for word in ("--base-url", server.url)]
        command = shlex.join([sys.executable, engine, "{args}"])
        server = ["-k", "0,2", "--engine-command", command] if is_started else urls
        start = (*SERVED, *server, "-w", prompts, "--restart-cycles", str(num_cycles))
        uninterrupted = specbench(*start, "--runs-dir", str(whole), cwd=tmp_path)
        assert uninterrupted.is_complete, uninterrupted.err

        # The first during the start, the last during the report; a single one after a whole cycle.
        between = [rng.randint(1, MAX_LINES) for _ in range(num_kills - 2)]
        moments = [0, *between, None] if num_kills > 1 else [MAX_LINES]
        stored = b""
        for num_lines in moments:
            arguments = resume if stored else (*start, "--runs-dir", str(root))
            delay_s = 0.0 if num_lines is None else rng.uniform(0, MAX_SESSION_S)
            kill_in(arguments, tmp_path, root, num_lines, delay_s)
            wait_until_ended(engine)
            now = stored_lines(root)
            assert now.startswith(stored)
            assert (b'{"type":"done"' in now) == (num_lines is None)
            stored = now
        last = specbench(*resume, cwd=tmp_path)
    assert last.is_complete, last.err
    assert stored_lines(root).startswith(stored)

    run = load_run("latest", root)
    num_requests = 5 * SESSIONS_PER_K * num_cycles  # one prompt has two turns
    requests = served_requests(run)
    assert requests == served_requests(load_run("latest", whole))
    assert set(requests.values()) == {1}
    assert len(requests) == len(SERVED_KS) * num_requests
    cells = served_cells(run)
    assert cells == served_cells(load_run("latest", whole))
    assert {cell[:2] for cell in cells.values()} == {(4, num_requests)}
    assert all(num_tokens > num_requests for *_, num_tokens in cells.values())
    assert len({block.block_id for block in run.blocks}) == len(run.blocks)
    assert whole_cycles(run, range(num_cycles)) == set(range(num_cycles))


@pytest.mark.long
def test_kills_while_a_served_winner_is_confirmed_keep_the_answer(tmp_path, monkeypatch):
    """Every command but the first starts from the same exploration, so the winner is the same."""
    monkeypatch.setattr(fake_vllm, "ROUND_S", 0.02)
    monkeypatch.setattr(traffic, "fmean", lambda _: 0.0)  # concurrent tests make it lag
    monkeypatch.setattr(aggregate, "MAX_CLIENT_LAG", math.inf)
    rng = random.Random(0)
    write_pair(tmp_path)
    prompts = write_prompts(tmp_path / "short.jsonl", [f"prompt {i}" for i in range(5)])
    root, whole = tmp_path / "out", tmp_path / "whole"
    resume = ("sweep-k", "--runs-dir", str(root), "--resume")
    with running(0, 2, 4) as servers:
        urls = [word for server in servers for word in ("--base-url", server.url)]
        start = (*SERVED, *urls, "-w", prompts, "--restart-cycles", "3", "--runs-dir", str(whole))
        uninterrupted = specbench(*start, cwd=tmp_path)
        assert uninterrupted.is_complete, uninterrupted.err
        lines = stored_lines(whole).splitlines(keepends=True)
        explored = list(takewhile(lambda line: b'"purpose":"confirm"' not in line, lines))
        assert len(explored) < len(lines), uninterrupted.out
        shutil.copytree(whole, root)
        next(root.glob("*/records.jsonl")).write_bytes(stored := b"".join(explored))

        # A cycle stores eight lines. The first kill comes before any, while the command starts.
        for num_lines in (0, 3, 9, 1, 8, 2):
            kill_in(resume, tmp_path, root, num_lines, rng.uniform(0, MAX_SESSION_S))
            now = stored_lines(root)
            assert now.startswith(stored)
            assert b'{"type":"done"' not in now
            stored = now
        last = specbench(*resume, cwd=tmp_path)
    assert last.is_complete, last.err
    assert stored_lines(root).startswith(stored)

    run, expected = load_run("latest", root), load_run("latest", whole)
    requests = served_requests(run, "confirm")
    assert requests == served_requests(expected, "confirm")
    assert set(requests.values()) == {1}
    assert len(requests) == 2 * 5 * SESSIONS_PER_K * 3  # of K = 0 and the winner, in three cycles
    assert served_cells(run) == served_cells(expected)
    assert recommended(run) == recommended(expected) == [4]
    confirming = range(FIRST_CONFIRMING, FIRST_CONFIRMING + 3)
    assert whole_cycles(run, confirming) == set(confirming)
    assert len({block.block_id for block in run.blocks}) == len(run.blocks)


@pytest.mark.long
def test_a_killed_report_leaves_whole_files_or_none(finished, tiny):
    assert finished.is_complete
    folder = load_run("latest", tiny / "reports").folder
    measured = (folder / "records.jsonl").read_bytes()
    began_s = time.monotonic()
    with session("report", cwd=tiny) as whole:
        whole.process.join(PATIENCE_S)
    took_s = time.monotonic() - began_s
    names = ("report.html", "report.md", "cells.csv")
    expected = {name: (folder / name).read_bytes() for name in names}
    rng = random.Random(0)
    for _ in range(8):
        for name in names:
            (folder / name).unlink(missing_ok=True)
        with session("report", cwd=tiny) as running:
            time.sleep(rng.uniform(0.3, 1.1) * took_s)
            running.process.kill()
            running.process.join()
        there = {path.name: path.read_bytes() for path in folder.iterdir() if path.name in names}
        assert there.items() <= expected.items()
        assert (folder / "records.jsonl").read_bytes() == measured
    assert specbench("report", cwd=tiny, in_full=True).code == 0
    assert {name: (folder / name).read_bytes() for name in names} == expected
