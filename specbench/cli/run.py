"""`specbench run` and `sweep-k`: measure pairings, with K = 0 as the baseline."""

from dataclasses import replace

from specbench.cli.checks import checked
from specbench.cli.measure import RunOptions, measure
from specbench.cli.own_pair import OwnPair
from specbench.settings import DraftSettings, RunSettings

DEFAULT_KS = DraftSettings(num_speculative_tokens=tuple(range(9)), is_default_range=True)


def run(own: OwnPair, asked: RunSettings, call: RunOptions) -> None:
    """Measure pairings and say per workload whether to speculate.

    Exit code 3 if undecided.
    """
    measure(checked(asked), own, call)


def sweep_k(own: OwnPair, asked: RunSettings, call: RunOptions) -> None:
    """Measure a range of K and report the best per workload.

    Exit code 3 if undecided.
    """
    draft = DEFAULT_KS if asked.draft == DraftSettings() else asked.draft
    measure(checked(replace(asked, command="sweep-k", draft=draft)), own, call)
