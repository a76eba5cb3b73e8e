"""Holds the contests of a loaded model, once for equal hardware, versions and shapes.

What was chosen is kept in the process, in a file of the user's cache folder and in the run's
record, so that K = 0, every K and every drafter share it, as do a later run and one that goes on.
"""

import json
import os
import platform
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from specbench import __version__
from specbench.errors import ModelError, UsageError
from specbench.execution.clock import Clock
from specbench.execution.cuda_graphs import Graphs
from specbench.forward.attention.choice import ALL, KERNELS
from specbench.forward.attention.kernel import Case
from specbench.forward.contest import Run, Timing, attention_contest
from specbench.forward.forward_contest import FORWARDS, forward_contest
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.packed_contest import (
    packed_contest,
    packed_layers,
    slower_note,
    times_as_long,
)
from specbench.forward.runner import Runner
from specbench.forward.self_test import Forward
from specbench.json_text import parse_json
from specbench.models.loading import LoadedModel
from specbench.records import Contender, KernelChoice
from specbench.whole_file import write_whole

AUTO = "auto"
_PACKED_TOKENS = (1, 5)  # K = 0 and K = 4
Outcome = tuple[str | None, list[Contender]]
_known: dict[str, KernelChoice] = {}


def remember(choices: Iterable[KernelChoice]) -> None:
    """Let a run that is resumed go on with what it began with."""
    _known.update({choice.key: choice for choice in choices if not choice.is_forced})


class KernelChoices:
    """Sets what runners run on; `name` forces one implementation, auto lets them compete.

    Compiled rounds are computed as the compiler likes: nothing is chosen for them.
    """

    def __init__(
        self, name: str, clock: Clock, graphs: Graphs | None, *, is_compiled: bool = False
    ) -> None:
        self._name = name
        self._is_compiled = is_compiled
        self._timing = contest_timing(clock, graphs)
        self.made: dict[str, KernelChoice] = {}  # by key, of all runners

    def settle(self, runner: Runner, forward: Forward, name: str) -> Runner:
        """The runner of the named model to decode with, its implementations chosen. ModelError.

        Transformers' own code takes torch's own attention.
        """
        if self._is_compiled or not isinstance(runner, FusedRunner):
            return runner
        for case in runner.cases:
            chosen = self._attention(case, name).chosen
            runner.kernels[case.window, case.is_tree] = ALL[chosen]
        return FORWARDS[self._forward(runner, forward, name).chosen](runner)

    def packed_notes(self, loaded: LoadedModel, name: str) -> tuple[str, ...]:
        """What is to be said of packed weights, timed against plain ones of the same shape."""
        layers = packed_layers(loaded.model)
        if self._is_compiled or not layers or loaded.quantization is None:
            return ()
        scheme, weight = loaded.quantization, layers[0].weight
        packer = version("torchao")
        ratios = {}
        for T in _PACKED_TOKENS:
            sizes = (T, tuple(weight.shape), len(layers))
            key = _key(weight.device, scheme, packer, weight.dtype, sizes, self._is_captured)
            hold = partial(packed_contest, layers, T, scheme, self._timing)
            choice = self._choice(key, f"{scheme} linear layer of {name}, T = {T}", (), hold)
            if (ratio := times_as_long(choice.contenders)) is not None:
                ratios[T] = ratio
        note = slower_note(scheme, loaded.dtype, ratios)
        return (note,) if note else ()

    def _attention(self, case: Case, name: str) -> KernelChoice:
        subject = f"attention of {name}, {case}"
        key = _key(case.device, case, self._is_captured)
        if self._name == AUTO:
            hold = partial(attention_contest, case, KERNELS, self._timing)
            return self._choice(key, subject, ALL, hold)
        kernel = ALL[self._name]
        _, (tried,) = attention_contest(case, [kernel], self._timing)
        if tried.refusal is not None:
            raise ModelError(
                f"--kernels {self._name} cannot serve {subject}: {tried.refusal}; choose "
                "--kernels auto"
            )
        return self._made(
            KernelChoice(key=key, subject=subject, chosen=kernel.name, is_forced=True)
        )

    def _forward(self, runner: FusedRunner, forward: Forward, name: str) -> KernelChoice:
        subject = f"forward of {name}"
        names = tuple(name for name in FORWARDS if forward == "auto" or name.startswith(forward))
        sizes = (runner.num_layers, runner.hidden_size, runner.config.intermediate_size)
        key = _key(runner.device, names, runner.cases, sizes, self._is_captured)
        return self._choice(
            key, subject, names, partial(forward_contest, runner, names, self._timing)
        )

    @property
    def _is_captured(self) -> bool:
        return self._timing.captured is not None

    def _choice(
        self, key: str, subject: str, names: Collection[str], hold: Callable[[], Outcome]
    ) -> KernelChoice:
        """What is known already, else what a contest says; files may name what is not here."""
        known = _known.get(key) or _read(_file()).get(key)
        if known is None or (names and known.chosen not in names):
            winner, contenders = hold()
            if winner is None:
                reasons = "; ".join(f"{one.name}: {one.refusal}" for one in contenders)
                raise ModelError(f"{subject}: no implementation is right here: {reasons}")
            known = KernelChoice(
                key=key, subject=subject, chosen=winner, contenders=tuple(contenders)
            )
            _keep(known)
        _known[key] = known
        return self._made(replace(known, subject=subject))

    def _made(self, choice: KernelChoice) -> KernelChoice:
        return self.made.setdefault(choice.key, choice)


def contest_timing(clock: Clock, graphs: Graphs | None) -> Timing:
    """As rounds are timed and, where there are graphs, captured."""
    return Timing(
        seconds=partial(_seconds, clock),
        captured=None if graphs is None else lambda run: graphs.capture(run).replay,
    )


def require_kernel(name: str, device: torch.device) -> None:
    """UsageError where the implementation asked for runs on no such device."""
    usual = Case(
        device=device,
        dtype=torch.bfloat16,
        query_heads=1,
        kv_heads=1,
        head_size=64,
        window=None,
        is_tree=False,
    )
    refusal = None if name == AUTO else ALL[name].refusal(usual)
    if refusal is not None:
        here = [kernel.name for kernel in ALL.values() if kernel.refusal(usual) is None]
        raise UsageError(
            f"--kernels {name}: {refusal}, and the device is {device}; choose "
            f"{', '.join((AUTO, *here))}"
        )


def _key(device: torch.device, *facts: object) -> str:
    """All that a choice hangs on."""
    if device.type == "cuda":
        machine = (torch.cuda.get_device_name(device), torch.version.cuda)
    else:
        machine = (platform.machine(), torch.backends.cpu.get_cpu_capability())
    threads = torch.get_num_threads() if device.type == "cpu" else None
    versions = (torch.__version__, __version__)
    return "; ".join(map(repr, (*facts, *machine, threads, *versions)))


def _seconds(clock: Clock, run: Run) -> float:
    began = clock.mark()
    run()
    ended = clock.mark()
    return clock.seconds(ended) - clock.seconds(began)


def _file() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "specbench" / "kernels.json"


def _read(file: Path) -> dict[str, KernelChoice]:
    """What earlier runs chose; nothing where there is no such file or it is not ours."""
    try:
        return {key: _choice_of(**kept) for key, kept in parse_json(file.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _choice_of(*, chosen: str, contenders: Iterable[Any], **others: Any) -> KernelChoice:
    """A choice from its JSON; TypeError where it is none."""
    if not isinstance(chosen, str):
        raise TypeError(f"{chosen!r} is no name")
    own = tuple(Contender(**contender) for contender in contenders)
    return KernelChoice(chosen=chosen, contenders=own, **others)


def _keep(choice: KernelChoice) -> None:
    with suppress(OSError):  # without it the next run holds the contest again
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = _read(file) | {choice.key: choice}
        text = json.dumps({key: asdict(one) for key, one in kept.items()}, indent=1)
        write_whole(file, text)
