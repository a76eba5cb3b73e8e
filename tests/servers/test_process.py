import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from specbench.errors import ServerError
from specbench.inputs.address import Address
from specbench.servers import process as process_module
from specbench.servers.client import Client
from specbench.servers.process import LOOPBACK, free_port, started
from tests.servers import fake_engine, starting_parent

pytestmark = pytest.mark.slow
PATIENCE_S = 60.0  # far more than any test needs


@pytest.fixture
def family(tmp_path):
    """The file of an engine's processes; the ones that a failed test leaves are killed."""
    file = tmp_path / "family"
    yield file
    for pid in file.read_text().split() if file.exists() else ():
        if psutil.pid_exists(int(pid)):
            os.kill(int(pid), signal.SIGKILL)


def command(**facts) -> list[str]:
    return [sys.executable, fake_engine.__file__, json.dumps(facts)]


@contextmanager
def engine(tmp_path: Path, *, grace_s: float = 0.1, **facts):
    log = tmp_path / "server.log"
    with started(command(**facts), environment={}, log=log, grace_s=grace_s) as process:
        yield process


def processes_of(family: Path) -> list[psutil.Process]:
    """The process ids of an engine, once it has them all."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not family.exists():
        assert time.monotonic() < give_up_at, "the engine has not started"
        time.sleep(0.01)
    return [psutil.Process(int(pid)) for pid in family.read_text().split()]


def left_of(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Remaining processes, including zombies."""
    return [process for process in processes if process.is_running()]


def is_dead(process: psutil.Process) -> bool:
    """Whether it ended or is a zombie: when an orphan is reaped depends on the machine."""
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def wait_until_dead(process: psutil.Process) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not is_dead(process):
        assert time.monotonic() < give_up_at, "the process is left behind"
        time.sleep(0.01)


def wait_until_healthy(process, port: int, path="/health", timeout_s=PATIENCE_S) -> None:
    async def wait() -> None:
        address = Address.at(f"http://{LOOPBACK}:{port}", "--base-url")
        async with Client(address) as client:
            await process.wait_until_healthy(client, path, timeout_s)

    asyncio.run(wait())


def fetch_page(port: int, path: str) -> dict:
    async def ask() -> dict:
        address = Address.at(f"http://{LOOPBACK}:{port}", "--base-url")
        async with Client(address) as client:
            return await client.json(address.root + path)

    return asyncio.run(ask())


@pytest.mark.parametrize("deaf", [False, True], ids=["asked", "killed"])
def test_a_server_serves_and_is_stopped_with_all_its_children(tmp_path, family, deaf):
    port = free_port()
    facts = {"port": port, "family": str(family), "deaf": deaf}
    with engine(tmp_path, grace_s=0.1 if deaf else PATIENCE_S, **facts) as process:
        wait_until_healthy(process, port)
        processes = processes_of(family)
        supervisor = processes[0].parent()
        assert len({p.pid for p in left_of(processes)}) == 4
        assert len({os.getsid(p.pid) for p in processes}) == 3
        # A Ctrl-C is only for us, and an engine that kills its own group spares the supervisor.
        assert len({os.getpgid(p.pid) for p in (supervisor, psutil.Process())}) == 2
        assert os.getpgid(processes[0].pid) == processes[0].pid

    assert not left_of([supervisor, *processes])
    assert (tmp_path / "server.log").read_text().split() == 4 * ["no" if deaf else "goodbye"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_stops_the_engine_and_propagates(tmp_path, family, error):
    processes = []

    def fail() -> None:
        with engine(tmp_path, family=str(family)):
            processes.extend(processes_of(family))
            raise error

    with pytest.raises(error):
        fail()
    assert len(processes) == 4
    assert not left_of(processes)


@contextmanager
def parent_of_a_deaf_engine(tmp_path, family, grace_s=0.1):
    facts = json.dumps({"family": str(family), "deaf": True})
    arguments = [facts, str(tmp_path / "server.log"), str(grace_s)]
    with subprocess.Popen(
        [sys.executable, "-m", starting_parent.__name__, *arguments],
        stderr=subprocess.DEVNULL,  # the traceback of a Ctrl-C
        cwd=Path(__file__).parents[2],
    ) as parent:
        yield parent


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_engine_process_outlives_its_parent(tmp_path, family, number):
    with parent_of_a_deaf_engine(tmp_path, family) as parent:
        processes = processes_of(family)
        supervisor = processes[0].parent()
        parent.send_signal(number)
        assert parent.wait(PATIENCE_S) == -number

    _, left = psutil.wait_procs(processes, PATIENCE_S)
    assert not left
    wait_until_dead(supervisor)


def test_the_supervisor_ends_the_engine_after_a_second_ctrl_c(tmp_path, family):
    with parent_of_a_deaf_engine(tmp_path, family, grace_s=1.0) as parent:
        processes = processes_of(family)
        parent.send_signal(signal.SIGINT)
        while "no" not in (tmp_path / "server.log").read_text():
            assert parent.poll() is None
            time.sleep(0.01)
        parent.send_signal(signal.SIGINT)
        assert parent.wait(PATIENCE_S) == -signal.SIGINT

    _, left = psutil.wait_procs(processes, PATIENCE_S)
    assert not left


def test_killing_the_supervisor_ends_the_engine(tmp_path, family):
    with engine(tmp_path, family=str(family)) as process:
        root = processes_of(family)[0]
        os.kill(root.ppid(), signal.SIGKILL)
        with pytest.raises(ServerError, match="SIGKILL"):
            process.require_running(PATIENCE_S)

        wait_until_dead(root)


def test_a_signal_to_the_supervisor_ends_the_engine(tmp_path, family):
    with engine(tmp_path, grace_s=PATIENCE_S, family=str(family)) as process:
        processes = processes_of(family)
        os.kill(processes[0].ppid(), signal.SIGTERM)
        with pytest.raises(ServerError, match="exit status 0"):
            process.require_running(PATIENCE_S)

        assert not left_of(processes)


def test_a_server_killed_in_mid_session_is_reported_and_its_children_end(tmp_path, family):
    port = free_port()
    with engine(tmp_path, port=port, family=str(family), says="all is well") as process:
        wait_until_healthy(process, port)
        process.require_running(0.0)
        processes = processes_of(family)
        processes[0].kill()
        with pytest.raises(ServerError) as ended:
            process.require_running(PATIENCE_S)

        assert not left_of(processes)

    message = str(ended.value)
    reason, _, remedy, log = message.splitlines()
    assert reason.endswith(" SIGKILL:")
    assert "--engine-args" in remedy
    assert log == f"  log: {tmp_path}/server.log"


def test_processes_that_do_not_end_are_named(tmp_path, family, monkeypatch):
    with engine(tmp_path, family=str(family)) as server:
        processes = processes_of(family)
        supervisor = processes[0].parent()
        supervisor.suspend()  # as if the system ignored the call
        monkeypatch.setattr(process_module, "KILL_S", 0.0)
        with pytest.raises(ServerError, match="do not end") as stopped:
            server.stop()
        assert all(str(process.pid) in str(stopped.value) for process in processes)
        supervisor.resume()
        monkeypatch.undo()
    assert not left_of(processes)


def test_a_port_in_use_is_reported_after_the_start(tmp_path):
    with (
        socket.create_server((LOOPBACK, 0)) as other,
        engine(tmp_path, port=other.getsockname()[1]) as process,
        pytest.raises(ServerError, match=r":\n  OSError: .*\n  .*port"),
    ):
        process.require_running(PATIENCE_S)


def test_another_server_on_the_port_is_not_mistaken_for_ours(tmp_path):
    port = free_port()
    with (
        engine(tmp_path, port=port) as other,
        started(command(status=1), environment={}, log=tmp_path / "ours.log") as ours,
    ):
        wait_until_healthy(other, port)
        with pytest.raises(ServerError, match="exit status 1"):
            ours.require_running(PATIENCE_S)
        with pytest.raises(ServerError, match="exit status 1"):
            wait_until_healthy(ours, port)


def test_a_server_that_never_gets_healthy_gives_an_error_with_its_log(tmp_path):
    port = free_port()
    expected = r"not healthy \(/health\) after 0\.2 s:\n  loading\n  log: .*server\.log$"
    with engine(tmp_path, port=port, health=503, says="loading") as process:
        wait_until_healthy(process, port, "/environment")
        with pytest.raises(ServerError, match=expected):
            wait_until_healthy(process, port, timeout_s=0.2)


def test_waiting_for_a_server_stops_when_its_process_ends(tmp_path):
    with (
        engine(tmp_path, says="RuntimeError: CUDA error: out of memory", status=1) as process,
        pytest.raises(ServerError, match=r"exit status 1:\n  RuntimeError.*\n.*more memory"),
    ):
        wait_until_healthy(process, free_port(), timeout_s=10 * PATIENCE_S)


def test_a_missing_engine_command_suggests_the_options(tmp_path):
    with (
        started(["no-such-engine"], environment={}, log=tmp_path / "server.log") as process,
        pytest.raises(ServerError, match=r"127:\n.*\n.*--engine-python.*--engine-command") as ended,
    ):
        process.require_running(PATIENCE_S)
    cause = str(ended.value).splitlines()[1].strip()
    assert cause.startswith("cannot start no-such-engine: ")


def test_the_engine_environment_adds_variables_and_removes_api_keys(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECBENCH_API_KEY", "s3cret")
    monkeypatch.setenv("SPECBENCH_API_KEY_127_0_0_1", "s3cret")
    monkeypatch.setenv("OURS", "ours")
    port = free_port()
    more = {"MORE": "more", "PYTHONHOME": "/nowhere"}  # no supervisor may stumble over the latter
    line = ["env", "-u", "PYTHONHOME", *command(port=port)]
    with started(line, environment=more, log=tmp_path / "folder" / "server.log") as process:
        wait_until_healthy(process, port)
        seen = fetch_page(port, "/environment")
    assert (seen["OURS"], seen["MORE"]) == ("ours", "more")
    assert "s3cret" not in seen.values()


def test_an_existing_log_is_continued_and_only_its_new_part_is_read(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("address already in use\n")
    with (
        engine(tmp_path, says="a riddle", status=3) as process,
        pytest.raises(ServerError, match=r"status 3:\n  .*riddle\n  log:"),
    ):
        process.require_running(PATIENCE_S)
    assert log.read_text() == "address already in use\na riddle\n"
