"""Real servers that are watched while their traffic changes, or their draft at a restart."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import cycle, islice
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from specbench.engines.served_engine import counter_pages
from specbench.servers.metrics_page import read_counters
from specbench.servers.process import free_port
from specbench.shipped import DEMO_WORKLOADS
from tests.real_engines.environments import MODELS, POOR, VLLM
from tests.real_engines.sweeps import DRAFTING_K, EXACT, PLAIN, K, process
from tests.real_engines.test_vllm import EAGER, ENVIRONMENT

pytestmark = pytest.mark.engines

# Before the change, and after it: llama.cpp answers 13 of them in a second.
REQUESTS = 80


def _llama_cpp(draft: str) -> tuple[Sequence[str | Path], dict[str, str]]:
    files = [POOR if draft == POOR.stem and word == "draft.gguf" else word for word in DRAFTING_K]
    return [*PLAIN, "--parallel", "1", *EXACT, *files], {}


def _vllm(draft: str) -> tuple[Sequence[str | Path], dict[str, str]]:
    drafting = {"model": str(MODELS / draft), "num_speculative_tokens": K, "method": "draft_model"}
    words = ["--speculative-config", json.dumps(drafting), *EAGER.split(), "--dtype", "float32"]
    serve = [VLLM, "-m", "vllm.entrypoints.openai.api_server", "--model", MODELS / "target"]
    return [*serve, "--served-model-name", "m", *words], ENVIRONMENT


ENGINES = {"llama_cpp": _llama_cpp, "vllm": _vllm}


@pytest.fixture(params=ENGINES.values(), ids=ENGINES)
def started(request) -> Callable[[str], tuple[Sequence[str | Path], dict[str, str]]]:
    return request.param


@pytest.mark.parametrize("trial", [1, 2])
def test_a_shift_of_traffic_is_named_within_twenty_requests(started, trial, tmp_path):
    command, environment = started("draft")
    with process(command, tmp_path / "log", **environment) as (root, _):
        _send(root, "code", 2, trial)
        with _watching(root, out := tmp_path / "lines"):
            _send(root, "code", REQUESTS, trial)
            changed_at = time.time()
            answered = _send(root, "chat", REQUESTS, trial)
    assert _requests_until_named(out, changed_at, answered) <= 20


@pytest.mark.parametrize("trial", [1, 2])
def test_a_draft_that_was_swapped_at_a_restart_is_named(started, trial, tmp_path):
    port = free_port()
    command, environment = started("draft")
    with process(command, tmp_path / "log", port, **environment) as (root, _):
        _send(root, "code", 2, trial)
        watching = _watching(root, out := tmp_path / "lines")
        watching.__enter__()
        _send(root, "code", REQUESTS, trial)
    changed_at = time.time()
    command, environment = started(POOR.stem)
    with process(command, tmp_path / "log", port, **environment) as (root, _):
        answered = _send(root, "code", REQUESTS, trial)
        watching.__exit__(None, None, None)
    assert _requests_until_named(out, changed_at, answered) <= 20


def test_llama_cpp_counts_the_rounds_of_a_request_as_it_ends(tmp_path):
    """So no request is in two batches, though this server counts no requests."""
    command, environment = _llama_cpp("draft")
    seen = []
    with process(command, tmp_path / "log", **environment) as (root, _):
        body = {"prompt": "def f(x):", "n_predict": 400, "stream": True, "ignore_eos": True}
        with urlopen(Request(f"{root}/completion", json.dumps(body).encode())) as stream:
            for i, _line in enumerate(stream):
                if i % 100 == 50:
                    seen.append(_num_drafts(root))
        time.sleep(0.5)
        at_end = _num_drafts(root)
    assert len(seen) > 2
    assert seen == [0.0] * len(seen)
    assert at_end > 20


def _num_drafts(root: str) -> float:
    page = urlopen(f"{root}/metrics").read().decode()
    rounds = read_counters(page, counter_pages()).num_rounds
    assert rounds is not None
    return rounds


@contextmanager
def _watching(root: str, out: Path) -> Iterator[None]:
    """While it is open, the server is watched; afterwards the lines are in `out`."""
    words = [sys.executable, "-m", "specbench", "watch", "--base-url", root, "--json"]
    with out.open("w") as stream:
        watch = subprocess.Popen([*words, "--every", "0.2s", "--for", "30m"], stdout=stream)
        try:
            time.sleep(5)  # the first reading
            yield
            time.sleep(2)  # the last one
            watch.terminate()
            watch.wait(timeout=60)
        finally:
            watch.kill()


def _requests_until_named(out: Path, changed_at: float, answered: Sequence[float]) -> int:
    """Requests that were answered from the change on until a line named it; no line before may.
    Lines begin in whole seconds."""
    lines = [*map(json.loads, out.read_text().splitlines())]
    assert lines[-1]["part"] == "summary"
    named = [line for line in lines if line["part"] == "window" and line["reasons"]]
    assert named
    print([reason["text"] for line in named for reason in line["reasons"]])
    ends = datetime.fromisoformat(named[0]["began_at"]).timestamp() + named[0]["seconds"]
    assert ends > changed_at - 1
    num_answered = sum(at <= ends for at in answered)
    print(f"after {num_answered} requests")
    return num_answered


def _send(root: str, workload: str, count: int, trial: int) -> list[float]:
    """Send so many prompts of a workload, one after the other; returns when each was answered."""
    rows = (DEMO_WORKLOADS / f"{workload}.jsonl").read_text().splitlines()
    prompts = [json.loads(row)["turns"][0] for row in rows]
    answered = []
    for prompt in islice(cycle(prompts), 7 * trial, 7 * trial + count):
        messages = [{"role": "user", "content": prompt}]
        body = {"model": "m", "messages": messages, "max_tokens": 96, "temperature": 0}
        request = Request(
            f"{root}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        for i in range(240):
            try:
                urlopen(request).read()
                break
            except (URLError, ConnectionError):  # not up yet
                if i == 239:
                    raise
                time.sleep(1)
        answered.append(time.time())
    return answered
