"""A run in this process: its device, its engines over one set of weights, and its CPU threads.

The number of threads is the fastest of 1, half and all of the physical cores. Numbers above that of
idle cores are not tried.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import cast

import torch

from specbench import __version__
from specbench.bench.budget import Deadline
from specbench.bench.hub import download_missing
from specbench.bench.limits import MemoryMeter
from specbench.bench.plan import TargetPlan, methods_in
from specbench.bench.planning import narrowed
from specbench.bench.rendering import rendered_here
from specbench.bench.target import TargetRun
from specbench.bench.units import Reporter
from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Engine, Load, Work
from specbench.engines.kernel_choices import require_kernel
from specbench.engines.model_pool import ModelPool
from specbench.engines.transformers_engine import TransformersEngine
from specbench.errors import ModelError
from specbench.files.model_spec import ModelSpec
from specbench.forward.autotune import (
    KernelCandidate,
    Outcome,
    Timing,
    fastest,
    find_choice,
    keep_choice,
    remember_choices,
)
from specbench.inputs.pairing import Pairing, Target
from specbench.models.checkpoint import Checkpoint, read_checkpoint
from specbench.models.library_errors import EXPECTED_ERRORS, errors_translated
from specbench.models.loading import planned_dtype
from specbench.probes import host
from specbench.probes.device import cuda_facts, open_device
from specbench.probes.environment import cpu_model, describe_environment
from specbench.probes.gpu import open_probe
from specbench.probes.host import HostLoad, idle_cores, num_cores, others_fact, physical_cores
from specbench.records import Contender, Environment, KernelChoice, Request
from specbench.runs import RunStore
from specbench.settings import BUILTIN, TRANSFORMERS, MachineSettings, RunSettings
from specbench.words.answers import text

TIMED_TOKENS = 12  # per output; at most 7 outputs per K and number of threads
PROMPT_TOKENS = 64

# A cached choice of threads applies to these facts with the same hardware and versions: the sha256
# of the target's weights, their dtype, the engine, and the concurrency.
Facts = tuple[str, str, str, int]


def thread_counts(load: HostLoad) -> tuple[list[int], list[Contender]]:
    """Thread counts to try, ascending, and those left out because other processes use cores."""
    cores, idle = physical_cores(load.num_cores), idle_cores(load)
    counts = sorted({1, max(1, cores // 2), cores})
    refusal = text(others_fact(load))
    left_out = [Contender(name=str(n), refusal=refusal) for n in counts if n > idle]
    return [n for n in counts if n <= idle], left_out


def idle_threads() -> int:
    """The largest thread count to try, for work that is not timed."""
    return thread_counts(host.host_load())[0][-1]


def prepare_device(machine: MachineSettings, *, threads: int | None = None) -> torch.device:
    """Open the device, and set the number of threads for work that is not timed: that of
    `--threads`, else `threads`, else the largest one to try."""
    device = open_device(machine.device)
    torch.set_num_threads(machine.threads or threads or idle_threads())
    return device


def choose_threads(
    target: str, facts: Facts, autotune: Callable[[Sequence[int]], Outcome]
) -> KernelChoice:
    """Set torch's number of threads to the cached choice for these facts, or autotune it.

    If nothing can be timed, all idle cores are used, and the choice is not cached.
    """
    load = host.host_load()
    counts, left_out = thread_counts(load)
    machine = (cpu_model(), physical_cores(load.num_cores), torch.__version__, __version__)
    key = "; ".join(map(repr, ("threads", *facts, tuple(counts), *machine)))
    subject = f"threads of {target}"
    torch.set_num_threads(counts[-1])
    choice = KernelChoice(key=key, subject=subject, chosen=str(counts[-1]))
    if len(counts) > 1:
        if known := find_choice(key):
            choice = replace(known, subject=subject)
        else:
            winner, contenders = autotune(counts)
            if winner is not None:
                choice = replace(choice, chosen=winner, contenders=tuple(contenders))
                keep_choice(choice)
    torch.set_num_threads(int(choice.chosen))
    return replace(choice, contenders=(*choice.contenders, *left_out))


def autotune_threads(
    engine: Engine, works: Sequence[Work], text: str, concurrency: int, counts: Sequence[int]
) -> Outcome:
    """Time a few tokens of each work with each number of threads, interleaved.

    Works that the engine cannot run are left out; if all are, the outcome has no winner.
    """
    request = Request(
        prompt_ids=engine.tokenizer.ids(text)[:PROMPT_TOKENS] or engine.eos_ids[:1],
        max_new_tokens=TIMED_TOKENS,
        stop_at_eos=False,
    )

    def seconds(work: Work) -> float:
        served = engine.serve([request] * concurrency, work, Load(concurrency=concurrency))
        return sum(result.decode_s or result.total_s or 0.0 for result in served.results)

    runnable = []
    for work in works:
        with suppress(*EXPECTED_ERRORS):
            seconds(work)
            runnable.append(work)

    def decode(num_threads: int) -> float:
        torch.set_num_threads(num_threads)
        return sum(map(seconds, runnable))

    candidates = [KernelCandidate(str(n), partial(decode, n)) for n in counts if runnable]
    return fastest(candidates, Timing(seconds=lambda run: cast("float", run())))


def autotune_for_plan(
    plan: TargetPlan, engine: Engine, concurrency: int, counts: Sequence[int]
) -> Outcome:
    """Autotune on the first prompt: K = 0, and the first pairing that loads at its largest K."""
    works = [engine.baseline]
    for pairing in plan.pairings:
        drafter = pairing.drafter
        methods = methods_in(engine.name, drafter)
        k = plan.within_reach(drafter.name, plan.largest_k(pairing))
        if not methods or not k:
            continue
        try:
            engine.add_drafter(drafter)
        except EXPECTED_ERRORS:  # the run reports it later, when it loads the drafter
            engine.remove_drafter(drafter.name)
        else:
            works.append(Work(drafter=drafter.name, method=methods[0], k=k))
            break
    prompt = plan.prompts(plan.workloads[0])[0]
    text = "\n".join(message.content for message in prompt.turns[0])
    try:
        return autotune_threads(engine, works, text, concurrency, counts)
    finally:
        for work in works[1:]:
            engine.remove_drafter(work.drafter)


def read_shapes(spec: ModelSpec) -> Checkpoint:
    """A draft head's config and the shapes of its tensors; missing files are downloaded."""
    return read_checkpoint(spec.location, spec.revision, shapes_only=True)


class ThisProcess:
    """Decodes on a device of this machine; UsageError if the device does not exist."""

    def __init__(
        self, settings: RunSettings, pairings: Sequence[Pairing], reporter: Reporter
    ) -> None:
        self._device = open_device(settings.machine.device)
        require_kernel(settings.decoder.kernels, self._device)
        self._threads = settings.machine.threads
        if self._threads is None and self._device.type != "cpu":
            self._threads = physical_cores(num_cores())
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        models = [model for pairing in pairings for model in pairing.models]
        download_missing(models, reporter.warn, weights=not settings.decoder.dummy_weights)
        self._probe = open_probe(str(self._device), known=cuda_facts(self._device))

    def narrowed(self, plan: TargetPlan) -> TargetPlan:
        """The plan with its dtype on this device, and with what files tell that were downloaded
        since or that torch reads, the tokenizer's among them."""
        try:
            dtype = planned_dtype(replace(plan.target.model, dtype=plan.dtype), self._device)
        except ModelError:
            dtype = "unknown"  # loading then fails with the same error, which is recorded
        return narrowed(replace(plan, dtype=dtype), read_shapes, rendered_here)

    def environment(self, command: Sequence[str]) -> Environment:
        return describe_environment(str(self._device), self._threads, command, self._probe)

    def measure(
        self, plan: TargetPlan, store: RunStore, reporter: Reporter, deadline: Deadline
    ) -> None:
        """Load the target, and measure all its pairings; store a failure if it does not load."""
        remember_choices(choice for engine in store.stored.engines for choice in engine.kernels)
        meter = MemoryMeter(plan.target.name, str(self._device), self._probe)
        target_run = TargetRun(plan, store, self._probe, meter, reporter, deadline)
        reporter.stage(f"{plan.target.name}: loading")
        try:
            with errors_translated():
                engines, threads = self._open(plan, store, reporter)
        except EXPECTED_ERRORS as error:
            target_run.fail(plan.target.name, "load", error, plan.all_cells)
        else:
            target_run.measure(engines, threads)

    def _open(
        self, plan: TargetPlan, store: RunStore, reporter: Reporter
    ) -> tuple[dict[str, Engine], KernelChoice | None]:
        """The engines, opened with the threads that they run with, because they time kernels; and
        the choice of these threads, None if their number was not chosen by timing."""
        settings = plan.settings
        machine, dummy = settings.machine, settings.decoder.dummy_weights
        pool = ModelPool(self._device, machine.dtype, dummy=dummy)
        open_all = partial(open_engines, plan.target, settings, pool)
        records = (record for record in store.stored.engines if record.target == plan.target.name)
        earlier = next((r.threads for r in records if r.threads is not None), None)
        if number := store.run.environment.threads or (earlier and int(earlier.chosen)):
            torch.set_num_threads(number)
            return open_all(), earlier  # chosen by an earlier session of this run
        loaded, load = pool.load(plan.target.model), settings.load
        facts = loaded.content_sha256, loaded.dtype, load.engines[0], load.concurrency[0]

        def autotune(counts: Sequence[int]) -> Outcome:
            reporter.stage(f"{plan.target.name}: choosing the number of threads")
            engine = next(iter(open_all().values()))
            return autotune_for_plan(plan, engine, load.concurrency[0], counts)

        threads = choose_threads(plan.target.name, facts, autotune)
        pool.collect()  # the engine that autotuning opened
        return open_all(), threads


def open_engines(target: Target, settings: RunSettings, pool: ModelPool) -> dict[str, Engine]:
    """The engines of a run over one set of weights. Raises ModelError."""
    make: dict[str, Callable[[], Engine]] = {
        BUILTIN: lambda: BuiltinEngine(target, pool, settings.decoder),
        TRANSFORMERS: lambda: TransformersEngine(target, pool),
    }
    # The built-in engine is always first, since it decodes the references.
    return {name: open_() for name, open_ in make.items() if name in settings.load.engines}
