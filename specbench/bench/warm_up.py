"""Short answers that are recorded nowhere: they warm caches, make graphs and meet refusals."""

from collections.abc import Iterator

from specbench.bench.blocks import Cell, work_of
from specbench.decode.adaptive_k import default_ks
from specbench.engines.engine import Engine, Work
from specbench.records import Request, Sampling

WARM_UP_TOKENS = 12


def answer_shortly(engine: Engine, prompt_ids: tuple[int, ...], work: Work) -> None:
    """A few greedy tokens after the prompt."""
    request = Request(
        prompt_ids=prompt_ids, max_new_tokens=WARM_UP_TOKENS, sampling=Sampling(), seed=0
    )
    engine.generate(request, work)


def warm_up_works(cell: Cell, max_k: int | None) -> Iterator[Work]:
    """What to run before a cell counts: itself, or every K that it may pick, `max_k` at most.

    An adaptive cell's round costs are not measured here: that is part of its own time.
    """
    work = work_of(cell)
    if not work.adaptive:
        yield work
        return
    for k in default_ks(min(work.k, max_k or work.k)):
        yield Work(drafter=work.drafter, method=work.method, k=k)
