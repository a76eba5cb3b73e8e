"""A baseline in words: what is in the file, and how far its runs are apart."""

from collections.abc import Iterator

from specbench.gate.baseline import Snapshot
from specbench.gate.kinds import Kind, deviation_floor
from specbench.gate.tolerances import default_tolerances
from specbench.metrics.registry import all_metrics
from specbench.records import NO_DRAFTER
from specbench.report.numbers import measured


def baseline_lines(baseline: Snapshot) -> Iterator[str]:
    """A line a cell that speculates, or where none does a line a cell."""
    device = baseline.fingerprint.device
    drafting = [cell for cell in baseline.cells if cell.key.draft.drafter != NO_DRAFTER]
    for cell in drafting or baseline.cells:
        told = []
        for name in (tolerance.metric for tolerance in default_tolerances(device)):
            figure = cell.figures.get(name)
            if figure is not None:
                metric = all_metrics()[name]
                spread = "" if figure.deviation is None else f" +- {figure.deviation:.2%}"
                told.append(f"{name} {measured(figure.value, metric.unit)}{spread}")
        yield f"{cell.key.label}: {', '.join(told)}"
    if baseline.num_runs == 1:
        floors = ((kind, deviation_floor(kind, device)) for kind in Kind)
        granted = ", ".join(f"{floor:.1%} of a {kind.value}" for kind, floor in floors if floor)
        yield (
            f"one run does not show the variation between runs; assumed: {granted}. Pool several "
            "runs to measure it"
        )
