"""What will be measured: cells made of blocks, with K = 0 always among them. No tensors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from specbench.bench.blocks import Block, Cell, Setting
from specbench.bench.depth import ReadHead, any_shape, depths, headers_on_this_machine
from specbench.bench.pruning import ENOUGH_PROMPTS
from specbench.engines.peers import ASSISTED_DEFAULT, ASSISTED_DEFAULT_K, BASELINES, peer_methods
from specbench.errors import UsageError
from specbench.inputs.config import Drafter, Pairing, Target
from specbench.inputs.workloads import Workload, load_workloads
from specbench.records import NO_DRAFTER, CellKey, CellPlan, Prompt, RunSettings, Sampling, too_deep

DEFAULT_K = 4
DEFAULT_PROMPTS = 10
SEEDS_WHEN_SAMPLING = 3  # texts differ by seed at temperature > 0: one seed says little
ADAPTIVE_K = 8  # the most that K = auto drafts when no K is named beside it
PASSES = 6  # of the prompt list above one row: an interval needs five
WAITING_PER_ROW = 3  # requests a row in a pass, so that all rows are busy for most of it
BUILTIN = "builtin"
TRANSFORMERS = "transformers"


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetPlan:
    """All that is to be measured of one target while it is loaded."""

    target: Target
    pairings: tuple[Pairing, ...]
    workloads: tuple[Workload, ...]
    settings: RunSettings
    dtype: str
    depths: Mapping[str, int] = field(default_factory=dict)  # the deepest K of a drafter

    def prompts(self, workload: Workload) -> tuple[Prompt, ...]:
        """The prompts that may be used: under a budget or a precision, all of them."""
        if self.settings.num_prompts is not None:
            return workload.take(self.settings.num_prompts, self.settings.seed)
        if self.is_open_ended:
            return workload.take(len(workload.prompts), self.settings.seed)
        return workload.take(DEFAULT_PROMPTS, self.settings.seed)

    def measured(self, workload: Workload) -> tuple[Prompt, ...]:
        """The prompts of the first pass."""
        is_narrowed = self.settings.forecast and not self.settings.exhaustive
        return self.after_forecast(workload) if is_narrowed else self.prompts(workload)

    def after_forecast(self, workload: Workload) -> tuple[Prompt, ...]:
        """After a forecast over all prompts a few will do, unless their number was asked for."""
        is_told = self.settings.num_prompts is not None or self.is_open_ended
        return self.prompts(workload)[: None if is_told else ENOUGH_PROMPTS]

    def pass_prompts(self, workload: Workload, concurrency: int) -> tuple[Prompt, ...]:
        """The prompt list of one pass over many rows; it starts again where it is too short."""
        wanted = self.settings.num_prompts or WAITING_PER_ROW * concurrency
        prompts = workload.take(min(wanted, len(workload.prompts)), self.settings.seed)
        return tuple(prompts[i % len(prompts)] for i in range(wanted))

    @property
    def is_open_ended(self) -> bool:
        return self.settings.budget_s is not None or self.settings.precision is not None

    @property
    def all_settings(self) -> tuple[Setting, ...]:
        asked = self.settings
        return tuple(
            Setting(
                workload=workload.name,
                temperature=temperature,
                concurrency=concurrency,
                context=context,
                request_rate=asked.request_rate,
                num_samples=num_samples,
            )
            for workload in self.workloads
            for temperature in asked.temperatures
            for context in asked.contexts or (None,)
            for concurrency in asked.concurrency
            for num_samples in dict.fromkeys((1, asked.num_samples))
        )

    def _turn(self, setting: Setting) -> tuple[int, ...]:
        """Workloads take turns within everything else that settings differ by."""
        asked = self.settings
        context = asked.contexts.index(setting.context) if setting.context is not None else 0
        rows = asked.concurrency.index(setting.concurrency)
        temperature = asked.temperatures.index(setting.temperature)
        return temperature, context, rows, setting.num_samples

    def repeats(self, setting: Setting) -> int:
        if self.settings.num_repeats is not None:
            return self.settings.num_repeats
        if setting.is_stream:
            return PASSES
        return SEEDS_WHEN_SAMPLING if setting.temperature > 0 or self.is_open_ended else 1

    def ks(self, pairing: Pairing) -> tuple[int, ...]:
        """Of K that nobody asked for, those that the drafter can draft; all that were asked for."""
        drafter, asked = pairing.drafter, self.settings.num_speculative_tokens
        if asked is None:
            own = drafter.num_speculative_tokens
            return (own or self.within_reach(drafter.name, DEFAULT_K),)
        if self.settings.is_default_range:
            return tuple(k for k in asked if k <= self.within_reach(drafter.name, k))
        return asked

    def within_reach(self, drafter: str, k: int) -> int:
        """K, or the deepest that the drafter can draft."""
        return min(k, self.depths.get(drafter, k))

    @property
    def left_out(self) -> Iterator[str]:
        """Which K of a default range are not in the plan, and why."""
        for pairing in self.pairings:
            ks = set(self.settings.num_speculative_tokens or ())
            if deeper := ks.difference(self.ks(pairing)):
                yield too_deep(pairing.name, min(deeper))

    def largest_k(self, pairing: Pairing) -> int:
        """The most that any of its cells may draft; 0: only the baseline is measured."""
        fixed = max(self.ks(pairing), default=0)
        return (fixed or ADAPTIVE_K) if self.settings.adaptive else fixed

    def cells(self, setting: Setting) -> tuple[Cell, ...]:
        """K = 0 of every engine, then every K of every pairing, then the adaptive ones."""
        made: list[Cell] = []
        for engine in self.settings.engines:
            if engine == BUILTIN:
                made += self._builtin_cells(setting)
            elif not setting.is_stream:
                made += self._peer_cells(setting)
        return tuple(made)

    def _builtin_cells(self, setting: Setting) -> Iterator[Cell]:
        yield self._cell(setting, BUILTIN, None, NO_DRAFTER, 0)
        for pairing in self.pairings:
            method = pairing.drafter.method
            for k in self.ks(pairing):
                if k > 0:
                    yield self._cell(setting, BUILTIN, pairing, method, k)
            if self.settings.adaptive:
                most = self.largest_k(pairing)
                yield self._cell(setting, BUILTIN, pairing, method, most, adaptive=True)

    def _peer_cells(self, setting: Setting) -> Iterator[Cell]:
        for method in BASELINES:
            yield self._cell(setting, TRANSFORMERS, None, method, 0)
        for pairing in self.pairings:
            for method in peers_of(pairing.drafter):
                own = method == ASSISTED_DEFAULT
                for k in (ASSISTED_DEFAULT_K,) if own else self.ks(pairing):
                    if k > 0:
                        yield self._cell(setting, TRANSFORMERS, pairing, method, k)

    def _cell(
        self,
        setting: Setting,
        engine: str,
        pairing: Pairing | None,
        method: str,
        k: int,
        *,
        adaptive: bool = False,
    ) -> Cell:
        key = CellKey(
            pairing=pairing.name if pairing else self.target.name,
            target=self.target.name,
            drafter=pairing.drafter.name if pairing else NO_DRAFTER,
            workload=setting.workload,
            engine=engine,
            method=method,
            num_speculative_tokens=k,
            concurrency=setting.concurrency,
            temperature=setting.temperature,
            dtype=self.dtype,
            adaptive=adaptive,
            context=setting.context,
            request_rate=setting.request_rate,
            num_samples=setting.num_samples,
            lossy=str(pairing.drafter.lossy) if pairing and pairing.drafter.lossy else None,
        )
        top_k, top_p = self.settings.top_k, self.settings.top_p
        sampling = Sampling(temperature=setting.temperature, top_k=top_k, top_p=top_p)
        return Cell(key=key, sampling=sampling)

    @property
    def all_cells(self) -> tuple[Cell, ...]:
        return tuple(cell for setting in self.all_settings for cell in self.cells(setting))

    def explore_blocks(self) -> Iterator[Block]:
        """Prompt by prompt through all workloads, so that a run cut short is balanced."""
        settings = sorted(self.all_settings, key=self._turn)
        chosen = {workload.name: self.measured(workload) for workload in self.workloads}
        workloads = {workload.name: workload for workload in self.workloads}
        for repeat in range(max(map(self.repeats, settings))):
            for i in range(max(map(len, chosen.values()))):
                for setting in settings:
                    prompts = chosen[setting.workload][i : i + 1]
                    if setting.is_stream:
                        workload = workloads[setting.workload]
                        every = self.pass_prompts(workload, setting.concurrency)
                        prompts = () if i else every
                    if prompts and repeat < self.repeats(setting):
                        yield Block(
                            target=self.target.name,
                            setting=setting,
                            prompts=prompts,
                            repeat=repeat,
                            purpose="explore",
                            cells=self.cells(setting),
                        )

    def cell_plans(self) -> tuple[CellPlan, ...]:
        """What the run sets out to do; a budget may end it earlier."""
        workloads = {workload.name: workload for workload in self.workloads}
        plans = []
        for setting in self.all_settings:
            workload = workloads[setting.workload]
            prompts = self.measured(workload)
            if setting.is_stream:
                prompts = self.pass_prompts(workload, setting.concurrency)
            plans += [
                CellPlan(
                    key=cell.key,
                    num_prompts=len({prompt.id for prompt in prompts}),
                    num_repeats=self.repeats(setting),
                )
                for cell in self.cells(setting)
            ]
        return tuple(plans)


def plan_targets(
    settings: RunSettings,
    pairings: Sequence[Pairing],
    dtype_of: Callable[[Target], str],
    read_head: ReadHead = headers_on_this_machine,
) -> tuple[TargetPlan, ...]:
    """One plan a target, in the order the pairings name them; nothing changes it afterwards.

    Raises WorkloadError, and UsageError for two workloads of one name.
    """
    by_target: dict[str, list[Pairing]] = {}
    for pairing in pairings:
        by_target.setdefault(pairing.target.name, []).append(pairing)
    if BUILTIN not in settings.engines and not any(c == 1 for c in settings.concurrency):
        raise UsageError(
            f"--engine {', '.join(settings.engines)} decodes one request at a time; "
            "use --concurrency 1, or add the engine builtin"
        )
    _check_lossy(settings, pairings)
    _check_peers(settings, pairings)
    made_up = settings.dummy_weights or any_shape(pairings)
    return tuple(
        TargetPlan(
            target=group[0].target,
            pairings=tuple(group),
            workloads=load_workloads(settings.workloads, folder=group[0].target.workloads),
            settings=settings,
            dtype=dtype_of(group[0].target),
            depths=depths(group, read_head, made_up=made_up),
        )
        for group in by_target.values()
    )


def peers_of(drafter: Drafter) -> tuple[str, ...]:
    """What transformers has like it; nothing where a rule of ours judges the drafts."""
    return () if drafter.lossy else peer_methods(drafter.method)


def _check_lossy(settings: RunSettings, pairings: Sequence[Pairing]) -> None:
    """UsageError where a lossy rule could not do what it is named for."""
    lossy = [pairing.name for pairing in pairings if pairing.drafter.lossy]
    if not lossy:
        return
    if settings.acceptance is not None:
        raise UsageError(
            f"--acceptance simulates acceptance, but {', '.join(lossy)} accepts drafts by its own "
            "lossy rule; name other pairings or drop --acceptance"
        )
    if BUILTIN not in settings.engines:
        raise UsageError(
            f"{', '.join(lossy)} uses a lossy rule that only the built-in decoder has; add "
            "--engine builtin or name other pairings"
        )


def _check_peers(settings: RunSettings, pairings: Sequence[Pairing]) -> None:
    """UsageError where no engine that was asked for drafts in the way of any pairing."""
    if BUILTIN in settings.engines or settings.num_speculative_tokens == (0,):
        return
    if not any(peers_of(p.drafter) for p in pairings):
        methods = ", ".join(dict.fromkeys(p.drafter.method for p in pairings))
        raise UsageError(
            f"--engine {', '.join(settings.engines)}: transformers has no method like {methods}, "
            f"so {', '.join(p.name for p in pairings)} cannot be measured there; the engine "
            "builtin has it"
        )
