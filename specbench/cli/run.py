"""`specbench run` and `sweep-k`: measure pairings, with K = 0 as the baseline."""

from dataclasses import replace

from specbench.cli.adhoc_pairing import AdhocPairing
from specbench.cli.checks import checked
from specbench.cli.measure import RunOptions, measure
from specbench.settings import DraftSettings, RunSettings

DEFAULT_KS = DraftSettings(num_speculative_tokens=tuple(range(9)), is_default_range=True)


def run(pair: AdhocPairing, settings: RunSettings, call: RunOptions) -> None:
    """Measure pairings and say per workload whether to speculate.

    To find the best K, use sweep-k. Exit code 3 if undecided.
    """
    measure(checked(settings), pair, call)


def sweep_k(pair: AdhocPairing, settings: RunSettings, call: RunOptions) -> None:
    """Measure a range of K and report the best per workload.

    To measure only a pairing's own K, use run. Exit code 3 if undecided.
    """
    draft = DEFAULT_KS if settings.draft == DraftSettings() else settings.draft
    measure(checked(replace(settings, command="sweep-k", draft=draft)), pair, call)
