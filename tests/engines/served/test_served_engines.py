"""Every file of engines/served/ has the protocol, and starts on loopback."""

import subprocess
import sys
from pathlib import Path

import pytest

from specbench.engines import served
from specbench.engines.served_engine import ServedEngine, find_served
from specbench.errors import UsageError
from specbench.settings import EXPORTED, OPENAI, SERVED
from tests.engines.served.replay import start
from tests.export.deployments import deployment, exported

STARTED = sorted({*SERVED} & {*EXPORTED})


def test_every_engine_file_is_a_selectable_engine():
    files = {path.stem for path in Path(served.__file__).parent.glob("*.py")}
    assert files - {"__init__"} == {*SERVED}


def test_only_a_running_server_of_any_kind_is_not_exported_to():
    assert {*SERVED} - {*EXPORTED} == {OPENAI}
    for name in STARTED:
        assert {"export", "vocabulary_notes", "CONFIG_NAME"} <= {*vars(find_served(name))}


@pytest.mark.parametrize("name", SERVED)
def test_every_served_engine_implements_the_protocol(name):
    engine = find_served(name)
    assert {*ServedEngine.__annotations__, "launch", "facts", "answer", "counts"} <= {*vars(engine)}
    assert engine.HEALTH.startswith("/")


@pytest.mark.parametrize("name", STARTED)
def test_a_server_listens_on_loopback_and_user_flags_come_last(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, command = ("--port", "9", "--mine"), exported(name, deployment("ngram", 0)).command
    for model in (word for word in command if word.endswith(".gguf")):
        (tmp_path / model).touch()
    mine = start(tmp_path, *command, arguments=arguments)
    command = find_served(name).launch(mine).command
    assert command[-3:] == arguments
    place = command.index("--host")
    assert command[place : place + 4] == ("--host", "127.0.0.1", "--port", "8000")


def test_an_openai_server_cannot_be_started_and_needs_base_url(tmp_path):
    with pytest.raises(UsageError, match="--base-url"):
        find_served(OPENAI).launch(start(tmp_path))


def test_no_served_engine_imports_torch():
    names = ", ".join(f"specbench.engines.served.{name}" for name in SERVED)
    script = f"import sys, {names}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert not {"torch", "transformers", "numpy"} & {*done.stdout.split()}, done.stderr
    assert "specbench.engines.served.vllm" in done.stdout
