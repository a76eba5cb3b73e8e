"""Commands as users type them, with their results and stores: `specbench` as a process."""

import csv
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import psutil

from specbench.metrics.aggregate import aggregate_run
from specbench.records import Reason, RequestRecord
from specbench.runs import StoredRun, load_run
from specbench.servers.process import LOOPBACK, free_port
from tests.real_engines.environments import GGUF, LLAMA_SERVER

K = 4
UNDECIDED = 3  # exit code: more measuring would decide
# A table for readers has as many prompts as the workloads' figures, the test fewer.
PROMPTS = 20 if os.environ.get("TABLE") else 5
WORKLOADS = ("code", "chat")
ASKED = ("-w", ",".join(WORKLOADS), "--num-prompts", str(PROMPTS))
_MARK = "SPECBENCH_PROOF"
# llama.cpp with one thread, and the same numbers whatever is drafted: other kernels and caches
# round otherwise.
EXACT = ("--threads", "1", "--flash-attn", "off", "--cache-type-k", "f32", "--cache-type-v", "f32")
PLAIN = (LLAMA_SERVER, "--model", "target.gguf", "--metrics", "--ctx-size", "1024")
DRAFTING = ("--model-draft", "draft.gguf", "--spec-type", "draft-simple", "--spec-draft-p-min", "0")
DRAFTING_K = (*DRAFTING, "--spec-draft-n-max", str(K), "--spec-draft-n-min", "0")


class CommandResult(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


def specbench(*arguments: str | Path, cwd: Path, **environment: str) -> CommandResult:
    """Run to the end; no process that it started is left then, whatever its parent is by now."""
    mark = uuid4().hex
    done = subprocess.run(
        [sys.executable, "-m", "specbench", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment, _MARK: mark},
        capture_output=True,
        text=True,
    )
    left = list(_marked(mark))
    assert not left, f"left behind: {left}"
    return CommandResult(done.returncode, done.stdout, done.stderr)


def _marked(mark: str) -> Iterator[str]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                yield f"{process.pid} {' '.join(process.cmdline())}"


@contextmanager
def process(
    command: Sequence[str | Path],
    log: Path,
    port: int | None = None,
    cwd: Path = GGUF,
    **environment: str,
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address of a server started by hand, and its process."""
    port = free_port() if port is None else port
    with log.open("wb") as stream:
        server = subprocess.Popen(
            [*command, "--host", LOOPBACK, "--port", str(port)],
            cwd=cwd,
            env={**os.environ, **environment},
            stdout=stream,
            stderr=stream,
        )
    try:
        yield f"http://{LOOPBACK}:{port}", server
    finally:
        server.terminate()
        server.wait()


class Sweep(NamedTuple):
    """A stored run with its reported figures, by drafter (none: K = 0), workload and K."""

    ran: CommandResult
    run: StoredRun
    cells: dict[tuple[str, str, int], dict[str, str]]

    def requests(self, drafter: str, workload: str, k: int) -> list[RequestRecord]:
        """All requests of one cell, of every session."""
        cell_id = self.cells[drafter, workload, k]["cell_id"]
        return [r for block in self.run.blocks for r in block.requests if r.cell_id == cell_id]


def sweep(*arguments: str | Path, cwd: Path, out: Path, **environment: str) -> Sweep:
    """`specbench ARGUMENTS --runs-dir OUT`, which ends with a decision or with none."""
    ran = specbench(*arguments, "--runs-dir", out, cwd=cwd, **environment)
    assert ran.code in (0, UNDECIDED), ran.out + ran.err
    run = load_run("latest", out)
    with (run.folder / "cells.csv").open() as table:
        rows = list(csv.DictReader(table))
    cells = {
        # The bundled target's own prompts are `demo code`.
        (r["drafter"], r["workload"].removeprefix("demo "), int(r["num_speculative_tokens"])): r
        for r in rows
    }
    return Sweep(ran, run, cells)


def faults_of_streams(engine: Sweep) -> list[Reason]:
    """Of any cell whose times cannot be those of decoding; a real engine has none."""
    return [cell.faulty_streams for cell in aggregate_run(engine.run) if cell.faulty_streams]


class Pairs(NamedTuple):
    """An engine's requests next to our decoder's, for requests with the same text in both."""

    num_texts: int  # of all its sessions
    num_equal: int
    rounds: int  # the engine's, over the equal ones
    accepted: int
    own_rounds: int  # ours, over the same ones
    own_accepted: int


def pair_with_builtin(engine: Sweep, builtin: Sweep, drafter: str, workload: str, k: int) -> Pairs:
    """An engine's counts and ours, summed over answers of the same ids."""
    ours = {(r.prompt_id, r.turn): r for r in builtin.requests(drafter, workload, k)}
    answers = engine.requests(drafter, workload, k)
    equal = [r for r in answers if r.output_ids == ours[r.prompt_id, r.turn].output_ids]
    logs = [ours[r.prompt_id, r.turn].rounds for r in equal]
    return Pairs(
        num_texts=len(answers),
        num_equal=len(equal),
        rounds=sum(r.counts.num_rounds for r in equal if r.counts),
        accepted=sum(r.counts.num_accepted for r in equal if r.counts),
        own_rounds=sum(len(log) for log in logs if log),
        own_accepted=sum(sum(log.num_accepted) for log in logs if log),
    )


def texts_other_than_without_speculation(
    engine: Sweep, drafter: str, k: int, workloads: Sequence[str] = WORKLOADS
) -> list[str]:
    """The requests whose ids differ from those of K = 0."""
    results = []
    for workload in workloads:
        plain: dict[tuple[str, int], tuple[int, ...]] = {}
        for r in engine.requests("none", workload, 0):
            plain.setdefault((r.prompt_id, r.turn), r.output_ids)
        results += [
            f"{drafter} K={k} {r.prompt_id} turn {r.turn}"
            for r in (
                *engine.requests("none", workload, 0),
                *engine.requests(drafter, workload, k),
            )
            if not r.output_ids or r.output_ids != plain[r.prompt_id, r.turn]
        ]
    return results


def print_table(engine: Sweep, builtin: Sweep, name: str, drafters: tuple[str, ...]) -> None:
    """Figures of both engines, side by side: of whole cells, and of requests with equal texts."""
    print(f"\n{name}, K={K}: rounds, mean acceptance length and equal texts, of all sessions")
    line = "{:8} {:6} {:>7} {:>9} {:>9} {:>9} {:>9}"
    print(line.format("drafter", "on", "rounds", "ours", "engine's", "builtin", "texts"))
    for drafter in drafters:
        for workload in WORKLOADS:
            theirs, ours = engine.cells[drafter, workload, K], builtin.cells[drafter, workload, K]
            same = pair_with_builtin(engine, builtin, drafter, workload, K)
            lengths = [
                theirs["mean_acceptance_length"],
                theirs["mean_acceptance_length_of_engine"],
                ours["mean_acceptance_length"],
            ]
            texts = f"{same.num_equal}/{same.num_texts}"
            shown = [f"{float(length):.4f}" for length in lengths]
            print(line.format(drafter, workload, theirs["num_rounds"], *shown, texts))
