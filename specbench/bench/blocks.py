"""The unit of running, storing and resuming: which cells run on which prompts. No tensors."""

import hashlib
import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from specbench.engines.engine import Work
from specbench.records import (
    ALL_PROMPTS,
    NO_DRAFTER,
    BlockPurpose,
    BlockRecord,
    CellKey,
    Condition,
    PassRecord,
    Prompt,
    RequestRecord,
    SamplesRecord,
    Sampling,
)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A cell to run: its key, and how the target samples tokens in it."""

    key: CellKey
    sampling: Sampling

    @property
    def drafter(self) -> str:
        return self.key.draft.drafter

    @property
    def has_known_text(self) -> bool:
        """Whether every output is the target's greedy one, so that its length is known."""
        return self.sampling.temperature == 0 and self.key.draft.lossy is None


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """The unit of running, storing and resuming.

    With engines of this process, it runs every K once on one prompt, or on all prompts if several
    requests run concurrently. In a server session, it has one cell and all prompts.
    """

    condition: Condition  # of the first engine; cells of other engines differ only in the engine
    prompts: tuple[Prompt, ...]
    repeat: int
    purpose: BlockPurpose
    cells: tuple[Cell, ...]
    session: str | None = None  # the name of the server session
    cycle: int | None = None  # of that session

    @property
    def prompt_id(self) -> str:
        has_all = self.condition.is_stream or self.session is not None
        return ALL_PROMPTS if has_all else self.prompts[0].id

    @property
    def id(self) -> str:
        """The id, which is the same in every attempt at the run, in any order of the blocks."""
        if self.session is not None:
            return f"{self.session}|{self.cells[0].key.id}"
        cells = hashlib.sha256("\n".join(cell.key.id for cell in self.cells).encode())
        at = self.condition
        place = (at.target, at.workload, self.prompt_id, f"t{at.temperature:g}")
        parts = (*place, f"r{self.repeat}", self.purpose)
        return "|".join((*parts, cells.hexdigest()[:8]))

    def only(self, ids: Collection[str]) -> "Block":
        """The block with only the cells that have one of the ids."""
        return replace(self, cells=tuple(cell for cell in self.cells if cell.key.id in ids))

    def order(self, seed: int) -> tuple[Cell, ...]:
        """The cells in random order by the seed, in which they run: drift affects all alike."""
        cells = list(self.cells)
        random.Random(f"{seed}|{self.id}").shuffle(cells)
        return tuple(cells)

    def numbered_prompts(self) -> Iterator[tuple[Prompt, int]]:
        """Each prompt with its repeat number; a prompt that is listed again is another repeat."""
        num_each = -(-len(self.prompts) // len({prompt.id for prompt in self.prompts}))
        num_seen: Counter[str] = Counter()
        for prompt in self.prompts:
            yield prompt, self.repeat * num_each + num_seen[prompt.id]
            num_seen[prompt.id] += 1

    def record(
        self,
        order: Sequence[Cell],
        requests: Sequence[RequestRecord],
        passes: Sequence[PassRecord] = (),
        samples: Sequence[SamplesRecord] = (),
        *,
        started_at: str,
        node: str | None,
    ) -> BlockRecord:
        """The record of the block, whose cells ran in the given order."""
        return BlockRecord(
            block_id=self.id,
            workload=self.condition.workload,
            prompt_id=self.prompt_id,
            repeat=self.repeat,
            purpose=self.purpose,
            order=tuple(cell.key.id for cell in order),
            started_at=started_at,
            requests=tuple(requests),
            passes=tuple(passes),
            samples=tuple(samples),
            session=self.session,
            cycle=self.cycle,
            node=node,
        )


def with_baselines(cells: Sequence[Cell], ids: Collection[str]) -> tuple[Cell, ...]:
    """The cells with these ids, after the baselines of their conditions."""
    chosen = [cell for cell in cells if cell.key.id in ids]
    conditions = {cell.key.condition for cell in chosen}
    baselines = [c for c in cells if c.drafter == NO_DRAFTER and c.key.condition in conditions]
    return (*baselines, *(cell for cell in chosen if cell not in baselines))


def interleaved(lists: Sequence[Sequence[T]]) -> Iterator[T]:
    """The first item of each list, then the second of each, and so on."""
    for i in range(max(map(len, lists), default=0)):
        yield from (items[i] for items in lists if i < len(items))


def request_seed(seed: int, prompt_id: str, repeat: int, turn: int, sample: int = 0) -> int:
    """The seed of a request's sampling noise, the same for every K. The first of several samples
    has the seed of a single output."""
    place = f"{seed}|{prompt_id}|{repeat}|{turn}" + (f"|{sample}" if sample else "")
    digest = hashlib.sha256(place.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def work_of(cell: Cell) -> Work:
    """The method and K of a cell; adaptive work also has the workload and context."""
    key = cell.key
    return Work(
        drafter=key.draft.drafter,
        method=key.draft.method,
        k=key.draft.k,
        adaptive=key.draft.is_adaptive,
        workload=key.condition.workload if key.draft.is_adaptive else "",
        context=key.condition.context if key.draft.is_adaptive else None,
    )
