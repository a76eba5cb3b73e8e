"""A ranking that was interrupted: which run goes on, and what is said of it."""

from typing import TYPE_CHECKING

import typer

from specbench.cli.pair_options import Paired
from specbench.cli.resuming import require_as_asked
from specbench.errors import StoreError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from specbench.config import Drafter, Target
    from specbench.records import RunSettings
    from specbench.store import StoredRun


def interrupted_run(asked: Paired, settings: "RunSettings") -> "StoredRun | None":
    """The run that --resume names; UsageError where it ranks nothing or was asked for otherwise."""
    from dataclasses import replace

    from specbench.store import load_run

    if asked.resume is None:
        return None
    if asked.drafts or asked.discover or asked.dry_run:
        raise UsageError(
            "--resume goes on with the drafters of its run; leave --drafts, --discover and "
            "--dry-run out"
        )
    stored = load_run(asked.resume, asked.out)
    was = stored.run.settings
    if was.most_drafters is None or was.pairings_file is None:
        raise UsageError(
            f"run {stored.run.run_id} was not made by `specbench pair`; go on with "
            f"`specbench {was.command} --resume {stored.run.run_id}`"
        )
    if asked.measure not in (Paired.measure, was.most_drafters):
        raise UsageError(
            f"--measure {asked.measure}: run {stored.run.run_id} was asked for with "
            f"{was.most_drafters}; leave it out"
        )
    said = replace(settings, pairings_file=was.pairings_file, pairings=())
    require_as_asked(stored.run, said, ())
    return stored


def drafters_of(stored: "StoredRun", target: "Target") -> "tuple[Drafter, ...]":
    """Those that the run measures; UsageError where it measures them for another target."""
    from pathlib import Path

    from specbench.config import load_pairings

    pairings = load_pairings(Path(str(stored.run.settings.pairings_file))).all
    if any(pairing.target.model.location != target.model.location for pairing in pairings):
        raise UsageError(
            f"run {stored.run.run_id} ranks drafters for {pairings[0].target.name}, not for "
            f"{target.name}"
        )
    return tuple(pairing.drafter for pairing in pairings)


def tell_how_to_rank(word: str, asked: Paired, out: "Path", file: "Path") -> None:
    """After an interruption: what ranks, as going on with the sweep alone does not."""
    import shlex

    from specbench.store import LATEST, load_run

    try:
        run = load_run(LATEST, out).run
    except StoreError:
        return
    if run.settings.pairings_file == str(file):
        again = ["specbench", "pair", word, "--out", str(out), "--resume", run.run_id]
        if asked.pairings_file is not None:
            again += ["--pairings", str(asked.pairings_file)]
        typer.echo(
            "sweep-k measures the rest without a ranking and without --write; for these: "
            f"{shlex.join(again)}",
            err=True,
        )
