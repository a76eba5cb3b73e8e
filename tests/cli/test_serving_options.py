"""Options of servers: which are allowed together, and the exit codes of commands."""

import json
from types import SimpleNamespace

import pytest
import typer

from specbench.bench.expected_time import TOKENS_PER_S
from specbench.cli.checks import checked
from specbench.cli.measure import _show_plan, require_complete
from specbench.errors import ExitCode, UsageError
from specbench.inputs.config import load_pairings
from specbench.report.document import build_document
from tests.bench.served.running import running
from tests.bench.served.served_runs import MAX_NEW_TOKENS, settings_for
from tests.served_sessions import Sweep, served_sweep
from tests.settings.flat_settings import changed, settings_of

URL = "http://localhost:8000"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_urls": (URL,)}, "need a serving engine"),
        ({"cycles": 3}, "need a serving engine"),
        ({"engines": ("vllm",), "contexts": (128,)}, "--prompt-tokens needs the built-in decoder"),
        ({"engines": ("vllm",), "precision": 0.02}, "--margin-of-error needs the built-in decoder"),
        ({"engines": ("vllm", "sglang"), "base_urls": (URL,)}, "--base-url needs a single engine"),
        ({"engines": ("vllm",), "base_urls": (URL,), "launch": "vllm"}, "nothing"),
        ({"engines": ("vllm",), "base_urls": (URL,), "engine_python": "python"}, "nothing"),
        ({"engines": ("vllm",), "base_urls": (URL,), "engine_args": ("-x",)}, "nothing"),
        ({"engines": ("vllm",), "base_urls": (URL,), "engine_version": "0.30"}, "--engine-version"),
        (
            {"engines": ("vllm",), "base_urls": (URL,), "start_timeout_s": 9.0},
            "--startup-timeout would have nothing",
        ),
        ({"engines": ("vllm",), "num_repeats": 3}, "--repeats .* use --restart-cycles"),
        ({"engines": ("vllm",), "graph": "off"}, "--cuda-graph: needs the built-in decoder"),
        ({"engines": ("transformers",), "kernels": "plain"}, "--attention-backend: needs"),
        ({"costs": ("steps.csv",), "served_model_name": "m"}, "need a serving engine"),
        ({"costs": (URL,), "forecast": True, "cycles": 3}, "need a serving engine"),
        ({"engines": ("openai",)}, "--engine openai measures a running server"),
        ({"engines": ("vllm",), "base_urls": (f"{URL}#k=x",)}, "expected the server's K"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        checked(settings_of(pairings=("a/b",), workloads=(), **options))


@pytest.mark.parametrize(
    "options",
    [
        {"engines": ("vllm",), "launch": "vllm", "cycles": 3},
        {"engines": ("builtin", "vllm"), "base_urls": (f"{URL}#k=0", "http://gpu2:8000#k=4")},
        {"engines": ("vllm", "sglang")},
        {"engines": ("builtin", "vllm"), "num_repeats": 3, "forward": "stock"},
        {"costs": (URL,), "served_model_name": "m", "omit_fields": ("seed",), "forecast": True},
        {"engines": ("openai",), "base_urls": (URL,)},
        {"engines": ("llama_cpp",), "engine_args": ("--model", "b.gguf", "--draft-p-min", "0.5")},
    ],
)
def test_options_that_go_together_are_taken(options):
    settings = settings_of(pairings=("a/b",), workloads=(), **options)
    assert checked(settings) == settings


def code_of(check, document):
    try:
        check(document)
    except typer.Exit as left:
        return left.exit_code
    return 0


def test_a_session_that_was_lost_ends_with_code_4():
    whole = build_document(served_sweep())
    lost = build_document(served_sweep(Sweep(lost=((4, 3, 1),))))
    assert code_of(require_complete, whole) == 0
    assert code_of(require_complete, lost) == ExitCode.INCOMPLETE == 4
    cell = SimpleNamespace(metrics={"num_failed": 1})
    failed = SimpleNamespace(cells=[cell], failures=(), missing=())
    assert code_of(require_complete, failed) == ExitCode.INCOMPLETE


def test_a_dry_run_plans_the_k_that_running_servers_have(tmp_path, capsys):
    settings = settings_for(tmp_path, launch=None, cycles=3, num_speculative_tokens=None)
    pairings = load_pairings(tmp_path / "pairings.yaml").select(("big/lookup",))
    with running(0, 3) as servers:
        urls = tuple(server.url for server in servers)
        _show_plan(
            changed(settings, base_urls=urls), pairings, tmp_path, is_here=True, as_json=True
        )
        assert not any(server.engine.requests for server in servers)
    plan = json.loads(capsys.readouterr().out)
    assert [cell["num_speculative_tokens"] for cell in plan["cells"]] == [0, 3]
    (sessions,) = plan["sessions"]
    assert sessions["cycle"] == ["K=0", "lookup K=3", "lookup K=3", "K=0"]
    assert sessions["seconds"] == pytest.approx(3 * 4 * MAX_NEW_TOKENS * 7 / TOKENS_PER_S)
