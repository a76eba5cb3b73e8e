"""What may stand beside --resume: nothing that the run was not asked for."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.cli.own_pair import known_pairings
from specbench.errors import UsageError
from specbench.settings import RunSettings, WorkloadSettings
from specbench.settings.groups import DEFAULT_WORKLOADS
from specbench.settings.option import choices_of, leaves

if TYPE_CHECKING:
    from specbench.records import RunRecord


def require_as_asked(
    run: "RunRecord", asked: RunSettings, methods: Sequence[str], out: Path
) -> None:
    """UsageError if names or options beside --resume differ from the run's; its own may be
    repeated."""
    _require_choices(run)
    _require_names(run, asked, methods, out)
    if others := list(dict.fromkeys(_other_options(run.settings, asked))):
        raise UsageError(
            f"run {run.run_id} was started with different settings ({', '.join(others)}), and a "
            "resumed run keeps its own; leave these options out, or start a new run without "
            "--resume"
        )


def _require_choices(run: "RunRecord") -> None:
    stored = run.settings.stored
    for name, kind, _, option in leaves(RunSettings):
        value, choices = getattr(stored, name), choices_of(kind)
        if option is not None and choices and value not in (None, *choices):
            raise UsageError(
                f"run {run.run_id} cannot be resumed: {option.names_of(name)[0]} {value!r} was "
                f"removed since (allowed: {', '.join(choices)}); start a new run without --resume"
            )


def _require_names(run: "RunRecord", asked: RunSettings, methods: Sequence[str], out: Path) -> None:
    names, was = asked.workload.pairings, run.settings.workload.pairings
    if not names and not methods:
        return
    known = known_pairings(names, run.settings.pairings_file, out)
    pairings = known.select(names, methods)
    now = {pairing.name for pairing in pairings}
    if now != set(was):
        raise UsageError(
            f"run {run.run_id} measures {', '.join(was)} and cannot be resumed "
            f"with {', '.join(sorted(now))}; leave the names out, or start a new run without "
            "--resume"
        )


def _other_options(was: RunSettings, asked: RunSettings) -> Iterator[str]:
    unsaid = RunSettings(workload=WorkloadSettings(pairings=(), workloads=DEFAULT_WORKLOADS))
    then, now, default = was.stored, asked.stored, unsaid.stored
    for name, _, _, option in leaves(RunSettings):
        is_default_k = name == "num_speculative_tokens" and asked.draft.is_default_range
        if option is None or name in ("pairings", "is_default_range") or is_default_k:
            continue
        if getattr(now, name) not in (getattr(default, name), getattr(then, name)):
            yield option.names_of(name)[0]
