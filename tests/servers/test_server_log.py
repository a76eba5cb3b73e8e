import pytest

from specbench.servers.server_log import LONGEST_LINE, NUM_LAST, READ_BYTES, ServerLog

VLLM_MEMORY = (
    "(EngineCore_DP0 pid=7) ValueError: Free memory on device (3.2/4.0 GiB) on startup is less "
    "than desired GPU memory utilization (0.9, 3.6 GiB)."
)
VLLM_LAST = "RuntimeError: Engine core initialization failed. See root cause above."


def told(tmp_path, text: str, status: int | None = 1) -> str:
    (tmp_path / "server.log").write_text(text)
    return ServerLog(tmp_path / "server.log", 0).explain("it ended", status)


@pytest.mark.parametrize(
    ("printed", "advice"),
    [
        ("OSError: [Errno 98] Address already in use", "its port is taken"),
        ("start: couldn't bind HTTP server socket, hostname: 127.0.0.1", "its port is taken"),
        (VLLM_MEMORY, "more memory"),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction", "more memory"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "more memory"),
        ("gguf_init_from_file: failed to open GGUF file 'a.gguf'", "a file is missing"),
        ("ValueError: Invalid repository ID or local directory specified: 'a'", "is missing"),
        ("huggingface_hub.errors.HFValidationError: Repo id must be in the form", "is missing"),
        ("huggingface_hub.errors.LocalEntryNotFoundError: Cannot find a", "is missing"),
        ("python: No module named vllm", "--engine-python"),
    ],
)
def test_a_known_cause_is_quoted_and_says_what_to_do(tmp_path, printed, advice):
    first, *last = told(tmp_path, f"{printed}\n{VLLM_LAST}\n").splitlines()
    assert first.startswith(f"it ended; it printed `{printed}`; ")
    assert advice in first
    assert last == [f"  {printed}", f"  {VLLM_LAST}"]


def test_a_cause_that_engines_also_warn_of_gives_way_to_one_that_they_do_not(tmp_path):
    text = f"{VLLM_MEMORY}\nWARNING: No module named 'vllm._C'\n"
    assert "more memory" in told(tmp_path, text)


def test_what_was_printed_last_of_a_cause_is_quoted(tmp_path):
    said = told(tmp_path, "CUDA out of memory, trying again\nCUDA out of memory\n")
    assert "it printed `CUDA out of memory`; " in said


def test_of_an_unknown_cause_the_last_lines_are_shown_the_last_one_first(tmp_path):
    first, *last = told(tmp_path, "".join(f"line {i}\n\n" for i in range(100))).splitlines()
    log = tmp_path / "server.log"
    assert first == f"it ended; the last that it printed is `line 99`; the end of its log {log}:"
    assert last == [f"  line {i}" for i in range(100 - NUM_LAST, 100)]


def test_a_warning_of_a_part_that_is_missing_is_no_cause(tmp_path):
    warned = "WARNING 11-22 Failed to import from vllm._C: No module named 'vllm._C'\n"
    assert "--engine-python" not in told(tmp_path, f"{warned}RuntimeError: a riddle\n")
    assert "more memory" in told(tmp_path, warned, status=137)


@pytest.mark.parametrize(
    ("status", "advice"),
    [(0, "keep it in front"), (126, "cannot be run"), (127, "not found"), (137, "more memory")],
)
def test_an_exit_status_may_say_it_all(tmp_path, status, advice):
    assert advice in told(tmp_path, "nothing\n", status)


def test_of_a_long_log_the_end_is_read_and_of_a_long_line_the_beginning(tmp_path):
    said = told(tmp_path, "out of memory\n" + "x" * READ_BYTES)
    assert "out of memory" not in said
    assert said.splitlines()[1:] == ["  " + "x" * LONGEST_LINE]
