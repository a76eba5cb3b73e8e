"""Chooses between implementations of the same work: the fastest correct one.

A candidate is correct if its results are close to a reference at the shapes of decoding, both when
it is called and, if rounds are captured, when it is replayed. If several are within 5% of the
fastest, the first of them in the fixed order is chosen, so that timing noise rarely matters. A
choice is stored in this process, in the run's record and, if no candidate failed for a reason that
may pass, in a file in the user's cache folder. K = 0, every K, every drafter, a resumed run, and
later runs with the same candidates all use it.
"""

import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache, partial
from importlib.metadata import packages_distributions, version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from specbench import __version__
from specbench.errors import ModelError
from specbench.forward.attention.stock import pinned_attention
from specbench.models.library_errors import failure_reason, is_temporary
from specbench.models.library_output import report_progress
from specbench.records import Contender, KernelChoice
from specbench.whole_file import write_whole

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Run = Callable[[], object]
Results = tuple[Tensor, ...]
Work = Callable[[], Results]
# Returns the reason why results differ from the expected ones; None if they match.
Compare = Callable[[Results, Results], str | None]
# The name of the fastest candidate, None if none is correct; and all candidates, in order.
Outcome = tuple[str | None, list[Contender]]

_MAX_REPETITIONS = 5
_MAX_SETUP_S = 120.0  # per candidate; a compiler's first program takes half a minute
_ALL_REPETITIONS_S = 1.0  # exceeded if a single repetition takes longer
_MARGIN = 1.05
# Modules of packages that candidates come from; `nvidia` has cuDNN and cuBLAS.
_MODULES = ("triton", "flash_attn", "flash_attn_interface", "torchao", "nvidia")


class KernelCandidate(NamedTuple):
    """A candidate to be timed by `run`, unless it is `refused`."""

    name: str
    run: Run | None
    refused: Contender | None = None
    setup_s: float = 0.0  # time to prepare `run`, or until it was refused


class Timing(NamedTuple):
    """How work is timed and captured on this device."""

    seconds: Callable[[Run], float]
    captured: Callable[[Run], Run] | None = None  # None: rounds are not captured


@torch.inference_mode()
def autotune(
    candidates: Mapping[str, Callable[[], Sequence[Work]]],
    reference: Sequence[Results],
    compare: Compare,
    timing: Timing,
) -> Outcome:
    """The fastest candidate whose results match the reference; DeviceLostError.

    A candidate returns one work item for each entry of the reference. One that raises is excluded,
    with the reason. Exceptions of any class count, because compilers and libraries raise any.
    """

    def prepare(name: str) -> KernelCandidate:
        run: Run | None = None
        refused: Contender | None = None

        def check_all() -> None:
            nonlocal run, refused
            try:
                works = zip(candidates[name](), reference, strict=True)
                runs = [_checked_run(work, expected, compare, timing) for work, expected in works]
                run = partial(_run_all, runs)
            except Exception as error:
                refused = _refused(name, error)

        setup_s = timing.seconds(check_all)
        return KernelCandidate(name, run, refused, setup_s)

    return fastest([prepare(name) for name in candidates], timing)


def _checked_run(work: Work, expected: Results, compare: Compare, timing: Timing) -> Run:
    """The work, captured if rounds are; ModelError if its results are wrong.

    Results are overwritten and computed a second time, because candidates may share the memory of
    their results.
    """
    results: Results = ()

    def run() -> None:
        nonlocal results
        results = work()

    def check(prefix: str) -> None:
        if reason := compare(results, expected):
            raise ModelError(f"{prefix}it is wrong: {reason}")

    run()
    check("")
    replay = run if timing.captured is None else timing.captured(run)
    for result in results:
        result.fill_(torch.nan if result.is_floating_point() else 0)
    replay()
    check("" if timing.captured is None else "replayed, ")
    return replay


def _refused(name: str, error: Exception) -> Contender:
    return Contender(name=name, refusal=failure_reason(error), is_temporary=is_temporary(error))


def _run_all(runs: Sequence[Run]) -> None:
    for run in runs:
        run()


def fastest(candidates: Sequence[KernelCandidate], timing: Timing) -> Outcome:
    """The fastest of the candidates, timed in interleaved repetitions; DeviceLostError.

    A candidate that raises while it is timed is excluded.
    """
    refused = {c.name: c.refused for c in candidates if c.refused is not None}

    def time_once() -> dict[str, float]:
        """Run each candidate that is not refused once; its seconds, by name."""
        taken_s = {}
        for candidate in candidates:
            if candidate.name not in refused:
                try:
                    taken_s[candidate.name] = timing.seconds(cast("Run", candidate.run))
                except Exception as error:
                    refused[candidate.name] = _refused(candidate.name, error)
        return taken_s

    warm_s = time_once()
    for candidate in candidates:
        # Setup includes runs, whose time is not part of the limit.
        if candidate.name in warm_s and candidate.setup_s - warm_s[candidate.name] > _MAX_SETUP_S:
            refused[candidate.name] = Contender(
                name=candidate.name,
                refusal=f"it took more than {_MAX_SETUP_S:g} s to compile and to run for the first "
                "time",
                is_temporary=True,  # compilers keep their programs
            )
    warm = sum(taken_s for name, taken_s in warm_s.items() if name not in refused)
    num_repetitions = min(max(int(_ALL_REPETITIONS_S / max(warm, 1e-9)), 1), _MAX_REPETITIONS)
    repetitions = [time_once() for _ in range(num_repetitions)]
    names = [candidate.name for candidate in candidates]
    medians = {
        name: median(taken_s[name] for taken_s in repetitions)
        for name in names
        if name not in refused
    }
    contenders = [
        refused.get(name) or Contender(name=name, seconds=medians.get(name)) for name in names
    ]
    limit = _MARGIN * min(medians.values(), default=0.0)
    return next((name for name, taken_s in medians.items() if taken_s <= limit), None), contenders


class Autotuner:
    """Chooses the implementations for an engine's models, timed as its rounds run.

    `choices` has what was chosen so far, by key.
    """

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.choices: dict[str, KernelChoice] = {}

    def choose(
        self,
        subject: str,
        device: torch.device,
        facts: tuple[object, ...],
        refusals: Mapping[str, str | None],
        tune: Callable[[], Outcome],
    ) -> KernelChoice:
        """The known choice, else the result of `tune`; ModelError if no candidate is correct.

        The choice depends on `facts`, the hardware and versions. `refusals` has the reason why a
        candidate cannot run here, None if it can; a choice that was made among others is made
        again. ModelError if this run already measured with a candidate that no longer runs: figures
        with another one would not be comparable.
        """
        key = self.key(device, *facts)
        usable = tuple(name for name, refusal in refusals.items() if refusal is None)
        known = find_choice(key, usable)
        if known is not None and known.chosen not in usable:
            if key in _begun_with:
                reason = refusals.get(known.chosen) or "it is not available here"
                raise ModelError(
                    f"{subject}: this run started with {known.chosen!r}, which no longer runs "
                    f"here: {reason}; restore what it needs and resume, or start a new run"
                )
            known = None
        with pinned_attention(device):  # as in rounds
            made = known or _tuned(key, usable, subject, tune)
        contenders = (  # today's reason, since Triton may be installed now and lack a compiler
            replace(contender, refusal=refusals.get(contender.name) or contender.refusal)
            if contender.refusal
            else contender
            for contender in made.contenders
        )
        return self.add(replace(made, subject=subject, contenders=tuple(contenders)))

    def add(self, choice: KernelChoice) -> KernelChoice:
        """Add the choice; return it, or an earlier choice of the same key."""
        return self.choices.setdefault(choice.key, choice)

    def key(self, device: torch.device, *facts: object) -> str:
        """A key of everything that a choice depends on: the facts, the hardware and versions."""
        if device.type == "cuda":
            machine = (torch.cuda.get_device_name(device), torch.version.cuda)
        else:
            machine = (platform.machine(), torch.backends.cpu.get_cpu_capability())
        threads = torch.get_num_threads() if device.type == "cpu" else None
        versions = (torch.__version__, __version__)
        is_captured = self.timing.captured is not None
        return "; ".join(map(repr, (*facts, is_captured, *machine, threads, *versions)))


def _tuned(
    key: str, usable: Sequence[str], subject: str, tune: Callable[[], Outcome]
) -> KernelChoice:
    """A new choice, stored for later runs; ModelError if no candidate is correct."""
    report_progress(f"comparing implementations: {subject}")
    winner, contenders = tune()
    report_progress("")
    if winner is None:
        reasons = "; ".join(f"{c.name}: {c.refusal}" for c in contenders)
        raise ModelError(
            f"{subject}: no implementation is correct here: {reasons}; choose --model-impl stock, "
            "which runs transformers' own code"
        )
    made = KernelChoice(key=key, subject=subject, chosen=winner, contenders=tuple(contenders))
    keep_choice(made, usable)
    return made


_known: dict[str, KernelChoice] = {}
_begun_with: set[str] = set()  # keys of the choices of a resumed run


def remember_choices(choices: Iterable[KernelChoice]) -> None:
    """Make a resumed run continue with the choices that it began with."""
    chosen = {choice.key: choice for choice in choices if not choice.is_forced}
    _known.update(chosen)
    _begun_with.update(chosen)


def find_choice(key: str, usable: Sequence[str] = ()) -> KernelChoice | None:
    """The choice of this process, or of an earlier one among the same usable candidates.

    That of a resumed run may be one that is not usable now.
    """
    if key not in _known and (kept := _read().get(_entry(key, usable))):
        _known[key] = kept
    return _known.get(key)


def keep_choice(choice: KernelChoice, usable: Sequence[str] = ()) -> None:
    """Store a choice for this process, and for later ones unless a refusal is temporary."""
    _known[choice.key] = choice
    if any(contender.is_temporary for contender in choice.contenders):
        return
    with suppress(OSError, RuntimeError):  # if it cannot be written, the next run tunes again
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = _read() | {_entry(choice.key, usable): choice}
        write_whole(file, json.dumps({key: asdict(value) for key, value in kept.items()}, indent=1))


def _entry(key: str, usable: Sequence[str]) -> str:
    """The key of a choice in the file, which names all that competed, with versions."""
    return "; ".join((key, *usable, *_library_versions()))


@cache
def _library_versions() -> tuple[str, ...]:
    """Versions of the packages, beside torch, that kernels come from."""
    owners = packages_distributions()
    packages = {package for module in _MODULES for package in owners.get(module, ())}
    return tuple(f"{package} {version(package)}" for package in sorted(packages))


def _file() -> Path:
    """The file of stored choices; RuntimeError if the user has no home folder."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "specbench" / "kernels.json"


def _read() -> dict[str, KernelChoice]:
    """Choices of earlier runs; empty if the file is missing or not ours."""
    try:
        return _choices().validate_json(_file().read_bytes())
    except (ImportError, OSError, RuntimeError, ValueError):
        return {}


@cache
def _choices() -> "TypeAdapter[dict[str, KernelChoice]]":
    """The validator of stored choices, as strict as that of runs.

    ImportError without pydantic: the GPU suite also runs on a machine with only torch.
    """
    from pydantic import ConfigDict, TypeAdapter  # noqa: PLC0415

    strict = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return TypeAdapter(dict[str, KernelChoice], config=strict)
