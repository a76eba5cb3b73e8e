"""Facts about a measurement: environment, models, plan, engines, servers, decisions during it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from specbench.doc import Doc
from specbench.records.keys import CellKey
from specbench.records.reasons import Reason
from specbench.settings import RunSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """The environment of a run, written before the first measurement; imports leave None or ""."""

    created_at: Annotated[str, Doc("ISO 8601, UTC")]
    command: Annotated[tuple[str, ...], Doc("the command line, an entry per argument")]
    specbench_version: Annotated[str, Doc("version of this program")]
    git_commit: Annotated[str | None, Doc("its commit; absent outside a checkout")]
    python: Annotated[str, Doc("version of Python")]
    packages: Annotated[Mapping[str, str], Doc("version by package")]
    platform: Annotated[str, Doc("operating system")]
    cpu: Annotated[str, Doc("name of the processor")]
    num_cpu_cores: Annotated[int | None, Doc("its cores", "cores")]
    threads: Annotated[
        int | None,
        Doc("CPU threads used; absent if targets have different numbers (`engines`)", "threads"),
    ]
    device: Annotated[str, Doc("`cpu` or `cuda:0`")]
    gpu: Annotated[str | None, Doc("name of the GPU; absent without one, here and below")] = None
    gpu_memory_bytes: Annotated[int | None, Doc("its memory", "bytes")] = None
    driver: Annotated[str | None, Doc("version of its driver")] = None
    power_limit_w: Annotated[float | None, Doc("its power limit", "W")] = None
    sm_clock_default_mhz: Annotated[int | None, Doc("its default SM clock", "MHz")] = None
    probe: Annotated[str, Doc("which probe ran, or why none did")] = ""
    node: Annotated[str | None, Doc("node of a cluster: a short id; absent without one")] = None

    @property
    def processor(self) -> str:
        """The GPU, or the CPU if there is none; empty if an import names neither."""
        is_gpu = self.device.partition(":")[0] == "cuda"
        return self.gpu or ("a GPU of unknown name" if is_gpu else self.cpu)

    @property
    def hardware(self) -> dict[str, str]:
        """Facts that seconds depend on: seconds are compared if they are equal."""
        facts = {"device": self.device.partition(":")[0]}
        if self.gpu:
            facts["GPU"] = self.gpu
        if self.power_limit_w:
            facts["power limit"] = f"{self.power_limit_w:g} W"
        if self.cpu:
            facts["CPU"] = f"{self.cpu}, {self.num_cpu_cores} cores"
        if self.threads is not None:
            facts["threads"] = str(self.threads)
        return facts


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelIdentity:
    """Which weights and tokenizer a result belongs to."""

    name: Annotated[str, Doc("as in the pairing", label="model")]
    source: Annotated[str, Doc("hub id, or name of the folder", label="source")]
    revision: Annotated[str | None, Doc("hub revision; absent for a folder", label="revision")]
    dtype: Annotated[str, Doc("as loaded", label="dtype")]
    content_sha256: Annotated[str, Doc("hash of the weights", label="content", form="{:.12}")]
    tokenizer_sha256: Annotated[str, Doc("hash of the tokenizer", label="tokenizer", form="{:.12}")]
    num_parameters: Annotated[
        int, Doc("number of parameters", "parameters", label="parameters", form="{:,}")
    ]
    template_sha256: Annotated[
        str | None, Doc("hash of the chat template; empty without one, absent for a head")
    ] = None
    template_clock: Annotated[
        str, Doc("fixed date that the chat template printed; empty if it prints none")
    ] = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellPlan:
    """One line of the plan: a cell, and how much of it is measured."""

    key: CellKey
    num_prompts: int
    num_repeats: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierRuns:
    """What earlier runs of the same cells on equal hardware show about the machine's states."""

    num_runs: int
    deviation: float  # of the log speedup between states


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """The plan, settings and environment of a run: `run.json` in its folder."""

    schema_version: int
    run_id: str
    environment: Environment
    settings: RunSettings
    workload_sha256: Mapping[str, str]
    cells: tuple[CellPlan, ...]
    warnings: tuple[Reason, ...] = ()
    busy: tuple[Reason, ...] = ()  # signs at its start that the machine was busy
    pairing_sha256: Mapping[str, str] = field(default_factory=dict)  # of their entries in the file
    # By target and workload: prompts that fit the target, used or not.
    workload_prompts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # By workload with request settings: a hash of them.
    settings_sha256: Mapping[str, str] = field(default_factory=dict)
    earlier: EarlierRuns | None = None  # None: fewer than two
    targets: tuple[Mapping[str, Any], ...] = ()  # as inputs/stored_targets.py writes and reads them

    @property
    def keys(self) -> tuple[CellKey, ...]:
        """The keys of the planned cells, in the order of the plan."""
        return tuple(plan.key for plan in self.cells)


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """An implementation that could have run: its seconds, or why it was not timed."""

    name: Annotated[str, Doc("the candidate")]
    seconds: Annotated[
        float | None, Doc("median time of the same work; absent if it was not timed", "s")
    ] = None
    refusal: Annotated[str | None, Doc("why it was not timed; absent if it was")] = None
    is_temporary: Annotated[
        bool, Doc("the refusal might not last, so a later run times all candidates again")
    ] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelChoice:
    """The implementation that is used for one kind of work.

    `key` names everything that the choice depends on, including hardware and versions: a later
    run with an equal key reuses the choice.
    """

    key: Annotated[str, Doc("everything the choice depends on, hardware and versions included")]
    subject: Annotated[str, Doc("the work, such as `attention of MODEL, chain`")]
    chosen: Annotated[str, Doc("the candidate that runs")]
    contenders: Annotated[
        tuple[Contender, ...], Doc("all candidates, in the order that decides between equal ones")
    ] = ()
    is_forced: Annotated[bool, Doc("the user chose it; nothing was timed")] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineRecord:
    """The choices of an engine that ran a target, with notes if they are not as requested."""

    target: Annotated[str, Doc("name of the target")]
    engine: Annotated[str, Doc("what decoded")]
    forward: Annotated[
        str | None,
        Doc(
            "`fused`, `fused, triton` (with our kernels) or `stock`; absent if the engine "
            "does not report it"
        ),
    ] = None
    graph: Annotated[
        str | None, Doc("`off`, `step` or `round`, at K = 0; exceptions are in `notes`")
    ] = None
    attention: Annotated[str | None, Doc("what computes the target's attention")] = None
    num_captures: Annotated[
        int | None, Doc("graphs captured so far; absent if the device has none", "graphs")
    ] = None
    capture_s: Annotated[float | None, Doc("spent on captures, failed ones included", "s")] = None
    quantization: Annotated[str | None, Doc("of the target's weights; absent: none")] = None
    notes: Annotated[tuple[str, ...], Doc("what differs from what was requested, and why")] = ()
    kernels: Annotated[
        tuple[KernelChoice, ...], Doc("what autotuning chose for the target and its draft models")
    ] = ()
    max_k: Annotated[
        Mapping[str, int], Doc("largest K of each drafter that has a limit", low=1)
    ] = field(default_factory=dict)
    threads: Annotated[
        KernelChoice | None,
        Doc("number of CPU threads that was chosen; absent on a GPU and with `--threads`"),
    ] = None


def chosen_threads(engines: Iterable[EngineRecord]) -> tuple[int, ...]:
    """The chosen numbers of CPU threads; several if targets of a run differ."""
    return tuple(dict.fromkeys(int(e.threads.chosen) for e in engines if e.threads))


SESSIONS_PER_K = 2  # in a cycle: with K increasing, then decreasing


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientLoad:
    """The load of the client while one condition was served, and the counters of the server.

    `counters` are differences over the condition's requests, by the names of `servers.Counters`.
    """

    cell_id: Annotated[str, Doc("the cell that was measured")]
    seconds: Annotated[float, Doc("of its requests", "s")]
    cpu_s: Annotated[float, Doc("CPU time of the client", "s")]
    num_events: Annotated[int, Doc("events streamed to the client", "events")]
    mean_lag_s: Annotated[
        float,
        Doc("mean time until the client read an event, without pauses and the latest tenth", "s"),
    ]
    counters: Annotated[Mapping[str, float], Doc("what the server counted for the cell")] = field(
        default_factory=dict
    )
    num_accepted_at: Annotated[
        tuple[float, ...], Doc("draft tokens accepted at position 1, 2 .. K", "tokens")
    ] = ()
    pauses_s: Annotated[
        tuple[float, ...], Doc("each pause in which the client read nothing for 50 ms", "s")
    ] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerRecord:
    """One session of a server: a start at one K, or the use of a running one.

    A figure that the server does not report is None or absent. `counters` are sums over its
    conditions.
    """

    session: Annotated[str, Doc("this attempt at the session, as in `requests`")]
    place: Annotated[str, Doc("the same for every attempt; one of them counts")]
    target: Annotated[str, Doc("name of the target")]
    engine: Annotated[str, Doc("what served")]
    drafter: Annotated[str, Doc("name of the drafter; `none` at K = 0")]
    method: Annotated[str, Doc("how tokens were drafted; `none` at K = 0")]
    num_speculative_tokens: Annotated[int, Doc("K", "tokens/round")]
    cycle: Annotated[
        int,
        Doc(
            "cycle of sessions, from 0; it has two sessions of each K, and figures are paired "
            "within it"
        ),
    ]
    version: Annotated[str, Doc("version of the engine; empty if it did not start")]
    model: Annotated[str, Doc("name of the model on the server")]
    addresses: Annotated[
        tuple[str, ...], Doc("of a server that was running; empty if we started it")
    ]
    command: Annotated[tuple[str, ...], Doc("what started it; empty if it was running")] = ()
    variant: Annotated[
        str | None,
        Doc("name of its additional arguments; absent without `--variant`", is_text=True),
    ] = None
    settings: Annotated[Mapping[str, str], Doc("effective settings that the server reports")] = (
        field(default_factory=dict)
    )
    template_clock: Annotated[
        str | None,
        Doc("date in its chat template, `server` for its own; absent if unknown", is_text=True),
    ] = None
    prefix_cache: Annotated[
        str, Doc("whether it kept prefixes: `off`, `on`, `unknown` or `by request`")
    ] = "unknown"
    read_at: Annotated[
        Mapping[str, str],
        Doc(
            "where `K`, `drafting`, `prefix cache` and `counters` were read; an absent one is "
            "unknown, and `#k` is the address"
        ),
    ] = field(default_factory=dict)
    acceptance_rule: Annotated[
        str | None, Doc("when a draft token is accepted; absent if unknown", is_text=True)
    ] = None
    num_gpus: Annotated[int | None, Doc("GPUs that it ran on", "GPUs")] = None
    kv_tokens: Annotated[int | None, Doc("capacity of its KV cache", "tokens")] = None
    start_s: Annotated[float | None, Doc("until it was healthy", "s")] = None
    started_s: Annotated[
        float | None, Doc("when its process started, in Unix seconds, as its counters report", "s")
    ] = None
    attempt: Annotated[
        int,
        Doc(
            "attempt at its cycle, from 1; only the sessions of one attempt count: the one "
            "with the most sessions, and of equal ones the last",
            low=1,
        ),
    ] = 1
    seconds: Annotated[float, Doc("of the measured requests", "s")] = 0.0
    counters: Annotated[
        Mapping[str, float],
        Doc(
            "what the server counted: `num_rounds`, `num_draft_tokens`, `num_accepted`, "
            "`num_tokens`; by its own convention, past the ends of outputs"
        ),
    ] = field(default_factory=dict)
    num_preemptions: Annotated[
        int | None, Doc("requests preempted because memory was short", "requests")
    ] = None
    queue_s: Annotated[float | None, Doc("that requests waited inside it, summed", "s")] = None
    power_w: Annotated[float | None, Doc("mean power of all its GPUs", "W")] = None
    memory_bytes: Annotated[int | None, Doc("peak memory in use, of all its GPUs", "bytes")] = None
    throttle_reasons: Annotated[
        tuple[str, ...], Doc("why a GPU lowered its clock; empty if none did", is_text=True)
    ] = ()
    client: Annotated[tuple[ClientLoad, ...], Doc("load of the client, by cell")] = ()
    sees_others: Annotated[
        bool, Doc("whether another client's requests would have been noticed")
    ] = False
    problems: Annotated[
        tuple[str, ...], Doc("why its figures are not used; empty if they are")
    ] = ()
    warnings: Annotated[tuple[Reason, ...], Doc("what to look at again")] = ()
    log: Annotated[str | None, Doc("file of its output, in the run's folder")] = None
    node: Annotated[
        str | None,
        Doc("node of a cluster that ran it; absent without one", is_text=True),
    ] = None


# drop: cells that get no more of the budget. precise: cells whose interval is narrow enough.
# confirm: winners that are measured again, in new repeats.
ExtensionKind = Literal["drop", "precise", "confirm"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtensionRecord:
    """A decision about the rest of the measurement; a resumed run follows it."""

    kind: ExtensionKind
    drafters: tuple[str, ...]  # that were loaded together, in order of their names
    question: str = ""  # id of the K = 0 cell of one setting; "": all settings of these drafters
    # Of that setting, measured before a drop was decided; or of each workload, in a session that
    # confirms (0: as many as were explored).
    num_prompts: int = 0
    cell_ids: tuple[str, ...] = ()  # that are dropped, precise or to be confirmed
