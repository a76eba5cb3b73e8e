import pytest

from specbench.engines.served_engine import find_served
from specbench.servers.server_log import (
    ARGUMENTS,
    COMMAND,
    DOWNLOAD,
    FILE,
    LONGEST_LINE,
    MEMORY,
    PORT,
    READ_BYTES,
    ServerLog,
)

ENGINES = ("vllm", "sglang", "tensorrt_llm", "llama_cpp", "openai")
# vLLM's output of a failure in a child process.
CORE = "(EngineCore pid=71) "
BELOW = f"""\
WARNING 11-25 16:00:00 [core.py:7] No module named 'vllm._C'
{CORE}ERROR 11-25 16:00:01 [core.py:100] EngineCore failed to start.
{CORE}ERROR 11-25 16:00:01 [core.py:100] Traceback (most recent call last):
{CORE}ERROR 11-25 16:00:01 [core.py:100]   File "core.py", line 5, in run
{CORE}ERROR 11-25 16:00:01 [core.py:100]     raise ValueError("CUDA out of memory")
{CORE}ERROR 11-25 16:00:01 [core.py:100] CAUSE
(APIServer pid=70) Traceback (most recent call last):
(APIServer pid=70)   File "server.py", line 9, in <module>
(APIServer pid=70) RuntimeError: Engine core initialization failed. See root cause above.
"""


def explained(tmp_path, text: str, status: int | None = 1, engine: str = "openai"):
    """The lines of the error: what happened, the cause, the remedy if there is one, the log."""
    (tmp_path / "server.log").write_text(text)
    log = ServerLog(tmp_path / "server.log", 0, find_served(engine).LOG)
    return str(log.explain("it ended", status)).splitlines()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("printed", "remedy"),
    [
        ("OSError: [Errno 98] Address already in use", PORT),
        ("MemoryError", MEMORY),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", MEMORY),
        ("ValueError: Invalid repository ID or local directory specified: 'a'", FILE),
        ("HFValidationError: Repo id must be in the form 'a/b'", FILE),
    ],
)
def test_a_common_cause_in_any_engines_log_has_its_remedy(tmp_path, engine, printed, remedy):
    lines = explained(tmp_path, f"loading\n{printed}\n", engine=engine)
    assert lines == ["it ended:", f"  {printed}", f"  {remedy}", f"  log: {tmp_path}/server.log"]


@pytest.mark.parametrize(
    ("engine", "printed", "cause", "remedy"),
    [
        (
            "vllm",
            "usage: serve [--a A]\n          [--out of memory]\nserve: error: unrecognized: --x\n",
            "serve: error: unrecognized: --x",
            ARGUMENTS,
        ),
        (
            "vllm",
            BELOW.replace("CAUSE", "RuntimeError: Cannot find any model weights with `tiny`"),
            "RuntimeError: Cannot find any model weights with `tiny`",
            DOWNLOAD,
        ),
        (
            "vllm",
            BELOW.replace(
                "CAUSE", "AssertionError: Synthetic acceptance not supported with CPU sampling"
            ),
            "AssertionError: Synthetic acceptance not supported with CPU sampling",
            "--simulate-acceptance",
        ),
        ("vllm", BELOW.replace("CAUSE", "vllm.errors.Riddle: odd"), "Riddle: odd", None),
        (
            "vllm",
            "Traceback (most recent call last):\n  File 'a'\n"
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            "  Value error, max_model_len (90) is greater than the derived max_model_len (10) [t]\n"
            "    For further information visit a page\n",
            "ValidationError: 1 validation error for ModelConfig Value error, max_model_len (90) "
            "is greater than the derived max_model_len (10) [t]",
            "--max-model-len",
        ),
        (
            "vllm",
            BELOW.replace(
                "CAUSE",
                "ValueError: Free memory on device cuda:0 (3.2/4.0 GiB) on "
                "startup is less than desired GPU memory utilization (0.9, 3.6 GiB).",
            ),
            "ValueError: Free memory on device cuda:0 (3.2/4.0 GiB) on startup is less than "
            "desired GPU memory utilization (0.9, 3.6 GiB).",
            "--gpu-memory-utilization",
        ),
        (
            "sglang",
            "[2026-11-25 16:00:00 TP0] Scheduler hit an exception: "
            "Traceback (most recent call last):\n  File 'a'\n"
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n\n"
            "[2026-11-25 16:00:01] Received sigquit from a child process. It usually means ..\n",
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            "--mem-fraction-static 0.95",
        ),
        (
            "tensorrt_llm",
            "Usage: trtllm-serve [OPTIONS]\nTry --help.\n\nError: No such option: --x\n",
            "Error: No such option: --x",
            ARGUMENTS,
        ),
        (
            "llama_cpp",
            "0.01.2 I load_model: loading\n0.02.5 E gguf_init_from_file: failed to open GGUF "
            "file 'a'\n0.02.9 E main: exiting due to model loading error\n",
            "gguf_init_from_file: failed to open GGUF file 'a'",
            "--model FILE",
        ),
        ("llama_cpp", "error: invalid argument: --x\n", "error: invalid argument: --x", ARGUMENTS),
        (
            "llama_cpp",
            "0.1 E start: couldn't bind HTTP server socket, port: 1\n0.2 E main: exiting\n",
            "start: couldn't bind HTTP server socket, port: 1",
            PORT,
        ),
    ],
)
def test_the_root_cause_is_found_in_a_server_log(tmp_path, engine, printed, cause, remedy):
    summary, cause_line, *more = explained(tmp_path, printed, engine=engine)
    assert (summary, cause_line) == ("it ended:", f"  {cause}")
    assert [remedy in line for line in more[:-1]] == ([True] if remedy else [])


@pytest.mark.parametrize("engine", ENGINES)
def test_an_unknown_log_is_explained_by_its_last_line_or_first_exception(tmp_path, engine):
    assert explained(tmp_path, "one\n  two\nthree\n\n", engine=engine)[1] == "  three"
    both = "".join(f"Traceback (most recent call last):\n  File\n{i}Error\n\n" for i in "AB")
    assert explained(tmp_path, f"{both}three\n", engine=engine)[1] == "  AError"


def test_a_logged_import_warning_is_not_taken_for_the_cause(tmp_path):
    warned = "WARNING 11-22 Failed to import from vllm._C: No module named 'vllm._C'\n"
    assert explained(tmp_path, f"{warned}a riddle\n", engine="vllm")[1:-1] == ["  a riddle"]
    assert explained(tmp_path, "python: No module named vllm\n")[2].endswith(COMMAND)


def test_a_known_cause_takes_precedence_over_the_exit_status(tmp_path):
    """vLLM ends with status 0 when its engine has failed."""
    failed = BELOW.replace("CAUSE", "AssertionError: Synthetic acceptance not supported with CPU")
    *_, remedy, _ = explained(tmp_path, failed, status=0, engine="vllm")
    assert "--simulate-acceptance" in remedy


@pytest.mark.parametrize(
    ("status", "advice"),
    [(0, "in the foreground"), (126, "cannot be run"), (127, "not found"), (137, "more memory")],
)
def test_an_exit_status_without_a_log_has_its_remedy(tmp_path, status, advice):
    _, cause, remedy, _ = explained(tmp_path, "nothing\n", status)
    assert cause == "  nothing"
    assert advice in remedy


def test_a_long_log_is_read_from_its_end_and_a_long_line_from_its_start(tmp_path):
    lines = explained(tmp_path, "out of memory\n" + "x" * READ_BYTES)
    assert lines[1:-1] == ["  " + "x" * LONGEST_LINE]


def test_the_reason_of_a_server_error_is_one_line(tmp_path):
    (tmp_path / "server.log").write_text("MemoryError\n")
    error = ServerLog(tmp_path / "server.log", 0).explain("it ended")
    assert error.reason == f"it ended: MemoryError; {MEMORY}"
    assert error.log == tmp_path / "server.log"


def test_a_traceback_that_is_cut_off_is_not_a_cause(tmp_path):
    text = 'ready soon\nTraceback (most recent call last):\n  File "a.py", line 5, in run\n'
    error = explained(tmp_path, f"ValueError: no such thing\n{text}")
    assert not any("File" in line and "a.py" in line for line in error[:1])
    whole = explained(tmp_path, f"{text}KeyError: 'a'\n")
    assert any("KeyError: 'a'" in line for line in whole)
