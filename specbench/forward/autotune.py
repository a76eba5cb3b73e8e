"""Chooses between implementations of the same work: the fastest correct one.

Correct means: near a reference at shapes that decoding has, as called and, if rounds are captured,
as replayed. Among those within 5% of the fastest the fixed order of the candidates decides, so that
noise seldom does. A choice is kept in this process, in a file of the user's cache folder, and in
the run's record: K = 0, every K, every drafter, later runs and a resumed run share it.
"""

import json
import os
import platform
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from specbench import __version__
from specbench.errors import ModelError
from specbench.models.library_errors import failure_reason
from specbench.models.library_output import report_progress
from specbench.records import Contender, KernelChoice
from specbench.whole_file import write_whole

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Run = Callable[[], object]
Results = tuple[Tensor, ...]
Work = Callable[[], Results]
# The name of the fastest, None if no candidate is right; and all candidates in the given order.
Outcome = tuple[str | None, list[Contender]]

MOST_TURNS = 5
MOST_READY_S = 120.0  # of one candidate; a compiler's first program takes half a minute
_ALL_TURNS_S = 1.0  # unless one turn takes longer
_MARGIN = 1.05


class KernelCandidate(NamedTuple):
    """Takes part with `run`, or does not for a reason; it took `ready_s` to get that far."""

    name: str
    run: Run | None
    failure: str | None = None
    ready_s: float = 0.0


class Timing(NamedTuple):
    """How work is timed here, and how it is captured; None: rounds are not captured."""

    seconds: Callable[[Run], float]
    captured: Callable[[Run], Run] | None = None


@torch.inference_mode()
def autotune(
    candidates: Mapping[str, Callable[[], Sequence[Work]]],
    reference: Sequence[Results],
    wrong: Callable[[Results, Results], str | None],
    timing: Timing,
) -> Outcome:
    """The fastest of the candidates whose results are not `wrong`.

    A candidate makes its work for each entry of the reference. One that raises has lost, with the
    reason: compilers and libraries raise exceptions of any class. DeviceLostError.
    """

    def prepared(name: str) -> KernelCandidate:
        run: Run | None = None
        failure: str | None = None

        def prepare() -> None:
            nonlocal run, failure
            try:
                works = zip(candidates[name](), reference, strict=True)
                runs = [_checked(work, expected, wrong, timing) for work, expected in works]
                run = partial(_run_all, runs)
            except Exception as error:
                failure = failure_reason(error)

        ready_s = timing.seconds(prepare)
        return KernelCandidate(name, run, failure, ready_s)

    return fastest([prepared(name) for name in candidates], timing)


def _checked(
    work: Work,
    expected: Results,
    wrong: Callable[[Results, Results], str | None],
    timing: Timing,
) -> Run:
    """The work, captured if rounds are; ModelError if its results are wrong, also those that it
    writes over spoiled ones: candidates may share their results' memory."""
    results: Results = ()

    def run() -> None:
        nonlocal results
        results = work()

    def check(how: str) -> None:
        if reason := wrong(results, expected):
            raise ModelError(f"{how}it is wrong: {reason}")

    run()
    check("")
    again = run if timing.captured is None else timing.captured(run)
    for result in results:
        result.fill_(torch.nan if result.is_floating_point() else 0)
    again()
    check("" if timing.captured is None else "replayed, ")
    return again


def _run_all(runs: Sequence[Run]) -> None:
    for run in runs:
        run()


def fastest(candidates: Sequence[KernelCandidate], timing: Timing) -> Outcome:
    """The fastest of the candidates that take part, timed in interleaved turns.

    One that raises while it is timed has lost. DeviceLostError.
    """
    failures = {c.name: c.failure for c in candidates if c.run is None}

    def turn() -> dict[str, float]:
        """Seconds of each that still takes part."""
        taken_s = {}
        for candidate in candidates:
            if candidate.name not in failures:
                try:
                    taken_s[candidate.name] = timing.seconds(cast("Run", candidate.run))
                except Exception as error:
                    failures[candidate.name] = failure_reason(error)
        return taken_s

    warm_s = turn()
    for candidate in candidates:
        # What it takes to run is not what it takes to get ready.
        if candidate.name in warm_s and candidate.ready_s - warm_s[candidate.name] > MOST_READY_S:
            failures[candidate.name] = (
                f"it took more than {MOST_READY_S:g} s to compile and to run for the first time"
            )
    warm = sum(taken_s for name, taken_s in warm_s.items() if name not in failures)
    num_turns = min(max(int(_ALL_TURNS_S / max(warm, 1e-9)), 1), MOST_TURNS)
    turns = [turn() for _ in range(num_turns)]
    names = [candidate.name for candidate in candidates]
    medians = {
        name: median(taken_s[name] for taken_s in turns) for name in names if name not in failures
    }
    contenders = [
        Contender(name=name, seconds=medians.get(name), refusal=failures.get(name))
        for name in names
    ]
    limit = _MARGIN * min(medians.values(), default=0.0)
    return next((name for name, taken_s in medians.items() if taken_s <= limit), None), contenders


class Autotuner:
    """Chooses for an engine's models. `choices` are by key, `timing` is how rounds run."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.choices: dict[str, KernelChoice] = {}

    def choose(
        self,
        subject: str,
        device: torch.device,
        facts: tuple[object, ...],
        names: Collection[str],
        tune: Callable[[], Outcome],
    ) -> KernelChoice:
        """The choice that is known already, else what `tune` gives; ModelError if that is none.

        `facts` are what it depends on next to hardware and versions. A known choice is taken if it
        is one of `names`, or if `names` is empty.
        """
        key = self.key(device, *facts)
        known = replace(find_choice(key) or _tuned(key, subject, tune), subject=subject)
        if names and known.chosen not in names:
            return self.choose_again(known, "it is not available here", tune)
        return self.add(known)

    def choose_again(
        self, choice: KernelChoice, reason: str, tune: Callable[[], Outcome]
    ) -> KernelChoice:
        """Replaces a choice that, for this reason, no longer runs here, by the result of `tune`.

        ModelError if figures of this run rest on that choice: others would not compare.
        """
        if choice.key in _begun_with:
            raise ModelError(
                f"{choice.subject}: this run began with {choice.chosen!r}, which no longer runs "
                f"here: {reason}; restore what it needs and resume, or start a new run"
            )
        made = self.choices[choice.key] = _tuned(choice.key, choice.subject, tune)
        return made

    def add(self, choice: KernelChoice) -> KernelChoice:
        """The choice, or the one of the same key that was made before."""
        return self.choices.setdefault(choice.key, choice)

    def key(self, device: torch.device, *facts: object) -> str:
        """Everything that a choice depends on."""
        if device.type == "cuda":
            machine = (torch.cuda.get_device_name(device), torch.version.cuda)
        else:
            machine = (platform.machine(), torch.backends.cpu.get_cpu_capability())
        threads = torch.get_num_threads() if device.type == "cpu" else None
        versions = (torch.__version__, __version__)
        is_captured = self.timing.captured is not None
        return "; ".join(map(repr, (*facts, is_captured, *machine, threads, *versions)))


def _tuned(key: str, subject: str, tune: Callable[[], Outcome]) -> KernelChoice:
    """A new choice, kept for later runs; ModelError if no candidate is right."""
    report_progress(f"comparing implementations: {subject}")
    winner, contenders = tune()
    report_progress("")
    if winner is None:
        reasons = "; ".join(f"{c.name}: {c.refusal}" for c in contenders)
        raise ModelError(
            f"{subject}: no implementation is right here: {reasons}; choose --model-impl stock, "
            "which runs transformers' own code"
        )
    made = KernelChoice(key=key, subject=subject, chosen=winner, contenders=tuple(contenders))
    keep_choice(made)
    return made


_known: dict[str, KernelChoice] = {}
_begun_with: set[str] = set()  # keys of what a run was measured with up to now


def remember_choices(choices: Iterable[KernelChoice]) -> None:
    """Let a run that is resumed continue with what it began with."""
    chosen = {choice.key: choice for choice in choices if not choice.is_forced}
    _known.update(chosen)
    _begun_with.update(chosen)


def find_choice(key: str) -> KernelChoice | None:
    """A choice of this process or an earlier one; its candidate may be missing here."""
    if key not in _known and (kept := _read(_file()).get(key)):
        _known[key] = kept
    return _known.get(key)


def keep_choice(choice: KernelChoice) -> None:
    """For this process and for later ones."""
    _known[choice.key] = choice
    with suppress(OSError):  # without it the next run tunes again
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = _read(file) | {choice.key: choice}
        write_whole(file, json.dumps({key: asdict(value) for key, value in kept.items()}, indent=1))


def _file() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "specbench" / "kernels.json"


def _read(file: Path) -> dict[str, KernelChoice]:
    """Choices of earlier runs; empty if the file is missing or not ours."""
    try:
        return _choices().validate_json(file.read_bytes())
    except (ImportError, OSError, ValueError):
        return {}


@cache
def _choices() -> "TypeAdapter[dict[str, KernelChoice]]":
    """A reader of stored choices, as strict as the reader of runs.

    ImportError on a bare machine with only torch, on which the GPU suite also runs.
    """
    from pydantic import ConfigDict, TypeAdapter  # noqa: PLC0415

    strict = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return TypeAdapter(dict[str, KernelChoice], config=strict)
