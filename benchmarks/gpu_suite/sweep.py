"""One factor at a time, from an 8B target with a 1B draft in bf16, made-up weights.

    python -m benchmarks.gpu_suite.sweep [--device cpu --small] [--only K rows ...]

The middle of the star: K = 4, one row, a round as one graph, the fused forward, a prompt of 512
tokens, synthetic acceptance 0.7. Acceptance is drawn, so speeds are real and texts are not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu_suite.decoders import GRAPHS, Pair
from benchmarks.gpu_suite.machine import Json, Machine, Section, run_part
from benchmarks.gpu_suite.models import make_model, read_bytes, shape
from benchmarks.gpu_suite.timing import Point, measure_points
from specbench.costs import bytes_per_forward
from specbench.decoding.decoder import Decoder
from specbench.decoding.launcher import GraphKind
from specbench.decoding.self_test import Forward
from specbench.decoding.synthetic import SyntheticVerifier
from specbench.probes.bandwidth import measure_copy_bandwidth

ACCEPTANCE = 0.7
K, CONTEXT = 4, 512
KS = tuple(range(9))
ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (512, 2048, 8192, 32_000)
FORWARDS: tuple[Forward, ...] = ("stock", "fused")


@dataclass(frozen=True, kw_only=True)
class Star:
    """A pair on the device, and what the device's memory can do."""

    pair: Pair
    copy_bytes_per_s: float

    @property
    def machine(self) -> Machine:
        return self.pair.machine

    def decoder(self, *, forward: Forward = "fused", graph: GraphKind = "round") -> Decoder:
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
            bytes_per_round=self._bytes(self.pair.target, num_rows, middle)
            + k * self._bytes(self.pair.draft, num_rows, middle),
        )

    def measured(self, points: dict[str, Point]) -> Json:
        repeats = self.machine.pick(5, 1)
        found = measure_points(points, self.machine, self.copy_bytes_per_s, repeats=repeats)
        left_out = [name for name in points if name not in {one["name"] for one in found}]
        return {"points": found, "left_out_for_time": left_out}

    def _bytes(self, model: Any, rows: int, context: int) -> int:
        config = model.config
        kv = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        return bytes_per_forward(read_bytes(model), rows, context, kv * model.dtype.itemsize)


def by_k(star: Star) -> Json:
    decoder, most = star.decoder(), star.machine.pick(8, 2)
    return star.measured({f"K={k}": star.point(decoder, k) for k in KS if k <= most})


def by_rows(star: Star) -> Json:
    """Rows in flight; most first, so that the caches grow once."""
    decoder, most = star.decoder(), star.machine.pick(64, 2)
    counts = [rows for rows in reversed(ROWS) if rows <= most]
    return star.measured(
        {
            f"{rows} rows, K={k}": star.point(decoder, k, num_rows=rows)
            for rows in counts
            for k in (K, 0)
        }
    )


def by_graph(star: Star) -> Json:
    decoders = {graph: star.decoder(graph=graph) for graph in GRAPHS}
    return star.measured(
        {f"{graph}, K={k}": star.point(d, k) for graph, d in decoders.items() for k in (K, 0)}
    )


def by_forward(star: Star) -> Json:
    decoders = {forward: star.decoder(forward=forward) for forward in FORWARDS}
    return star.measured(
        {f"{forward}, K={k}": star.point(d, k) for forward, d in decoders.items() for k in (K, 0)}
    )


def by_context(star: Star) -> Json:
    """Longest first, for the same reason."""
    decoder, longest = star.decoder(), star.machine.pick(32_000, 48)
    chosen = [n for n in reversed(CONTEXTS) if n <= longest] or [longest, 24]
    return star.measured(
        {f"{n} tokens, K={k}": star.point(decoder, k, context=n) for n in chosen for k in (K, 0)}
    )


class Factors:
    """The factors as sections that share one pair of models, made when first needed."""

    def __init__(self) -> None:
        self._star: Star | None = None

    def sections(self) -> dict[str, Section]:
        factors = {
            "K": by_k,
            "graph": by_graph,
            "forward": by_forward,
            "rows": by_rows,
            "context": by_context,
        }
        return {name: self._section(factor) for name, factor in factors.items()}

    def _section(self, factor: Callable[[Star], Json]) -> Section:
        return lambda machine: factor(self._opened(machine))

    def _opened(self, machine: Machine) -> Star:
        if self._star is None:
            dtype, device = torch.bfloat16, machine.device
            pair = Pair(
                machine=machine,
                target=make_model(shape("llama-8b", machine), dtype, device),
                draft=make_model(shape("llama-1b", machine), dtype, device, seed=1),
            )
            self._star = Star(pair=pair, copy_bytes_per_s=measure_copy_bandwidth(device))
        return self._star


def main(arguments: list[str] | None = None) -> Json:
    return run_part("sweep", Factors().sections(), arguments)


if __name__ == "__main__":
    main()
