"""What holds of every file of engines/served/."""

import subprocess
import sys
from pathlib import Path

import pytest

from specbench.engines import served
from specbench.engines.served import ServedEngine, find_served
from specbench.errors import UsageError
from specbench.export.engines import engines
from specbench.settings.words import SERVED
from tests.engines.served.replay import start

EXPORTED = {
    "llama_cpp": ("llama-server", "--model", "here.gguf"),
    "sglang": ("python", "-m", "sglang.launch_server", "--model-path", "m"),
    "tensorrt_llm": ("trtllm-serve", "m"),
    "vllm": ("vllm", "serve", "m"),
}


def test_the_files_are_the_engines_that_can_be_named():
    shared = {"__init__", "asking", "counting", "served_engine"}
    files = {path.stem for path in Path(served.__file__).parent.glob("*.py")}
    assert files - shared == {*SERVED}


def test_engines_that_can_be_started_are_exported_to():
    assert {*SERVED} - {"openai"} == {*EXPORTED}
    assert {*EXPORTED} <= {*engines()}


@pytest.mark.parametrize("name", SERVED)
def test_each_has_all_of_the_protocol(name):
    engine = find_served(name)
    wanted = {*ServedEngine.__annotations__, "launch", "facts", "answer", "counts"}
    assert not {one for one in wanted if not hasattr(engine, one)}
    assert engine.HEALTH.startswith("/")


@pytest.mark.parametrize("name", sorted(EXPORTED))
def test_a_server_listens_on_loopback_and_the_user_has_the_last_word(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.gguf").touch()
    arguments = ("--port", "9", "--mine")
    mine = start(tmp_path, *EXPORTED[name], arguments=arguments)
    command = find_served(name).launch(mine).command
    assert command[-3:] == arguments
    place = command.index("--host")
    assert command[place : place + 4] == ("--host", "127.0.0.1", "--port", "8000")


def test_one_that_runs_already_cannot_be_started(tmp_path):
    with pytest.raises(UsageError, match="--base-url"):
        find_served("openai").launch(start(tmp_path))


def test_none_of_them_needs_torch():
    names = ", ".join(f"specbench.engines.served.{name}" for name in SERVED)
    script = f"import sys, {names}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert not {"torch", "transformers", "numpy"} & {*done.stdout.split()}, done.stderr
    assert "specbench.engines.served.vllm" in done.stdout
