"""A part of the suite: its arguments, its sections in turn, one JSON document and one page of it.

A section that the device refuses is recorded with the reason, and the others go on. What no
time is left for is named and left out.
"""

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_suite.page import page
from specbench.errors import SpecbenchError
from specbench.forward.attention.candidates import BY_NAME
from specbench.probes.device import cuda_facts
from specbench.probes.environment import describe_environment
from specbench.probes.gpu import open_probe
from specbench.settings.groups import AttentionBackend

LIMIT_S = 420.0  # of the 8 minutes that a part may take
NO_GPU = "no CUDA device"
EXPECTED_ERRORS = (RuntimeError, ValueError, SpecbenchError)  # a CUDA error is a RuntimeError

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What a section measures on. `small`: tiny shapes, to try the code and show nothing."""

    device: torch.device
    small: bool
    ends_s: float  # by time.monotonic
    kernels: AttentionBackend = "auto"  # an implementation of attention that is forced, or auto

    @property
    def shows_nothing(self) -> str | None:
        """Why seconds measured here say nothing of a GPU; None where they do."""
        if not self.is_cuda:
            return NO_GPU
        return "tiny shapes" if self.small else None

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def has_time(self) -> bool:
        return time.monotonic() < self.ends_s

    def pick(self, large: int, small: int) -> int:
        """A count or a size: the first, or the second where all is small."""
        return small if self.small else large

    def synchronize(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def give_back(self) -> None:
        """Memory that nobody holds."""
        gc.collect()  # models hold one another in circles
        if self.is_cuda:
            with suppress(RuntimeError):  # a device in disorder refuses all: later sections say so
                torch.cuda.empty_cache()


def absent(reason: str) -> Json:
    """Stands where a figure would."""
    return {"value": None, "reason": reason}


def in_a_line(error: Exception) -> str:
    """What an error says, in a line that a document can hold."""
    return f"{type(error).__name__}: {error}"[:600]


Section = Callable[[Machine], Json]


def run_part(
    name: str, sections: Mapping[str, Section], arguments: Sequence[str] | None = None
) -> Json:
    """Run the sections and print the document, and its page to standard error.

    Where $OUT names a folder, both are kept there.
    """
    asked = _parse(name, sections, arguments)
    began_s = time.monotonic()
    machine = Machine(
        device=torch.device(asked.device),
        small=asked.small,
        ends_s=began_s + asked.limit_s,
        kernels=asked.kernels,
    )
    document: Json = {"part": name, "small": asked.small, "machine": _provenance(machine, asked)}
    found: Json = {}
    bugs: list[Exception] = []

    def so_far() -> Json:
        seconds = round(time.monotonic() - began_s, 1)
        return document | {"sections": found, "seconds": seconds, "limit_s": asked.limit_s}

    try:
        for title, section in sections.items():
            if title in (asked.only or sections):
                found[title] = _run(title, section, machine, bugs)
                _keep(so_far())  # whoever ends the process leaves what was measured
    finally:  # after a bug, too: the device's time is spent
        document = so_far()
        _keep(document)
        print(json.dumps(document, indent=1), flush=True)
    text = page(document)
    if folder := os.environ.get("OUT"):
        (Path(folder) / f"gpu_{name}.md").write_text(text, encoding="utf-8")
    print(f"\n{text}", file=sys.stderr, flush=True)
    if bugs:
        raise bugs[0]
    return document


def _run(title: str, section: Section, machine: Machine, bugs: list[Exception]) -> Json:
    if not machine.has_time():
        return absent("no time was left for it")
    print(f"{title} ...", file=sys.stderr, flush=True)
    began_s = time.monotonic()
    try:
        found = section(machine)
        machine.synchronize()  # what went wrong on the device may be told only now
    except Exception as error:  # the sections after it are worth their time
        found = absent(in_a_line(error))
        if not isinstance(error, EXPECTED_ERRORS):
            bugs.append(error)
    machine.give_back()
    seconds = round(time.monotonic() - began_s, 1)
    print(f"{title}: {seconds:g} s", file=sys.stderr, flush=True)
    return {**found, "seconds": seconds}


def _provenance(machine: Machine, asked: argparse.Namespace) -> Json:
    name = str(machine.device)
    probe = open_probe(name, known=cuda_facts(machine.device))
    facts = asdict(describe_environment(name, torch.get_num_threads(), sys.argv, probe))
    return facts | {"git_commit": asked.commit or facts["git_commit"], "cuda": torch.version.cuda}


def _keep(document: Json) -> None:
    if folder := os.environ.get("OUT"):
        text = json.dumps(document, indent=1) + "\n"
        (Path(folder) / f"gpu_{document['part']}.json").write_text(text, encoding="utf-8")


def _parse(
    name: str, sections: Mapping[str, Section], arguments: Sequence[str] | None
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"benchmarks.gpu_suite.{name}")
    found = "cuda:0" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=found)
    parser.add_argument("--small", action="store_true", help="tiny shapes: tries the code")
    parser.add_argument("--kernels", choices=("auto", *BY_NAME), default="auto")
    parser.add_argument("--only", nargs="+", choices=tuple(sections), metavar="SECTION")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="begins nothing after it")
    parser.add_argument("--commit", help="where the checkout has no history of its own")
    return parser.parse_args(arguments)
