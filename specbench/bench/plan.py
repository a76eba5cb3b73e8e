"""What will be measured: cells made of blocks, with K = 0 always among them. No tensors."""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from specbench.config import Pairing, Target
from specbench.errors import UsageError
from specbench.records import (
    NO_DRAFTER,
    BlockPurpose,
    CellKey,
    CellPlan,
    Prompt,
    RunSettings,
    Sampling,
)
from specbench.workloads import Workload, load_workload

DEFAULT_K = 4
DEFAULT_PROMPTS = 10
SEEDS_WHEN_SAMPLING = 3  # texts differ by seed at temperature > 0: one seed says little
ENGINE = "builtin"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A cell to run: its key and the drafter's name within the target."""

    key: CellKey
    sampling: Sampling

    @property
    def drafter(self) -> str:
        return self.key.drafter


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One prompt, every K, one repeat: the unit of running, storing and resuming."""

    target: str
    workload: str
    prompt: Prompt
    repeat: int
    purpose: BlockPurpose
    cells: tuple[Cell, ...]

    @property
    def id(self) -> str:
        """Names the same work in every session of a run, whatever order it is done in."""
        cells = hashlib.sha256("\n".join(cell.key.id for cell in self.cells).encode())
        temperature = f"t{self.cells[0].key.temperature:g}"
        place = (self.target, self.workload, self.prompt.id, temperature)
        parts = (*place, f"r{self.repeat}", self.purpose)
        return "|".join((*parts, cells.hexdigest()[:8]))

    def order(self, seed: int) -> tuple[Cell, ...]:
        """The cells in the order they run in, drawn from the seed: drift hits all alike."""
        cells = list(self.cells)
        random.Random(f"{seed}|{self.id}").shuffle(cells)
        return tuple(cells)


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetPlan:
    """All that is to be measured of one target while it is loaded."""

    target: Target
    pairings: tuple[Pairing, ...]
    workloads: tuple[Workload, ...]
    settings: RunSettings
    dtype: str

    def prompts(self, workload: Workload) -> tuple[Prompt, ...]:
        """The prompts that may be used: under a budget or a precision, all of them."""
        if self.settings.num_prompts is not None:
            return workload.take(self.settings.num_prompts, self.settings.seed)
        if self.is_open_ended:
            return workload.take(len(workload.prompts), self.settings.seed)
        return workload.take(DEFAULT_PROMPTS, self.settings.seed)

    @property
    def is_open_ended(self) -> bool:
        return self.settings.budget_s is not None or self.settings.precision is not None

    def repeats(self, temperature: float) -> int:
        if self.settings.num_repeats is not None:
            return self.settings.num_repeats
        return SEEDS_WHEN_SAMPLING if temperature > 0 or self.is_open_ended else 1

    def cells(self, workload: str, temperature: float) -> tuple[Cell, ...]:
        """K = 0 once, then every K of every pairing."""
        baseline = self._cell(NO_DRAFTER, self.target.name, NO_DRAFTER, 0, workload, temperature)
        return (
            baseline,
            *(
                self._cell(p.drafter.name, p.name, p.drafter.method, k, workload, temperature)
                for p in self.pairings
                for k in self.ks(p)
                if k > 0
            ),
        )

    def ks(self, pairing: Pairing) -> tuple[int, ...]:
        if self.settings.num_speculative_tokens is not None:
            return self.settings.num_speculative_tokens
        return (pairing.drafter.num_speculative_tokens or DEFAULT_K,)

    def _cell(
        self, drafter: str, pairing: str, method: str, k: int, workload: str, temperature: float
    ) -> Cell:
        key = CellKey(
            pairing=pairing,
            target=self.target.name,
            drafter=drafter,
            workload=workload,
            engine=ENGINE,
            method=method,
            num_speculative_tokens=k,
            concurrency=1,
            temperature=temperature,
            dtype=self.dtype,
        )
        sampling = Sampling(
            temperature=temperature, top_k=self.settings.top_k, top_p=self.settings.top_p
        )
        return Cell(key=key, sampling=sampling)

    @property
    def all_cells(self) -> tuple[Cell, ...]:
        return tuple(
            cell
            for workload in self.workloads
            for temperature in self.settings.temperatures
            for cell in self.cells(workload.name, temperature)
        )

    def explore_blocks(self) -> Iterator[Block]:
        """Prompt by prompt through all workloads, so that a run cut short is balanced."""
        for repeat in range(max(self.repeats(t) for t in self.settings.temperatures)):
            yield from self._pass(repeat)

    def _pass(self, repeat: int) -> Iterator[Block]:
        chosen = {workload.name: self.prompts(workload) for workload in self.workloads}
        for i in range(max(map(len, chosen.values()))):
            for temperature in self.settings.temperatures:
                if repeat >= self.repeats(temperature):
                    continue
                for name, prompts in chosen.items():
                    if i < len(prompts):
                        yield Block(
                            target=self.target.name,
                            workload=name,
                            prompt=prompts[i],
                            repeat=repeat,
                            purpose="explore",
                            cells=self.cells(name, temperature),
                        )

    def cell_plans(self) -> tuple[CellPlan, ...]:
        """What the run sets out to do; a budget may end it earlier."""
        num_prompts: Mapping[str, int] = {w.name: len(self.prompts(w)) for w in self.workloads}
        return tuple(
            CellPlan(
                key=cell.key,
                num_prompts=num_prompts[cell.key.workload],
                num_repeats=self.repeats(cell.key.temperature),
            )
            for cell in self.all_cells
        )


def confirm_block(explored: Block, cells: Sequence[Cell], first_repeat: int) -> Block:
    """The same prompt again with K = 0 and the chosen cells only, on a fresh repeat."""
    return Block(
        target=explored.target,
        workload=explored.workload,
        prompt=explored.prompt,
        repeat=first_repeat + explored.repeat,
        purpose="confirm",
        cells=tuple(cells),
    )


def request_seed(seed: int, prompt_id: str, repeat: int, turn: int) -> int:
    """The seed of one request's noise, the same for every K."""
    digest = hashlib.sha256(f"{seed}|{prompt_id}|{repeat}|{turn}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def plan_targets(
    settings: RunSettings, pairings: Sequence[Pairing], dtype_of: Callable[[Target], str]
) -> tuple[TargetPlan, ...]:
    """One plan a target, in the order the pairings name them.

    Raises WorkloadError, and UsageError for two workloads of one name.
    """
    by_target: dict[str, list[Pairing]] = {}
    for pairing in pairings:
        by_target.setdefault(pairing.target.name, []).append(pairing)
    return tuple(
        TargetPlan(
            target=group[0].target,
            pairings=tuple(group),
            workloads=_load_workloads(settings.workloads, group[0].target),
            settings=settings,
            dtype=dtype_of(group[0].target),
        )
        for group in by_target.values()
    )


def _load_workloads(names: Sequence[str], target: Target) -> tuple[Workload, ...]:
    by_name: dict[str, Workload] = {}
    for name in names:
        workload = load_workload(name, folder=target.workloads)
        twin = by_name.setdefault(workload.name, workload)
        if twin is not workload:
            raise UsageError(
                f"--workload: {twin.path} and {workload.path} are both called {workload.name}, "
                "and a run tells workloads apart by name; rename one"
            )
    return tuple(by_name.values())


def foreign_workloads(plan: TargetPlan) -> tuple[str, ...]:
    """Workloads that are not the target's own, where it has some: text it was not made for."""
    own = plan.target.workloads
    return tuple(w.name for w in plan.workloads if own is not None and w.path.parent != own)
