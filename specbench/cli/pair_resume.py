"""A ranking that was interrupted: which run goes on, and with which words."""

from typing import TYPE_CHECKING

from specbench.cli.pair_options import Paired
from specbench.cli.resuming import require_as_asked
from specbench.errors import UsageError
from specbench.settings import RunSettings

if TYPE_CHECKING:
    from specbench.inputs.pairing import DrafterSpec, Target
    from specbench.runs import StoredRun


def interrupted_run(asked: Paired, settings: RunSettings) -> "StoredRun | None":
    """The run that --resume names; UsageError where it ranks nothing or was asked for otherwise."""
    from dataclasses import replace

    from specbench.runs import load_run

    if asked.resume is None:
        return None
    if asked.drafts or asked.discover or asked.dry_run:
        raise UsageError(
            "--resume uses the drafters of its run; leave out --draft, --discover and --dry-run"
        )
    stored = load_run(asked.resume, asked.out, also_empty=True)
    was = stored.run.settings
    if was.forecasting.most_drafters is None or was.pairings_file is None:
        raise UsageError(
            f"run {stored.run.run_id} was not made by `specbench pair`; resume it with `specbench "
            f"{was.command} --resume {stored.run.run_id}`"
        )
    if asked.measure not in (Paired.measure, was.forecasting.most_drafters):
        raise UsageError(
            f"--measure-top {asked.measure}: run {stored.run.run_id} was started with "
            f"{was.forecasting.most_drafters}; leave it out"
        )
    require_as_asked(stored.run, replace(settings, pairings_file=was.pairings_file), (), asked.out)
    return stored


def drafters_of(stored: "StoredRun", target: "Target") -> "tuple[DrafterSpec, ...]":
    """Those that the run measures; UsageError where it measures them for another target."""
    from specbench.inputs.config import load_pairings

    pairings = load_pairings(stored.run.settings.pairings_file).all
    if any(pairing.target.model.place != target.model.place for pairing in pairings):
        raise UsageError(
            f"run {stored.run.run_id} ranks drafters for {pairings[0].target.name}, not for "
            f"{target.name}"
        )
    return tuple(pairing.drafter for pairing in pairings)


def again_words(word: str, asked: Paired) -> list[str]:
    """The command that resumes a run of `pair`, as far as the run itself does not know it."""
    words = ["pair", word]
    for option, value in (
        ("--config", asked.pairings_file),
        ("--plan-context", asked.context if asked.context != Paired.context else None),
        ("--gpu", asked.gpu),
        ("--gpu-memory", asked.gpu_memory),
        ("--gpu-bandwidth", asked.gpu_bandwidth),
        ("--output", asked.write),
    ):
        words += [] if value is None else [option, str(value)]
    return words
