"""A run in this process: its device, its threads, and engines over one set of weights."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from specbench.bench.budget import Deadline
from specbench.bench.hub import download_missing
from specbench.bench.memory import MemoryMeter
from specbench.bench.plan import TargetPlan
from specbench.bench.progress import Reporter
from specbench.bench.target import TargetRun
from specbench.bench.threads import autotune_for_plan, choose_threads
from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Engine
from specbench.engines.kernel_choices import require_kernel
from specbench.engines.model_pool import ModelPool
from specbench.engines.transformers_engine import TransformersEngine
from specbench.errors import ModelError
from specbench.files.model_spec import ModelSpec
from specbench.forward.autotune import Outcome, remember_choices
from specbench.inputs.pairing import Pairing, Target
from specbench.models.checkpoint import Checkpoint, read_checkpoint
from specbench.models.loading import planned_dtype
from specbench.probes.device import cuda_uuid, find_device
from specbench.probes.environment import describe_environment
from specbench.probes.gpu import open_probe
from specbench.probes.load import num_cores, physical_cores
from specbench.records import Environment
from specbench.runs import RunStore
from specbench.settings import BUILTIN, TRANSFORMERS, RunSettings


def read_shapes(spec: ModelSpec) -> Checkpoint:
    """A head's config and the shapes of its tensors; missing files are downloaded."""
    return read_checkpoint(spec.location, spec.revision, shapes_only=True)


class ThisProcess:
    """Decodes on a device of this machine; UsageError if it does not exist."""

    def __init__(
        self, settings: RunSettings, pairings: Sequence[Pairing], reporter: Reporter
    ) -> None:
        self._settings = settings
        self._device = find_device(settings.machine.device)
        require_kernel(settings.decoder.kernels, self._device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # for events, streams and graphs
        self._threads = settings.machine.threads
        if self._threads is None and self._device.type != "cpu":
            self._threads = physical_cores(num_cores())
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        models = [model for pairing in pairings for model in pairing.models]
        download_missing(models, reporter.warn, weights=not settings.decoder.dummy_weights)
        self._probe = open_probe(str(self._device), uuid=cuda_uuid(str(self._device)))

    def dtype_of(self, target: Target) -> str:
        dtype = self._settings.machine.dtype or target.model.dtype
        try:
            return planned_dtype(replace(target.model, dtype=dtype), self._device)
        except ModelError:
            return "unknown"  # loading then fails with the same error, which is recorded

    def environment(self, command: Sequence[str]) -> Environment:
        return describe_environment(str(self._device), self._threads, command, self._probe)

    def measure(
        self, plan: TargetPlan, store: RunStore, reporter: Reporter, deadline: Deadline
    ) -> None:
        """Load the target, and measure all its pairings."""
        remember_choices(choice for engine in store.stored.engines for choice in engine.kernels)
        meter = MemoryMeter(plan.target.name, str(self._device), self._probe)
        target_run = TargetRun(plan, store, self._probe, meter, reporter, deadline)
        target_run.measure(partial(self._open, plan, store, reporter, target_run))

    def _open(
        self, plan: TargetPlan, store: RunStore, reporter: Reporter, target_run: TargetRun
    ) -> dict[str, Engine]:
        """The engines; their kernels are chosen with the threads that they run with."""
        settings = plan.settings
        machine, dummy = settings.machine, settings.decoder.dummy_weights
        pool = ModelPool(self._device, machine.dtype, dummy=dummy)
        opened = partial(open_engines, plan.target, self._device, settings, pool)
        records = (record for record in store.stored.engines if record.target == plan.target.name)
        earlier = next((r.threads for r in records if r.threads is not None), None)
        if number := store.run.environment.threads or (earlier and int(earlier.chosen)):
            torch.set_num_threads(number)
            target_run.threads = earlier  # chosen by an earlier session of this run
            return opened()
        loaded, load = pool.load(plan.target.model), settings.load
        facts = loaded.content_sha256, loaded.dtype, load.engines[0], load.concurrency[0]

        def autotune(numbers: Sequence[int]) -> Outcome:
            reporter.stage(f"{plan.target.name}: choosing the number of threads")
            engine = next(iter(opened().values()))
            return autotune_for_plan(plan, engine, load.concurrency[0], numbers)

        target_run.threads = choose_threads(plan.target.name, facts, autotune)
        pool.collect()  # the engine that autotuning opened
        return opened()


def open_engines(
    target: Target, device: torch.device, settings: RunSettings, pool: ModelPool | None = None
) -> dict[str, Engine]:
    """The engines of a run over one set of weights, from `pool` if given; ModelError."""
    decoder = settings.decoder
    pool = pool or ModelPool(device, settings.machine.dtype, dummy=decoder.dummy_weights)
    make: dict[str, Callable[[], Engine]] = {
        BUILTIN: lambda: BuiltinEngine(target, pool, decoder),
        TRANSFORMERS: lambda: TransformersEngine(target, pool),
    }
    # The built-in engine is always first, since it decodes the references.
    return {name: open_() for name, open_ in make.items() if name in settings.load.engines}
