"""Runs that start servers: fake_vllm.py instead of vLLM."""

import json
import math
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from specbench.bench.benchmark import run_benchmark
from specbench.bench.cluster import RayCluster
from specbench.bench.plan import TargetPlan
from specbench.bench.planning import plan_run
from specbench.bench.served import running as session
from specbench.bench.served.running import RunningServer
from specbench.inputs.address import Address
from specbench.inputs.config import load_pairings
from specbench.runs import StoredRun
from specbench.servers import process as server_process
from specbench.servers import traffic
from specbench.servers.facts import Fact, ServerFacts
from specbench.settings import RunSettings
from tests.bench.fake_runs import write_prompts
from tests.bench.fakes import RecordingWatch
from tests.settings.flat_settings import changed, settings_of

MAX_NEW_TOKENS = 16
FAKE = Path(__file__).with_name("fake_vllm.py")
PAIRINGS = """\
targets:
  big:
    model: owner/big
    drafters:
      lookup: {method: ngram}
      small: {method: draft_model, model: owner/small}
      turn: {method: previous_turn}
"""
SIX = [f"prompt {i}" for i in range(5)] + [["Say hello", "And again"]]


def settings_for(folder: Path, **changes: Any) -> RunSettings:
    (folder / "pairings.yaml").write_text(PAIRINGS)
    settings = settings_of(
        command="sweep-k",
        pairings=("big/lookup",),
        workloads=(write_prompts(folder / "talk.jsonl", SIX),),
        num_speculative_tokens=(0, 2, 4),
        max_new_tokens=MAX_NEW_TOKENS,
        engines=("vllm",),
        cycles=2,
        launch=shlex.join([sys.executable, str(FAKE), "{args}"]),
        start_timeout_s=60.0,
    )
    return changed(settings, **changes)


def running_settings(folder: Path, *urls: str, **changes: Any) -> RunSettings:
    """Settings for servers that run already; their K are what they report."""
    running = {"launch": None, "num_speculative_tokens": None, "base_urls": urls}
    return settings_for(folder, **{**running, **changes})


def server_at(k: int, context: int | None = None) -> RunningServer:
    """A running server at K that reports its context."""
    return RunningServer(
        address=Address(root="http://a", k=k),
        facts=ServerFacts(version="1", model="big", context=context, k=Fact.read("#k", k)),
    )


def plan_of(folder: Path, running_ks: tuple[int, ...] = (), **changes: Any) -> TargetPlan:
    """The plan of the target `big`, of one pairing unless several are named."""
    settings = settings_for(folder, **changes)
    pairings = load_pairings(folder / "pairings.yaml").select(settings.workload.pairings)
    running = [server_at(k) for k in running_ks]
    (plan,) = plan_run(settings, pairings, running).targets
    return replace(plan, dtype="float32")


def measured(
    folder: Path,
    settings: RunSettings,
    watch: RecordingWatch | None = None,
    resume: str | None = None,
    cluster: RayCluster | None = None,
    longest_warm_up_s: float = 0.0,
) -> StoredRun:
    pairings = load_pairings(folder / "pairings.yaml").select(settings.workload.pairings)
    with (
        patch.object(session, "LONGEST_S", longest_warm_up_s),
        patch.object(traffic, "PAUSE_S", math.inf),  # a busy machine's leave requests out
    ):
        return run_benchmark(
            plan_run(settings, pairings),
            folder / "runs",
            watch or RecordingWatch(),
            resume=resume,
            cluster=cluster,
        )


def fake(
    monkeypatch: Any, folder: Path, faults: dict[int, str] | None = None, slowdown: float = 1.0
) -> None:
    """Set the behavior of the started servers; `faults` by start, from 1."""
    options = {
        "slowdown": slowdown,
        "state": str(folder / "starts"),
        "faults": {str(n): f for n, f in (faults or {}).items()},
    }
    monkeypatch.setenv("FAKE_VLLM", json.dumps(options))
    monkeypatch.setattr(server_process, "POLL_S", 0.01)  # healthy after 0.1 s


def servers_left(folder: Path) -> list[int]:
    """Processes of the fake that a run in this folder has started, and that still run."""
    pids = []
    for process in psutil.process_iter(["pid", "environ"]):
        options = (process.info["environ"] or {}).get("FAKE_VLLM", "")
        if str(folder) in options and process.pid != os.getpid():
            pids.append(process.pid)
    return pids
