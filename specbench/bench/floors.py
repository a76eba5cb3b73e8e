"""The floor of a round: its model forwards, measured alone in turns with the round itself."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median

from specbench.bench.blocks import Cell
from specbench.bench.work import work_of
from specbench.engines.engine import EngineRequest, Instrumented
from specbench.records import BlockRecord, ForwardCost

ROUNDS = 12  # beside a block
WARM_UPS = 4  # the rounds after a prefill are slower
BLOCKS = 8  # of a cell; further ones would tell no more


def measure_floors(
    engine: Instrumented, cells: tuple[Cell, ...], request_of: Callable[[Cell], EngineRequest]
) -> Iterator[ForwardCost]:
    """Bare forwards of every cell, in the order of its rounds, and some rounds between them.

    A machine's speed changes within a second, and a forward that follows another model's finds
    its weights in no cache: only in turns are both measured alike. Cells have a fixed K.
    """
    for cell in cells:
        request = request_of(cell)
        num_tokens = ROUNDS * (cell.key.draft.k + 1) + 1
        short = replace(
            request,
            max_new_tokens=min(num_tokens, request.max_new_tokens),
            stop_at_eos=False,
            conversation=None,
        )
        floor = engine.floor(short, work_of(cell))
        if floor is None or not floor.round_s:
            continue
        first = min(WARM_UPS, len(floor.round_s) // 2)  # a short answer has few rounds
        for forward, seconds in floor.forward_s.items():
            counted = seconds[first * forward.times :]
            yield ForwardCost(
                cell_id=cell.key.id,
                role=forward.role,
                num_tokens=forward.num_tokens,
                num_per_round=forward.times,
                seconds=median(counted),
                num_samples=len(counted),
                part=forward.part,
                round_s=median(floor.round_s[first:]),
            )


def middle_context(block: BlockRecord) -> int:
    """Tokens in the cache half-way through a block's typical request."""
    done = [r for r in block.requests if r.output_ids]
    return round(median(r.num_prompt_tokens + r.num_output_tokens / 2 for r in done)) if done else 1
