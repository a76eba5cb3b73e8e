"""A pair of made-up models whose acceptance is drawn: its speeds are real, its texts are not."""

from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu_suite.decoders import Pair
from benchmarks.gpu_suite.machine import Json, Machine
from benchmarks.gpu_suite.models import forward_bytes, make_model
from benchmarks.gpu_suite.timing import Point, measure_points
from specbench.decode.decoder import Decoder
from specbench.decode.launcher import GraphKind
from specbench.decode.lossy import SyntheticVerifier
from specbench.probes.device import measure_copy_bandwidth

ACCEPTANCE = 0.7  # of each draft, once those before it were accepted
CONTEXT = 512


@dataclass(frozen=True, kw_only=True)
class Star:
    """A pair on the device, and what the device's memory can do."""

    pair: Pair
    copy_bytes_per_s: float

    @property
    def machine(self) -> Machine:
        return self.pair.machine

    def decoder(self, *, forward: str = "auto", graph: GraphKind = "round") -> Decoder:
        """One that keeps drafts as often as ACCEPTANCE says."""
        verifier = SyntheticVerifier([ACCEPTANCE])
        return self.pair.decoder(
            forward=forward, graph=graph, verifier=verifier, prefill_chunk=2048
        )

    def point(
        self, decoder: Decoder, k: int, *, num_rows: int = 1, context: int | None = None
    ) -> Point:
        context = context or self.machine.pick(CONTEXT, 24)
        new_tokens = self.machine.pick(96, 12)
        middle = context + new_tokens // 2
        return Point(
            decoder=decoder,
            k=k,
            num_rows=num_rows,
            context=context,
            new_tokens=new_tokens,
            bytes_per_round=forward_bytes(self.pair.target, num_rows, middle)
            + k * forward_bytes(self.pair.draft, num_rows, middle),
        )

    def measured(self, points: dict[str, Point]) -> Json:
        repeats = self.machine.pick(5, 1)
        found = measure_points(points, self.machine, self.copy_bytes_per_s, repeats=repeats)
        left_out = [name for name in points if name not in {one["name"] for one in found}]
        return {"points": found, "left_out_for_time": left_out}


def open_star(machine: Machine, target: Any, draft: Any) -> Star:
    """Models of those configs in bfloat16."""
    pair = Pair(
        machine=machine,
        target=make_model(target, torch.bfloat16, machine.device),
        draft=make_model(draft, torch.bfloat16, machine.device, seed=1),
    )
    return Star(pair=pair, copy_bytes_per_s=measure_copy_bandwidth(machine.device))
