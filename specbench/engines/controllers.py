"""The controllers of adaptive K: one a workload and setting, over costs that workloads share."""

from collections.abc import Callable
from typing import NamedTuple

from specbench.decode.adaptive_k import Controller, RoundCostModel, default_ks, measure_round_costs
from specbench.decode.decoder import Decoder
from specbench.decode.sampling import Sampler
from specbench.engines.engine import Load, Work
from specbench.records import Request, Sampling


class _Setting(NamedTuple):
    """What round costs depend on."""

    drafter: str
    max_k: int
    context: int | None
    num_rows: int
    sampling: Sampling


class Controllers:
    """Made when first asked for, and followed from pass to pass."""

    def __init__(self) -> None:
        self._costs: dict[_Setting, RoundCostModel] = {}
        self._known: dict[tuple[str, _Setting], Controller] = {}

    def open(
        self,
        request: Request,
        work: Work,
        load: Load,
        max_k: int,
        open_decoder: Callable[[], Decoder],
    ) -> tuple[Controller, float]:
        """The workload's controller, and the seconds spent on measuring round costs first.

        They are measured once for all workloads, by a decoder that does not stop early: a short
        answer shows few rounds.
        """
        setting = _Setting(work.drafter, max_k, work.context, load.concurrency, request.sampling)
        ks, seconds = default_ks(max_k), 0.0
        if setting not in self._costs:
            self._costs[setting], seconds = measure_round_costs(
                open_decoder(), request.prompt_ids, ks, load.concurrency, Sampler(request.sampling)
            )
        known = (work.workload, setting)
        if known not in self._known:
            self._known[known] = Controller(ks, self._costs[setting])
        return self._known[known], seconds

    def forget(self, drafter: str) -> None:
        """What was learnt of a drafter that is gone."""
        self._costs = {key: costs for key, costs in self._costs.items() if key.drafter != drafter}
        self._known = {key: c for key, c in self._known.items() if key[1].drafter != drafter}
