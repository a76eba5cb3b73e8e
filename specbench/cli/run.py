"""`specbench run`: measure pairings at their K, with K = 0 beside them."""

from pathlib import Path

from specbench.cli import options
from specbench.cli.checks import checked
from specbench.cli.measure import measure
from specbench.cli.nodes import Nodes
from specbench.cli.own_pair import OwnPair
from specbench.settings import RunSettings


def run(
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
    """Measure pairings and say per workload whether to speculate.

    Exit code 3 if undecided.
    """
    measure(
        checked(asked),
        out=out,
        resume=resume,
        dry_run=dry_run,
        nodes=Nodes.asked(ray, gpus_per_cell),
        force=force,
        as_json=as_json,
        own=own,
    )
