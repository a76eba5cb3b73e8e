"""`specbench sweep-k`: measure pairings at every K of a range."""

from dataclasses import replace
from pathlib import Path

from specbench.cli import options
from specbench.cli.checks import checked
from specbench.cli.measure import measure
from specbench.cli.nodes import Nodes
from specbench.cli.own_pair import OwnPair
from specbench.settings import DraftSettings, RunSettings

DEFAULT_KS = DraftSettings(num_speculative_tokens=tuple(range(9)), is_default_range=True)


def sweep_k(
    own: OwnPair,
    asked: RunSettings,
    out: options.Out = Path("reports"),
    resume: options.Resume = None,
    dry_run: options.DryRun = False,
    ray: options.Ray = None,
    gpus_per_cell: options.GpusPerCell = None,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure a range of K and report the best per workload.

    Exit code 3 if undecided.
    """
    draft = DEFAULT_KS if asked.draft == DraftSettings() else asked.draft
    settings = checked(replace(asked, command="sweep-k", draft=draft))
    measure(
        settings,
        out=out,
        resume=resume,
        dry_run=dry_run,
        nodes=Nodes.asked(ray, gpus_per_cell),
        force=force,
        as_json=as_json,
        own=own,
    )
