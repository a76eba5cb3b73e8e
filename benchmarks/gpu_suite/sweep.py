"""One factor at a time, from an 8B target with a 1B draft in bf16, made-up weights.

    python -m benchmarks.gpu_suite.sweep [--device cpu --small] [--only K rows ...]

The middle of the star: K = 4, one row, a round as one graph, the forward that wins, a prompt of 512
tokens, synthetic acceptance 0.7. Acceptance is drawn, so speeds are real and texts are not.
"""

from collections.abc import Callable

from benchmarks.gpu_suite.decoders import GRAPHS
from benchmarks.gpu_suite.machine import Json, Machine, Section, in_a_line, run_part
from benchmarks.gpu_suite.models import shape
from benchmarks.gpu_suite.star import Star, open_star
from specbench.engines.kernel_choices import FORWARDS
from specbench.errors import ModelError

K = 4
KS = tuple(range(9))
ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (512, 2048, 8192, 32_000)


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
    """Those that compete and run here."""
    decoders, refused = {}, {}
    for forward in FORWARDS:
        try:
            decoders[forward] = star.decoder(forward=forward)
        except ModelError as error:
            refused[forward] = in_a_line(error)
    points = {
        f"{forward}, K={k}": star.point(d, k) for forward, d in decoders.items() for k in (K, 0)
    }
    return star.measured(points) | {"refused": refused}


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
            self._star = open_star(machine, shape("llama-8b", machine), shape("llama-1b", machine))
        return self._star


def main(arguments: list[str] | None = None) -> Json:
    return run_part("sweep", Factors().sections(), arguments)


if __name__ == "__main__":
    main()
