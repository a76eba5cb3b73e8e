"""What may stand beside --resume: nothing that the run was not asked for."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.cli.options import DEFAULT_WORKLOADS
from specbench.errors import UsageError

if TYPE_CHECKING:
    from specbench.records import RunRecord, RunSettings

# The option of a setting where it is not the setting's own name.
_OPTIONS = {
    "pairings_file": "--pairings",
    "workloads": "--workload",
    "num_speculative_tokens": "-k",
    "adaptive": "-k",
    "engines": "--engine",
    "contexts": "--context",
    "temperatures": "--temperature",
    "num_samples": "--samples",
    "num_prompts": "--prompts",
    "num_repeats": "--repeats",
    "budget_s": "--budget",
}


def require_as_asked(run: "RunRecord", asked: "RunSettings", methods: Sequence[str]) -> None:
    """UsageError where names or options beside --resume are others than those of the run.

    Its own may be repeated; what is not said is as it was.
    """
    _require_names(run, asked, methods)
    if others := list(dict.fromkeys(_other_options(run.settings, asked))):
        raise UsageError(
            f"run {run.run_id} was started with different settings ({', '.join(others)}), and a "
            "resumed run keeps its own; leave these options out, or start a new run without "
            "--resume"
        )


def _require_names(run: "RunRecord", asked: "RunSettings", methods: Sequence[str]) -> None:
    from specbench.inputs.config import load_pairings

    if not asked.pairings and not methods:
        return
    file = run.settings.pairings_file
    pairings = load_pairings(Path(file) if file else None).select(asked.pairings, methods)
    now = {pairing.name for pairing in pairings}
    if now != set(run.settings.pairings):
        raise UsageError(
            f"run {run.run_id} measures {', '.join(run.settings.pairings)} and cannot be resumed "
            f"with {', '.join(sorted(now))}; leave the names out, or start a new run without "
            "--resume"
        )


def _other_options(was: "RunSettings", asked: "RunSettings") -> Iterator[str]:
    from specbench.records import RunSettings

    unsaid = RunSettings(command=asked.command, pairings=(), workloads=DEFAULT_WORKLOADS)
    for field in fields(RunSettings):
        name, value = field.name, getattr(asked, field.name)
        is_default_k = name == "num_speculative_tokens" and asked.is_default_range
        if name in ("command", "pairings", "is_default_range") or is_default_k:
            continue
        if value not in (getattr(unsaid, name), getattr(was, name)):
            yield _OPTIONS.get(name, "--" + name.replace("_", "-"))
