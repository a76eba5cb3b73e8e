"""`specbench sweep-k`: measure pairings at every K of a range."""

from dataclasses import replace
from pathlib import Path

from specbench.cli import options
from specbench.cli.measure import measure, read_settings

DEFAULT_KS = "0..8"


@options.spread
def sweep_k(
    asked: options.Asked,
    out: options.Out = Path("reports"),
    resume: options.Resume = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure a range of K and say which is best per workload, if any."""
    is_default = asked.num_speculative_tokens is None
    if is_default:
        asked = replace(asked, num_speculative_tokens=DEFAULT_KS)
    settings = replace(read_settings("sweep-k", asked), is_default_range=is_default)
    measure(settings, asked.method, out=out, resume=resume, dry_run=dry_run, as_json=as_json)
