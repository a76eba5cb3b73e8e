"""A command plans once: `--dry-run` shows the cells, prompts and notes that run.json stores."""

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from specbench.bench import planning
from specbench.bench.machine import ThisMachine
from specbench.records import CellPlan, Kind
from specbench.runs import load_run
from specbench.words.answers import text
from tests.bench.served.running import running
from tests.bench.served.served_runs import FAKE
from tests.cli.calls import specbench
from tests.tiny_pair import PAIRINGS, TEMPLATE, write_pair

STRICT = (
    "{% if messages[0].role != 'user' %}{{ raise_exception('the user comes first') }}{% endif %}"
    + TEMPLATE
)
ROWS = [
    *({"id": f"p{i}", "prompt": f"Name river {i}"} for i in range(4)),
    {"id": "long", "prompt": "x" * 1100},
    {"id": "refused", "prompt": "Name a lake", "system": "Be brief"},
]
OPTIONS = ("-w", "rows.jsonl", "--max-new-tokens", "8", "--device", "cpu")
STARTED = (
    "--engine",
    "vllm",
    "--engine-command",
    shlex.join([sys.executable, str(FAKE), "{args}"]),
)
NOTES = ("1 of 6 prompts", "1 of 5 prompts")  # the long one, then the refused one


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny pair whose target refuses a system message, and prompts for which it is too small."""
    folder = tmp_path_factory.mktemp("plans")
    write_pair(folder)
    for name in ("target", "draft"):
        config = folder / name / "config.json"
        config.write_text(config.read_text().replace(": 256,", ": 1024,"))
    guess = "      guess: {method: lookahead, parameters: {ngram: 4}}\n"
    (folder / "pairings.yaml").write_text(PAIRINGS + guess)
    (folder / "target" / "chat_template.jinja").write_text(STRICT)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


class Planned:
    """What a command asked for to plan: workloads, and facts of running servers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        for name in ("load_workloads", "running_servers", "deepest"):
            monkeypatch.setattr(planning, name, self._counting(name, getattr(planning, name)))

    def _counting(self, name: str, function: Any) -> Any:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.asked.append(name)
            return function(*arguments, **options)

        return counted


def shown(cell: dict[str, Any]) -> tuple[Any, ...]:
    names = ("pairing", "workload", "method", "num_speculative_tokens", "engine")
    return (*(cell[name] for name in names), cell["num_prompts"], cell["num_repeats"])


def stored(plan: CellPlan) -> tuple[Any, ...]:
    at, draft = plan.key.condition, plan.key.draft
    what = plan.key.pairing, at.workload, draft.method, draft.k, at.engine
    return (*what, plan.num_prompts, plan.num_repeats)


def stop(*_: object) -> None:
    """Instead of measuring."""
    raise KeyboardInterrupt


def require_one_plan(
    words: tuple[str, ...],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    notes: tuple[str, ...],
    ks: set[int],
) -> None:
    """Fail unless the run stores the plan that is shown, which is made once."""
    dry = json.loads(specbench(*words, *OPTIONS, "--dry-run", "--json", cwd=folder).out)
    monkeypatch.setattr(ThisMachine, "measure", stop)
    planned = Planned(monkeypatch)
    shutil.rmtree(folder / "reports", ignore_errors=True)
    ran = specbench(*words, *OPTIONS, cwd=folder)
    assert ran.code == 130, ran.err
    run = load_run("latest", folder / "reports", also_empty=True).run
    assert [*map(shown, dry["cells"])] == [*map(stored, run.cells)]
    assert {cell["num_prompts"] for cell in dry["cells"]} == {len(ROWS) - 2}
    assert {cell["num_speculative_tokens"] for cell in dry["cells"]} == ks
    left_out = [w for w in run.warnings if w.kind in (Kind.NOTE, Kind.K_TOO_DEEP)]
    assert [warning["text"] for warning in dry["warnings"]] == [*map(text, left_out)]
    for note, expected in zip(dry["warnings"], notes, strict=True):
        assert expected in note["text"]
    assert planned.asked.count("load_workloads") == 1
    assert planned.asked.count("running_servers") == 1


@pytest.mark.parametrize(
    ("words", "notes", "ks"),
    [
        (("run", "tiny/draft", "-k", "2"), NOTES, {0, 2}),
        (("sweep-k", "tiny/guess"), (*NOTES, "K=4 or more"), {0, 1, 2, 3}),
        (("run", "tiny/guess", "-k", "2,7"), NOTES, {0, 2, 7}),  # as asked; the engine refuses 7
        (("sweep-k", "tiny/ngram", *STARTED), NOTES, {0, 1, 3, 5}),
        (("run", "tiny/ngram", "-k", "2", "--engine", "builtin,vllm", *STARTED[2:]), NOTES, {0, 2}),
    ],
    ids=["built-in", "default K", "too deep", "served", "both"],
)
def test_the_stored_plan_is_the_one_that_is_shown(
    words: tuple[str, ...],
    notes: tuple[str, ...],
    ks: set[int],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_one_plan(words, folder, monkeypatch, notes, ks)


def test_running_servers_are_asked_once_for_the_plan(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(0, 2) as servers:
        urls = [word for server in servers for word in ("--base-url", server.url)]
        words = ("run", "tiny/ngram", "--engine", "vllm", *urls)
        require_one_plan(words, folder, monkeypatch, NOTES, {0, 2})


def test_verify_plans_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = Planned(monkeypatch)
    few = ("--num-tokens", "100", "-k", "2", "--num-prompts", "2")
    ran = specbench(
        "verify", "tiny/ngram", *few, "--concurrency", "2", "--threads", "1", *OPTIONS, cwd=folder
    )
    assert ran.code in (0, 3), ran.err
    assert planned.asked.count("load_workloads") == 1
    for note in NOTES:
        assert note in ran.err
