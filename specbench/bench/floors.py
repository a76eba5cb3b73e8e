"""The floor of a round: its bare forwards, measured alone between the blocks."""

from collections.abc import Iterator
from statistics import median

from specbench.bench.blocks import Cell
from specbench.engines.engine import Engine
from specbench.records import BlockRecord, ForwardCost

SAMPLES_PER_BLOCK = 3  # a few after every block: drift hits floors and rounds alike


def measure_floors(
    engine: Engine, cells: tuple[Cell, ...], block: BlockRecord
) -> Iterator[ForwardCost]:
    """Bare forwards of every cell of a block at its middle context; equal shapes run once."""
    context = middle_context(block)
    known: dict[tuple[str, str, int], tuple[float, ...]] = {}
    for cell in cells:
        for forward in engine.forwards(cell.drafter, cell.key.num_speculative_tokens):
            owner = cell.drafter if forward.role == "drafter" else ""
            shape = (owner, forward.role, forward.num_tokens)
            if shape not in known:
                known[shape] = engine.forward_seconds(
                    cell.drafter, forward, context, SAMPLES_PER_BLOCK
                )
            yield ForwardCost(
                cell_id=cell.key.id,
                role=forward.role,
                num_tokens=forward.num_tokens,
                num_per_round=forward.times,
                seconds=median(known[shape]),
                num_samples=len(known[shape]),
            )


def middle_context(block: BlockRecord) -> int:
    """Tokens in the cache half-way through a block's typical request."""
    done = [r for r in block.requests if r.output_ids]
    return round(median(r.num_prompt_tokens + r.num_output_tokens / 2 for r in done)) if done else 1
