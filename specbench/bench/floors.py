"""The floor of a round: its bare forwards, measured alone between the blocks."""

from collections.abc import Iterator
from statistics import median

from specbench.bench.blocks import Cell
from specbench.engines.engine import Engine, RoundForward
from specbench.records import BlockRecord, ForwardCost

SAMPLES_PER_BLOCK = 3  # a few after every block: drift hits floors and rounds alike
_WARM_UPS = 2  # another cell's forwards ran before


def measure_floors(
    engine: Engine, cells: tuple[Cell, ...], block: BlockRecord
) -> Iterator[ForwardCost]:
    """Bare forwards of every cell of a block at its middle context.

    They run in a round's order, several rounds of them in a row: a forward that follows its own
    kind finds its weights in the caches, and one that follows another's does not.
    """
    context = middle_context(block)
    for cell in cells:
        forwards = engine.forwards(cell.drafter, cell.key.num_speculative_tokens)
        in_order = sorted(forwards, key=lambda forward: forward.role == "target")
        seconds: dict[RoundForward, list[float]] = {forward: [] for forward in forwards}
        for i in range(_WARM_UPS + SAMPLES_PER_BLOCK):
            for forward in in_order:
                for _ in range(forward.times):
                    (one_s,) = engine.forward_seconds(cell.drafter, forward, context, 1)
                    if i >= _WARM_UPS:
                        seconds[forward].append(one_s)
        for forward, samples in seconds.items():
            yield ForwardCost(
                cell_id=cell.key.id,
                role=forward.role,
                num_tokens=forward.num_tokens,
                num_per_round=forward.times,
                seconds=median(samples),
                num_samples=len(samples),
                part=forward.part,
            )


def middle_context(block: BlockRecord) -> int:
    """Tokens in the cache half-way through a block's typical request."""
    done = [r for r in block.requests if r.output_ids]
    return round(median(r.num_prompt_tokens + r.num_output_tokens / 2 for r in done)) if done else 1
