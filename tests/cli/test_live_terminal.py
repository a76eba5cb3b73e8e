"""A run on a real terminal: its live view is drawn, and names on it stay plain."""

import os
import pty
import threading

from tests.bench.fake_runs import write_prompts
from tests.cli.calls import MEASURED
from tests.cli.sessions import session

ESCAPE, SHOWN_ESCAPE = b"\x1b", "\u241b".encode()
CLEAR_LINE = ESCAPE + b"[2K"


def seen_on_a_terminal(*arguments, cwd):
    """All that is written to it, and the exit code."""
    ours, theirs = pty.openpty()
    seen = bytearray()

    def read():
        try:
            while got := os.read(ours, 65_536):
                seen.extend(got)
        except OSError:
            pass  # nobody has it open any more

    reader = threading.Thread(target=read)
    reader.start()
    with session(*arguments, cwd=cwd, screen=os.ttyname(theirs)) as running:
        running.process.join()
        code = running.process.exitcode
    os.close(theirs)
    reader.join()
    os.close(ours)
    return bytes(seen), code


def test_the_live_view_shows_control_characters_of_a_name(tiny, tmp_path):
    prompts = write_prompts(tmp_path / "odd\x1b[31mname.jsonl", [f"prompt {i}" for i in range(5)])
    seen, code = seen_on_a_terminal(
        *("run", "tiny/draft", "-k", "2", "-w", prompts, "--num-prompts", "5"),
        *("--max-new-tokens", "4", "--threads", "1", "--device", "cpu"),
        cwd=tiny,
    )
    assert code in MEASURED, seen[-2000:]
    assert seen.count(CLEAR_LINE) > 2
    assert b"/?" not in seen  # before anybody can say of how many
    name = b"odd" + SHOWN_ESCAPE + b"[31mname"
    assert name in seen
    assert seen.count(SHOWN_ESCAPE) == seen.count(name)
    _, *lines = seen.decode().rpartition("report: ")[2].splitlines()
    assert " ".join(lines).strip().startswith("odd")
    assert 40 < max(map(len, lines)) <= 80  # broken between words
