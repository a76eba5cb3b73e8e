"""The plan of a run: its cells, which always include K = 0, and their blocks. No tensors."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from specbench.bench.blocks import Block, Cell
from specbench.bench.budget import EXPLORE_SHARE
from specbench.decide.cross_fit import are_enough
from specbench.engines.deployment import vocabulary_notes
from specbench.engines.served_engine import find_served
from specbench.engines.transformers import ASSISTED_DEFAULT_K, BASELINES, COUNTERPARTS
from specbench.inputs.pairing import DrafterSpec, Pairing, Target
from specbench.inputs.workloads import DEFAULT_MAX_NEW_TOKENS, Workload
from specbench.methods import find_method
from specbench.records import (
    ASSISTED_DEFAULT,
    SESSIONS_PER_K,
    Auto,
    CellKey,
    CellPlan,
    Condition,
    DraftConfig,
    Fixed,
    Kind,
    Length,
    Prompt,
    Reason,
    Sampling,
)
from specbench.settings import BUILTIN, SERVED, RunSettings
from specbench.settings.groups import DEFAULT_K, DEFAULT_PROMPTS, ENOUGH_PROMPTS
from specbench.stats.crossed import FEWEST_PLANNED
from specbench.stats.spread import MIN_UNITS

SEEDS_WHEN_SAMPLING = 3  # texts differ by seed at temperature > 0
ADAPTIVE_K = 8  # the most that K = auto drafts if no fixed K is measured
PASSES = 6  # with concurrent requests: an interval needs five
ENOUGH_ARRIVALS = 24  # requests per pass, enough to detect a growing queue
WAITING_PER_ROW = 3  # requests of a pass per concurrent one: all rows are busy for most of it
TEMPLATE_TOKENS = 256  # an estimate of what a chat template adds, if only the server can count


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetPlan:
    """The measurements of one target while it is loaded."""

    target: Target
    pairings: tuple[Pairing, ...]
    workloads: tuple[Workload, ...]
    settings: RunSettings
    dtype: str  # "auto" until its device is known
    depths: Mapping[str, int] = field(default_factory=dict)  # the deepest K of a drafter
    # The most tokens of a conversation; inf: no limit; None: the target's files are not read yet.
    context: float | None = None
    # The K of running servers; None: servers are started.
    running_ks: tuple[int, ...] | None = None
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)  # why, by engine, drafter
    budget_share: float = 1.0  # of each of the `parts`

    def prompts(self, workload: Workload) -> tuple[Prompt, ...]:
        """The prompts that may be used; all of them if a budget or a precision is set."""
        effort = self.settings.effort
        default = len(workload.prompts) if effort.is_open_ended else DEFAULT_PROMPTS
        return workload.take(effort.num_prompts or default, self.settings.seed)

    def workload(self, name: str) -> Workload:
        return next(workload for workload in self.workloads if workload.name == name)

    def max_new_tokens(self, workload: str) -> int:
        """The limit of an answer."""
        requested = self.settings.sampling.max_new_tokens
        return requested or self.workload(workload).max_new_tokens or DEFAULT_MAX_NEW_TOKENS

    def measured(self, workload: Workload) -> tuple[Prompt, ...]:
        """The prompts of the exploration. A race of servers leaves as many for the confirmation,
        as all of them would be used up by its first session."""
        settings = self.settings.forecasting
        is_narrowed = settings.forecast and not settings.exhaustive
        prompts = self.after_forecast(workload) if is_narrowed else self.prompts(workload)
        half = len(workload.prompts) // 2
        return prompts[:half] if self._is_race and half >= MIN_UNITS else prompts

    @property
    def _is_race(self) -> bool:
        """Whether a time budget lets servers alone choose among several starts, on any prompts."""
        effort = self.settings.effort
        if effort.budget_s is None or effort.num_prompts is not None or self.in_process is not None:
            return False
        starts = {(c.key.draft, c.key.condition.variant) for c in self.all_cells if c.key.draft.k}
        return len(starts) > 1

    def after_forecast(self, workload: Workload) -> tuple[Prompt, ...]:
        """The prompts to measure after a forecast over all: a few, unless their number is set."""
        effort = self.settings.effort
        is_set = effort.num_prompts is not None or effort.is_open_ended
        return self.prompts(workload)[: None if is_set else ENOUGH_PROMPTS]

    def other_prompts(
        self, workload: Workload, used: Collection[str], num: int | None = None
    ) -> tuple[Prompt, ...]:
        """So many prompts of a workload, or as many as were used, without those; empty if too few
        are left to confirm a choice with."""
        num = num or len(used)
        every = workload.take(len(workload.prompts), self.settings.seed)
        unused = [prompt for prompt in every if prompt.id not in used]
        if self.settings.forecasting.forecast:  # traced prompts chose the K that were measured
            unused.sort(key=self.prompts(workload).__contains__)
        unused = unused[:num]
        return tuple(unused) if are_enough(len(unused), num) else ()

    def pass_prompts(self, workload: Workload, condition: Condition) -> tuple[Prompt, ...]:
        """The prompts of a pass with concurrent requests, repeated if the workload has too few."""
        usual, effort = WAITING_PER_ROW * condition.concurrency, self.settings.effort
        if condition.request_rate is not None:
            arrivals = ENOUGH_ARRIVALS
            if self.budget_s is not None and not self.served:
                # The passes of K = 0 and of one K have to fit, and take as long as the arrivals.
                pass_s = EXPLORE_SHARE * self.budget_s / len(self.conditions) / (2 * PASSES)
                arrivals = min(arrivals, int(pass_s * condition.request_rate))
            usual = max(usual, arrivals)
        wanted = effort.num_requests or effort.num_prompts or usual
        most = min(effort.num_prompts or wanted, len(workload.prompts))
        prompts = workload.take(most, self.settings.seed)
        return tuple(prompts[i % len(prompts)] for i in range(wanted))

    @property
    def served(self) -> tuple[str, ...]:
        """The engines that run as servers."""
        return self.settings.load.served

    @property
    def in_process(self) -> "TargetPlan | None":
        """The plan of the engines in this process; None if there are none."""
        load = self.settings.load
        if not load.in_process:
            return None
        settings = replace(self.settings, load=replace(load, engines=load.in_process))
        return replace(self, pairings=self.builtin_pairings, settings=settings)

    @property
    def parts(self) -> tuple[str | None, ...]:
        """The parts that are measured one after another: serving engines, None for this process."""
        return (*(() if self.in_process is None else (None,)), *self.served)

    @property
    def budget_s(self) -> float | None:
        """Seconds of the time budget for each of the `parts`; None without a budget."""
        budget_s = self.settings.effort.budget_s
        return None if budget_s is None else budget_s * self.budget_share

    @property
    def builtin_pairings(self) -> tuple[Pairing, ...]:
        """The pairings whose method the built-in decoder has."""
        return tuple(p for p in self.pairings if find_method(p.drafter.method).is_builtin)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions of the first engine; those of other engines differ only in the engine."""
        load = self.settings.load
        return tuple(
            Condition(
                target=self.target.name,
                workload=workload.name,
                temperature=temperature,
                concurrency=concurrency,
                request_rate=load.request_rate,
                num_samples=num_samples,
                context=context,
                request_settings=workload.request_settings,
                dtype=self.dtype,
                engine=load.engines[0],
            )
            for workload in self.workloads
            for temperature in self.settings.sampling.temperatures
            for context in load.contexts or (None,)
            for concurrency in load.concurrency
            for num_samples in dict.fromkeys((1, load.num_samples))
        )

    @property
    def cycles(self) -> int:
        """The fewest cycles of sessions in the exploration."""
        return self.settings.servers.cycles or FEWEST_PLANNED

    def repeats(self, condition: Condition) -> int:
        effort = self.settings.effort
        if effort.num_repeats is not None:
            return effort.num_repeats
        if condition.is_stream:
            return PASSES
        return SEEDS_WHEN_SAMPLING if condition.temperature > 0 or effort.is_open_ended else 1

    def ks(self, pairing: Pairing) -> tuple[int, ...]:
        """The requested K, or else the K of the default range that the drafter can draft."""
        drafter, requested = pairing.drafter, self.settings.draft.num_speculative_tokens
        row = find_method(drafter.method)
        if self.running_ks is not None:
            return self.running_ks
        if requested is None:
            default = drafter.num_speculative_tokens
            requested = (default or self.within_reach(drafter.name, DEFAULT_K),)
        elif self.settings.draft.is_default_range:
            usual = (0, *row.usual_ks[: len(requested) - 1]) if row.usual_ks else requested
            requested = tuple(k for k in usual if k <= self.within_reach(drafter.name, k))
        if row.only_k is not None:
            return tuple(dict.fromkeys(row.only_k if k else 0 for k in requested))
        return requested

    def within_reach(self, drafter: str, k: int) -> int:
        """K, or the drafter's deepest K if that is smaller."""
        return min(k, self.depths.get(drafter, k))

    @property
    def left_out(self) -> Iterator[Reason]:
        """Notes on lines of files, K and drafters that are left out, and of servers on a draft
        model's vocabulary."""
        yield from (Kind.NOTE(text=note) for w in self.workloads for note in w.notes)
        draft = self.settings.draft
        is_limited = draft.is_default_range or any(map(_limits_k, self.served))
        for pairing in self.pairings if self.running_ks is None else ():
            ks = draft.num_speculative_tokens or () if is_limited else ()
            reach = partial(self.within_reach, pairing.drafter.name)
            if deeper := [k for k in ks if k > reach(k)]:
                yield Kind.K_TOO_DEEP(pairing=pairing.name, k=min(deeper))
            hottest = max(self.settings.sampling.temperatures)
            for engine in self.served:
                if (engine, pairing.drafter.name) not in self.refused:
                    for note in vocabulary_notes(engine, pairing, hottest):
                        yield Kind.NOTE(text=note)
        yield from (Kind.NOTE(text=note) for note in dict.fromkeys(self.refused.values()))

    def largest_k(self, pairing: Pairing) -> int:
        """The largest K of the pairing's cells; 0: only the baseline is measured."""
        fixed = max(self.ks(pairing), default=0)
        return (fixed or ADAPTIVE_K) if self.settings.draft.adaptive else fixed

    def cells(self, condition: Condition) -> tuple[Cell, ...]:
        """K = 0 of every engine, then every K of every pairing, then the adaptive ones."""
        made: list[Cell] = []
        for engine in self.settings.load.engines:
            if engine in SERVED:
                made += self.served_cells(replace(condition, engine=engine))
            elif engine == BUILTIN:
                made += self._builtin_cells(condition)
            elif not condition.is_stream:
                made += self._peer_cells(replace(condition, engine=engine))
        return tuple(made)

    def _builtin_cells(self, condition: Condition) -> Iterator[Cell]:
        condition = replace(condition, engine=BUILTIN)
        yield self._cell(condition, DraftConfig.none)
        for pairing in self.builtin_pairings:
            lengths: list[Length] = [Fixed(k) for k in self.ks(pairing) if k > 0]
            if self.settings.draft.adaptive:
                lengths.append(Auto(self.largest_k(pairing)))
            for length in lengths:
                yield self._cell(condition, _draft(pairing.drafter, length))

    def served_cells(self, condition: Condition) -> Iterator[Cell]:
        """K = 0 and every K of every pairing, of one serving engine, under each variant.

        With an adaptive K the variants after the first are the engine's own schemes, which choose
        from the K up to the largest, or further.
        """
        variants = self.settings.servers.variants or (None,)
        conditions = [replace(condition, variant=variant) for variant in variants]
        if self.running_ks is None or 0 in self.running_ks:
            yield from (self._cell(at, DraftConfig.none) for at in conditions)
        num_fixed = 1 if self.settings.draft.adaptive else len(conditions)
        for pairing in self.pairings:
            if (condition.engine, pairing.drafter.name) in self.refused:
                continue
            for k in self._served_ks(condition.engine, pairing):
                if k > 0:
                    draft = _draft(pairing.drafter, Fixed(k))
                    yield from (self._cell(at, draft) for at in conditions[:num_fixed])
            reach = find_served(condition.engine).PROPERTIES.schemes_reach
            adaptive = _draft(pairing.drafter, Auto(max(self.largest_k(pairing), reach)))
            yield from (self._cell(at, adaptive) for at in conditions[num_fixed:])

    def _served_ks(self, engine: str, pairing: Pairing) -> Iterable[int]:
        """The K of a serving engine. K beyond the drafter's deepest are that one where the engine
        limits K itself, as all of them would draft alike."""
        ks = self.ks(pairing)
        if self.running_ks is not None or not _limits_k(engine):
            return ks
        return dict.fromkeys(self.within_reach(pairing.drafter.name, k) for k in ks)

    def _peer_cells(self, condition: Condition) -> Iterator[Cell]:
        for method in BASELINES:
            yield self._cell(condition, replace(DraftConfig.none, method=method))
        for pairing in self.pairings:
            for method in peers_of(pairing.drafter):
                has_own_k = method == ASSISTED_DEFAULT
                for k in (ASSISTED_DEFAULT_K,) if has_own_k else self.ks(pairing):
                    if k > 0:
                        draft = _draft(pairing.drafter, Fixed(k))
                        yield self._cell(condition, replace(draft, method=method))

    def _cell(self, condition: Condition, draft: DraftConfig) -> Cell:
        top_k, top_p = self.settings.sampling.top_k, self.settings.sampling.top_p
        sampling = Sampling(temperature=condition.temperature, top_k=top_k, top_p=top_p)
        return Cell(key=CellKey(condition=condition, draft=draft), sampling=sampling)

    @property
    def all_cells(self) -> tuple[Cell, ...]:
        return tuple(cell for condition in self.conditions for cell in self.cells(condition))

    def explore_blocks(self) -> Iterator[Block]:
        """The blocks, prompt by prompt through all workloads, so that a short run is balanced.

        Settings come in step with the blocks that each needs for an interval, so that a time budget
        does not end with all prompts of one request and too few passes of several.
        """
        alike: dict[Condition, list[Condition]] = {}  # conditions that differ only in the workload
        for condition in self.conditions:
            alike.setdefault(condition.without("workload"), []).append(condition)
        settings = [condition for group in alike.values() for condition in group]
        most = max(len(self.measured(workload)) for workload in self.workloads)
        places = []  # when, and the block
        for order, condition in enumerate(settings):
            workload = self.workload(condition.workload)
            each: list[tuple[Prompt, ...]] = [(prompt,) for prompt in self.measured(workload)]
            if condition.is_stream:
                each = [self.pass_prompts(workload, condition)]
            for repeat in range(self.repeats(condition)):
                for i, prompts in enumerate(each):
                    done = repeat if condition.is_stream else repeat * most + i
                    share = done / self.needed_blocks(condition)
                    whole = repeat, 0 if condition.is_stream else i
                    when = (share, order) if self.settings.effort.is_open_ended else (*whole, order)
                    places.append((when, condition, prompts, repeat))
        for _, condition, prompts, repeat in sorted(places, key=lambda place: place[0]):
            yield Block(
                condition=condition,
                prompts=prompts,
                repeat=repeat,
                purpose="explore",
                cells=self.cells(condition),
            )

    def needed_blocks(self, condition: Condition) -> int:
        """The blocks that an interval of a setting needs: passes, or prompts."""
        return PASSES if condition.is_stream else DEFAULT_PROMPTS

    def cell_plans(self) -> tuple[CellPlan, ...]:
        """The planned number of prompts and repeats per cell; a budget may end the run earlier."""
        plans = []
        for condition in self.conditions:
            workload = self.workload(condition.workload)
            prompts = self.measured(workload)
            if condition.is_stream:
                prompts = self.pass_prompts(workload, condition)
            plans += [
                CellPlan(
                    key=cell.key,
                    num_prompts=len({prompt.id for prompt in prompts}),
                    num_repeats=self.cycles * SESSIONS_PER_K
                    if cell.key.condition.engine in SERVED
                    else self.repeats(condition),
                )
                for cell in self.cells(condition)
            ]
        return tuple(plans)


def _limits_k(engine: str) -> bool:
    return find_served(engine).PROPERTIES.limits_k


def _draft(drafter: DrafterSpec, length: Length) -> DraftConfig:
    lossy = str(drafter.lossy) if drafter.lossy else None
    return DraftConfig(
        drafter=drafter.name,
        method=drafter.method,
        length=length,
        lossy=lossy,
        p_min=drafter.p_min,
    )


def peers_of(drafter: DrafterSpec) -> tuple[str, ...]:
    """The methods of transformers that match the drafter's; empty if it has a lossy rule or p_min,
    of which transformers' own differ."""
    return () if drafter.lossy or drafter.p_min else COUNTERPARTS.get(drafter.method, ())


def methods_in(engine: str, drafter: DrafterSpec) -> tuple[str, ...]:
    """The methods by which an engine of this process drafts as the drafter; empty without one."""
    return (drafter.method,) if engine == BUILTIN else peers_of(drafter)
