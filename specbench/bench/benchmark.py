"""A whole run: narrows its plan, stores its provenance, then measures its targets."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from specbench.bench.blocks import interleaved
from specbench.bench.cluster import ClusterScheduler, RayCluster
from specbench.bench.machine import CPU, ThisMachine
from specbench.bench.plan import TargetPlan, peers_of
from specbench.bench.planning import RunPlan, fit_warnings
from specbench.bench.served.host import require_startable
from specbench.bench.served.running import server_warnings
from specbench.bench.served_costs import time_servers
from specbench.bench.units import Reporter
from specbench.errors import StoreError, UsageError
from specbench.forecast.cost_curve import curve_from
from specbench.forecast.engine_costs import is_address, read_file
from specbench.inputs.stored_targets import stored_targets
from specbench.metrics.earlier import earlier_runs
from specbench.probes import host
from specbench.records import EarlierRuns, EngineCost, Environment, Kind, Reason, RunRecord
from specbench.runs import (
    SCHEMA_VERSION,
    StoredRun,
    create_run,
    dated_later,
    load_run,
    new_run_id,
    read_runs,
    resume_run,
)
from specbench.servers.facts import ModelNames
from specbench.settings import BUILTIN, TRANSFORMERS, RunSettings
from specbench.words.answers import noise_lines, text


def engine_costs(
    settings: RunSettings, plans: Sequence[TargetPlan], reporter: Reporter
) -> list[EngineCost]:
    """The costs of --step-times, from files and from servers timed with the run's prompts.

    UsageError if a concurrency is missing.
    """
    concurrencies = settings.load.concurrency
    sources = settings.forecasting.costs
    if not sources:
        return []
    costs = [cost for s in sources if not is_address(s) for cost in read_file(Path(s))]
    if addresses := [source for source in sources if is_address(source)]:
        every = [plan.prompts(workload) for plan in plans[:1] for workload in plan.workloads]
        costs += time_servers(
            addresses,
            ["\n\n".join(m.content for m in prompt.turns[0]) for prompt in interleaved(every)],
            concurrencies=concurrencies,
            temperature=settings.sampling.temperatures[0],
            names=ModelNames.of(plans[0].target, settings.servers.served_model_name),
            omitted=settings.servers.omit_fields,
            warn=reporter.warn,
        )
    for concurrency in concurrencies:
        curve_from(costs, concurrency=concurrency, ks=())
    return costs


def run_benchmark(
    plan: RunPlan,
    root: Path,
    reporter: Reporter,
    *,
    resume: str | None = None,
    cluster: RayCluster | None = None,
) -> StoredRun:
    """Measure the planned cells, or the rest of a resumed run; each block is stored when done.

    Runs on the nodes of `cluster`, or on this machine if it is None. A target or drafter that
    cannot run is stored as a failure. Raises UsageError, WorkloadError and StoreError before the
    first measurement.
    """
    settings, running = plan.settings, plan.running
    machines = (
        ThisMachine(settings, plan.pairings, reporter)
        if cluster is None
        else ClusterScheduler(cluster, plan, reporter)
    )
    plans = tuple(map(machines.narrowed, plan.targets))
    if cluster is None and not running:  # the programs of nodes are not on this machine
        require_startable(plans)
    environment, *other_nodes = machines.environments
    warnings = (
        *dict.fromkeys(w for plan in plans for w in plan_warnings(plan)),
        *server_warnings(running, settings.load.engines[0], plans[0].target),
    )
    is_local = cluster is None and not running
    threads, num_needed = None, 1  # a GPU keeps one core busy, as autotuning the threads does
    if environment.device == CPU:
        is_served = not settings.load.in_process
        threads = environment.threads
        num_needed = threads or (environment.num_cpu_cores if is_served else 1) or 1
    busy = host.busy_facts(host.host_load(), num_needed, threads) if is_local else ()
    for warning in (*map(text, warnings), *noise_lines(busy)):
        reporter.warn(warning)
    costs: Sequence[EngineCost] = ()
    if resume is None:
        costs = engine_costs(settings, plans, reporter)
        run_id = new_run_id(datetime.now(UTC))
        if later := dated_later(root, run_id):
            set_back = Kind.CLOCK_SET_BACK(later=later, run_id=run_id)
            warnings = (*warnings, set_back)
            reporter.warn(text(set_back))
        run = RunRecord(
            schema_version=SCHEMA_VERSION,
            run_id=run_id,
            environment=environment,
            settings=settings,
            workload_sha256={w.name: w.sha256 for plan in plans for w in plan.workloads},
            cells=tuple(cell for plan in plans for cell in plan.cell_plans()),
            warnings=warnings,
            busy=busy,
            pairing_sha256={pairing.name: pairing.sha256 for pairing in plan.pairings},
            workload_prompts={
                plan.target.name: {w.name: len(w.prompts) for w in plan.workloads} for plan in plans
            },
            settings_sha256=_settings_sha256(plans),
            earlier=_earlier(root, settings, plans, environment),
            targets=stored_targets(plan.pairings),
        )
        store = create_run(root, run)
    else:
        store = resume_run(root, resume, settings.servers)
    with store:
        if resume is not None:
            require_same_work(store.run, plans)
            other_nodes.insert(0, environment)
            costs = () if store.stored.engine_costs else engine_costs(settings, plans, reporter)
        reporter.run_id(store.run.run_id)
        for node in other_nodes:
            store.append(node)
        for cost in costs:
            store.append(cost)
        machines.measure(plans, [server.address for server in running], store)
        store.finish()
        return store.stored


def _earlier(
    root: Path,
    settings: RunSettings,
    plans: Sequence[TargetPlan],
    environment: Environment,
) -> EarlierRuns | None:
    """What earlier runs under `root` of the same models and decoder on equal hardware show about
    the machine's states."""
    keys = {cell.key for plan in plans for cell in plan.cell_plans() if cell.key.draft.k}
    sha256 = {pairing.name: pairing.sha256 for plan in plans for pairing in plan.pairings}

    def equal() -> Iterator[StoredRun]:
        for run in read_runs(root):
            names = {key.pairing for key in keys.intersection(run.keys)}
            if (
                names
                and all(run.pairing_sha256.get(name) == sha256.get(name) for name in names)
                and run.settings.decoder == settings.decoder
                and run.environment.hardware == environment.hardware
            ):
                with suppress(StoreError):
                    yield load_run(run.run_id, root)

    return earlier_runs(equal(), keys)


def plan_warnings(plan: TargetPlan) -> tuple[Reason, ...]:
    """The warnings of a plan, known before it is measured."""
    foreign = (
        Kind.FOREIGN_WORKLOAD(workload=name, target=plan.target.name)
        for name in foreign_workloads(plan)
    )
    return (*foreign, *peer_warnings(plan), *fit_warnings(plan), *plan.left_out)


def foreign_workloads(plan: TargetPlan) -> tuple[str, ...]:
    """Workloads outside the target's workload folder, if it has one: text it was not trained on."""
    folder = plan.target.workloads
    return tuple(w.name for w in plan.workloads if folder is not None and w.path.parent != folder)


def peer_warnings(plan: TargetPlan) -> tuple[Reason, ...]:
    """A warning about drafters that transformers does not have."""
    left_out = tuple(p.name for p in plan.pairings if not peers_of(p.drafter))
    if TRANSFORMERS not in plan.settings.load.engines or not left_out:
        return ()
    is_builtin = BUILTIN in plan.settings.load.engines
    return ((Kind.PEERS_LACK if is_builtin else Kind.NOTHING_MEASURES)(pairings=left_out),)


def _settings_sha256(plans: Sequence[TargetPlan]) -> dict[str, str]:
    """A hash of the request settings of each workload that has any."""
    workloads = (workload for plan in plans for workload in plan.workloads)
    return {w.name: w.settings_sha256 for w in workloads if w.settings_sha256}


def require_same_work(run: RunRecord, plans: Sequence[TargetPlan]) -> None:
    """Raise UsageError if a resumed run would not measure the same as before."""
    now = {pairing.name: pairing.sha256 for plan in plans for pairing in plan.pairings}
    if edited := [n for n, sha256 in now.items() if run.pairing_sha256.get(n) != sha256]:
        raise UsageError(
            f"run {run.run_id} cannot be resumed: {', '.join(edited)} has changed in "
            "pairings.yaml since (model, method, parameters or lossy rule); undo the change or "
            "start a new run"
        )
    workloads = {w.name: w.sha256 for plan in plans for w in plan.workloads}
    settings = _settings_sha256(plans)
    if changed := sorted(
        name
        for name in workloads
        if workloads[name] != run.workload_sha256.get(name)
        or settings.get(name) != run.settings_sha256.get(name)
    ):
        raise UsageError(
            f"run {run.run_id} cannot be resumed: its workload {', '.join(changed)} has changed "
            "since; start a new run"
        )
    if tuple(cell for plan in plans for cell in plan.cell_plans()) != run.cells:
        raise UsageError(
            f"run {run.run_id} cannot be resumed: with this device and these pairings the plan "
            "would differ; start a new run"
        )
