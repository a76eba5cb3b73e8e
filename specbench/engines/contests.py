"""Holds contests, once for equal hardware, versions and shapes.

What was chosen is kept (`choice_file.py`) and is in the run's record, so that K = 0, every K and
every drafter share it, as do a later run and one that is resumed.
"""

import platform
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

import torch

from specbench import __version__
from specbench.engines import choice_file
from specbench.errors import ModelError
from specbench.execution.clock import Clock
from specbench.execution.cuda_graphs import Graphs
from specbench.forward.contest import Run, Timing
from specbench.models.progress import report_progress
from specbench.records import Contender, KernelChoice

Outcome = tuple[str | None, list[Contender]]


class Contests:
    """Those of an engine's models. `made` are their choices by key, `timing` is how rounds run."""

    def __init__(self, clock: Clock, graphs: Graphs | None) -> None:
        self.timing = contest_timing(clock, graphs)
        self.made: dict[str, KernelChoice] = {}

    def choose(
        self,
        subject: str,
        device: torch.device,
        facts: tuple[object, ...],
        names: Collection[str],
        hold: Callable[[], Outcome],
    ) -> KernelChoice:
        """What is known already, else what a contest says; ModelError where nobody can.

        `facts` are what it hangs on beside hardware and versions. Of what is known only one of
        `names` is taken, where there are any.
        """
        key = self.key(device, *facts)
        known = choice_file.find(key)
        if known is None:
            known = _held(key, subject, hold)
        known = replace(known, subject=subject)
        if names and known.chosen not in names:
            return self.choose_again(known, "there is no such implementation here", hold)
        return self.add(known)

    def choose_again(
        self, choice: KernelChoice, reason: str, hold: Callable[[], Outcome]
    ) -> KernelChoice:
        """What a new contest says in place of a choice that, for a reason, no longer runs here.

        ModelError where figures of this run rest on that choice: others would not compare.
        """
        if choice_file.is_begun_with(choice.key):
            raise ModelError(
                f"{choice.subject}: this run began with {choice.chosen!r}, which no longer runs "
                f"here: {reason}; restore what it needs and resume, or start a new run"
            )
        made = self.made[choice.key] = _held(choice.key, choice.subject, hold)
        return made

    def add(self, choice: KernelChoice) -> KernelChoice:
        """The choice, or the one of the same key that was made before."""
        return self.made.setdefault(choice.key, choice)

    def key(self, device: torch.device, *facts: object) -> str:
        """All that a choice hangs on."""
        if device.type == "cuda":
            machine = (torch.cuda.get_device_name(device), torch.version.cuda)
        else:
            machine = (platform.machine(), torch.backends.cpu.get_cpu_capability())
        threads = torch.get_num_threads() if device.type == "cpu" else None
        versions = (torch.__version__, __version__)
        is_captured = self.timing.captured is not None
        return "; ".join(map(repr, (*facts, is_captured, *machine, threads, *versions)))


def _held(key: str, subject: str, hold: Callable[[], Outcome]) -> KernelChoice:
    """What a contest says, kept for later runs; ModelError where nobody is right."""
    report_progress(f"comparing implementations: {subject}")
    winner, contenders = hold()
    report_progress("")
    if winner is None:
        reasons = "; ".join(f"{one.name}: {one.refusal}" for one in contenders)
        raise ModelError(
            f"{subject}: no implementation is right here: {reasons}; choose --forward stock, which "
            "runs transformers' own code"
        )
    made = KernelChoice(key=key, subject=subject, chosen=winner, contenders=tuple(contenders))
    choice_file.keep(made)
    return made


def contest_timing(clock: Clock, graphs: Graphs | None) -> Timing:
    """As rounds are timed and, where there are graphs, captured."""
    return Timing(
        seconds=partial(_seconds, clock),
        captured=None if graphs is None else lambda run: graphs.capture(run).replay,
    )


def _seconds(clock: Clock, run: Run) -> float:
    began = clock.mark()
    run()
    ended = clock.mark()
    return clock.seconds(ended) - clock.seconds(began)
