"""What a model's modules would read of its files, built by transformers without weights.

torch and transformers cost seconds and 750 MB. A process that has them calls them, and any other
one asks a process of their own, which lives from the first question to the end of `asking`.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryFile
from threading import Thread
from typing import Any

from specbench.errors import ModelError, first_line
from specbench.files.head_files import Difference
from specbench.files.model import ModelFiles, unloadable_reason
from specbench.files.model_spec import ModelSpec
from specbench.library_facts import knows_model_type
from specbench.own_process import answer_stream, child_environment

LIMIT_S = 120.0  # per model; a first import of torch from a network disk takes a minute
SLOW_S = 2.0
_OF_MODELS = "specbench.models.tensor_difference"
_OF_HEADS = "specbench.drafters.{method}"  # such as mtp, which also has `tensor_difference`


class UnknownError(Exception):
    """The tensors could not be compared, and why; config and headers decide then."""


def loaded_difference(model: ModelFiles) -> Difference:
    """How the files of a whole model differ from what would be loaded. ModelError if transformers
    cannot build it, UnknownError."""
    if model.stored_format is not None and (reason := unloadable_reason(model)):
        raise UnknownError(reason)
    if model.needs_code and model.spec.trust_remote_code:
        raise UnknownError("its own Python (auto_map) would build it")
    if not knows_model_type(str(model.config.get("model_type"))):
        raise UnknownError("transformers is not installed, or does not know its model_type")
    return _asked(model, _OF_MODELS)


def require_head_tensors(head: ModelFiles, method: str) -> None:
    """Raises ModelError if a head's files differ from what its modules read; UnknownError if they
    cannot be compared."""
    _asked(head, _OF_HEADS.format(method=method))


def _asked(model: ModelFiles, module: str) -> Difference:
    spec = replace(model.spec, folder=model.folder)
    names = ("config.json", *{header.file.name for header in (model.tensors or {}).values()})
    stats = [(model.folder / name).stat() for name in sorted(names)]
    answer = _answer(module, spec, tuple((stat.st_size, stat.st_mtime_ns) for stat in stats))
    if "refused" in answer:
        raise ModelError(answer["refused"])
    if "unknown" in answer:
        raise UnknownError(answer["unknown"])
    return Difference(**{name: tuple(names) for name, names in answer.items()})


@cache
def _answer(module: str, spec: ModelSpec, _: tuple[tuple[int, int], ...]) -> dict[str, Any]:
    """A module's answer for files of these sizes and times: the fields of a Difference, or the
    error under `refused` or `unknown`."""
    if "torch" not in sys.modules:
        with asking() as process:
            return process.ask(module, spec)
    try:
        difference: Difference = import_module(module).tensor_difference(spec)
    except ModelError as error:
        return {"refused": str(error)}
    except Exception as error:
        return {"unknown": first_line(error)}
    return asdict(difference)


def answer_lines() -> None:
    """Answer each line of the standard input, a module and the fields of a ModelSpec, with one
    line."""
    answers = answer_stream()
    import_module("torch")
    for line in sys.stdin:
        question = json.loads(line)
        module, folder = question.pop("module"), Path(question.pop("folder"))
        answer = _answer(module, ModelSpec(**question, folder=folder), ())
        print(json.dumps(answer), file=answers, flush=True)


@contextmanager
def asking(tell: Callable[[str], object] = lambda _: None) -> Iterator["_Process"]:
    """Inside the block, all questions go to one process, which starts with the first of them. It
    reports what takes longer than SLOW_S."""
    global _current
    outer = _current
    _current = outer or _Process(tell)
    try:
        yield _current
    finally:
        if outer is None:
            _current.end()
        _current = outer


class _Process:
    """A process that has torch; it is started once, and not again if it fails."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._started: subprocess.Popen[str] | None = None
        self._answers: Queue[str] = Queue()
        self._errors = TemporaryFile()  # noqa: SIM115 - it is closed by `end`
        self._failure: str | None = None

    def ask(self, module: str, spec: ModelSpec) -> dict[str, Any]:
        """A module's answer for a model's folder; `unknown` if there is none in time."""
        if self._failure is None:
            process = self._started = self._started or self._start()
            assert process.stdin is not None
            question = {"module": module, "source": spec.source, "folder": str(spec.folder)}
            with suppress(OSError):  # it ended, and the queue says so
                print(json.dumps(question), file=process.stdin, flush=True)
            answer = self._wait(SLOW_S)
            if answer is None:
                self._tell(
                    f"building {spec.source} without weights in transformers, to compare its "
                    f"files with what would be loaded (at most {LIMIT_S:g} s)"
                )
                answer = self._wait(LIMIT_S - SLOW_S)
            if answer:
                parsed: dict[str, Any] = json.loads(answer)
                return parsed
            why = self._why(answer)
            self._failure = f"not tried, after {spec.source} failed: {why}"
            return {"unknown": why}
        return {"unknown": self._failure}

    def end(self) -> None:
        """End the process, if it was started."""
        if (process := self._started) is not None:
            process.kill()
            process.wait()
            self._reader.join()  # until the end of its output
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    assert pipe is not None
                    pipe.close()
        self._errors.close()

    def _start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import answer_lines; answer_lines()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=child_environment(),
        )
        self._reader = Thread(target=self._read, args=(process,), daemon=True)
        self._reader.start()
        return process

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _wait(self, seconds: float) -> str | None:
        try:
            return self._answers.get(timeout=seconds)
        except Empty:
            return None

    def _why(self, answer: str | None) -> str:
        if answer is None:
            return f"transformers did not build it within {LIMIT_S:g} s"
        assert self._started is not None
        code = self._started.wait()
        self._errors.seek(0)
        *_, last = self._errors.read().decode(errors="replace").strip().splitlines() or ["no error"]
        return f"the process with torch and transformers ended with code {code}: {last}"


_current: _Process | None = None
