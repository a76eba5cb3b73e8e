"""The vocabulary: what the measuring half writes and the analysing half reads.

Every record is frozen, keyword-only and JSON-ready (store.py writes and reads them). A
value that a machine or an engine cannot give is None: absent, never zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

NO_DRAFTER = "none"  # drafter and method of the K = 0 baseline

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One chat message; `extra` holds further template fields (tool_calls, name ...)."""

    role: Role
    content: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One unit of a workload: a conversation of one or more turns.

    Each turn is the messages appended before the model answers; the next turn follows the
    model's own answer. Intervals resample prompts, never turns or rounds.
    """

    id: str
    turns: tuple[tuple[Message, ...], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    template_args: Mapping[str, Any] = field(default_factory=dict)
    category: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How the target picks tokens. temperature 0 is greedy; top_k 0 and top_p 1 are off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CellKey:
    """What was measured: one method at one K on one workload under one setting."""

    pairing: str  # target/drafter; the bare target for K = 0
    target: str
    drafter: str
    workload: str
    engine: str
    method: str
    num_speculative_tokens: int
    concurrency: int
    temperature: float
    dtype: str

    @property
    def id(self) -> str:
        return "|".join(
            (
                self.pairing,
                self.workload,
                self.engine,
                self.method,
                f"k{self.num_speculative_tokens}",
                f"c{self.concurrency}",
                f"t{self.temperature:g}",
                self.dtype,
            )
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundLog:
    """The rounds of one request, a column per quantity; all columns have equal length.

    num_drafted <= K (a lookup can miss); num_accepted excludes the bonus / recovered token;
    num_emitted = num_accepted + 1, fewer where EOS or the budget cut the round. Prefill is
    not a round. draft_s and verify_s are None where they cannot be told apart.
    """

    num_drafted: tuple[int, ...]
    num_accepted: tuple[int, ...]
    num_emitted: tuple[int, ...]
    round_s: tuple[float, ...]
    draft_s: tuple[float, ...] | None = None
    verify_s: tuple[float, ...] | None = None

    def __len__(self) -> int:
        return len(self.num_drafted)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceSample:
    """What NVML saw while one request ran; None where the device does not tell."""

    num_samples: int
    device_used_bytes: int | None = None  # peak over the samples
    process_used_bytes: int | None = None  # peak over the samples
    power_w: float | None = None  # mean
    sm_clock_mhz: int | None = None  # minimum
    sm_clock_default_mhz: int | None = None
    temperature_c: int | None = None  # maximum
    throttle_reasons: tuple[str, ...] = ()
    num_other_processes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestRecord:
    """One turn of one prompt, decoded once in one cell."""

    cell_id: str
    prompt_id: str
    turn: int
    repeat: int
    seed: int
    num_prompt_tokens: int
    output_ids: tuple[int, ...]  # the first comes from prefill, the rest from rounds
    finish_reason: Literal["eos", "length", "failed"]
    prefill_s: float | None
    ttft_s: float | None  # start to first token, prefill of target and drafter included
    decode_s: float | None  # first token to last
    total_s: float | None
    cpu_s: float | None  # process CPU time over the same span as total_s
    rounds: RoundLog | None
    energy_j: float | None = None
    device: DeviceSample | None = None
    error: str | None = None  # set exactly when finish_reason is "failed"

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_ids)


BlockPurpose = Literal["explore", "confirm"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockRecord:
    """The unit of running, storing and resuming: one prompt, every K, one repeat."""

    block_id: str
    workload: str
    prompt_id: str
    repeat: int
    purpose: BlockPurpose  # "confirm": fresh repeats of a winner, quoted by decisions
    order: tuple[str, ...]  # cell ids in the order they ran, drawn from the seed
    started_at: str  # ISO 8601, UTC
    requests: tuple[RequestRecord, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryRecord:
    """Memory of the target alone, or of target and drafter together, after a warm pass."""

    target: str
    drafter: str  # NO_DRAFTER for the target alone
    weights_bytes: int
    kv_bytes_per_token: int
    peak_allocated_bytes: int | None = None  # torch allocator (CUDA)
    peak_reserved_bytes: int | None = None
    process_peak_bytes: int | None = None  # NVML process memory, or host RSS on a CPU
    device_peak_bytes: int | None = None  # NVML device memory, or host memory in use


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardCost:
    """A bare forward measured alone: the floor that a round is held against."""

    cell_id: str  # whose rounds contain this forward
    role: Literal["target", "drafter"]
    num_tokens: int  # tokens fed per row: 1 for a baseline step, K + 1 for verification
    num_per_round: int
    seconds: float  # median of the samples, taken between two blocks
    num_samples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureRecord:
    """A cell, pairing or model that could not be measured: a result, not a crash."""

    pairing: str
    workload: str  # "" where the failure is not about one workload
    stage: Literal["load", "warm_up", "decode"]
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Provenance, written before the first measurement."""

    created_at: str
    command: tuple[str, ...]
    specbench_version: str
    git_commit: str | None
    python: str
    packages: Mapping[str, str]
    platform: str
    cpu: str
    num_cpu_cores: int
    threads: int
    device: str  # "cpu" or "cuda:0"
    gpu: str | None = None
    gpu_memory_bytes: int | None = None
    driver: str | None = None
    power_limit_w: float | None = None
    sm_clock_default_mhz: int | None = None
    probe: str = ""  # which probe ran, or why none did


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelIdentity:
    """Which weights and tokenizer a result belongs to."""

    name: str
    source: str  # folder name or hub id, never an absolute path
    revision: str | None
    content_sha256: str
    tokenizer_sha256: str
    dtype: str
    num_parameters: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceRecord:
    """The target's own greedy answer to one turn: it fixes the lengths of all cells.

    The next turn of the conversation follows this text, whatever a cell emitted.
    """

    target: str
    workload: str
    prompt_id: str
    turn: int
    num_prompt_tokens: int
    output_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """What the user asked for; with it an interrupted run can go on."""

    command: Literal["run", "sweep-k"]
    pairings: tuple[str, ...]
    workloads: tuple[str, ...]  # names or files
    pairings_file: str | None = None
    num_speculative_tokens: tuple[int, ...] | None = None  # None: the pairing's own
    temperatures: tuple[float, ...] = (0.0,)
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int | None = None  # None: the workload's own
    num_prompts: int | None = None
    num_repeats: int | None = None
    budget_s: float | None = None
    precision: float | None = None  # half-width of the best K's interval, 0.02 = 2 %
    device: str = "auto"
    dtype: str | None = None
    threads: int | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CellPlan:
    """One line of the plan: a cell and how much of it will be measured."""

    key: CellKey
    num_prompts: int
    num_repeats: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """What a run set out to do and where; `run.json` of its folder."""

    schema_version: int
    run_id: str
    environment: Environment
    settings: RunSettings
    workload_sha256: Mapping[str, str]
    cells: tuple[CellPlan, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A point estimate with its 95 % interval; low and high are None below 5 prompts."""

    estimate: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CellSummary:
    """A cell after analysis: its metrics, its validity and its speed-up."""

    key: CellKey
    valid: bool
    invalid_reasons: tuple[str, ...]
    num_prompts: int
    num_requests: int
    metrics: Mapping[str, float | tuple[float, ...]]
    speedup: Interval | None  # decode_speedup; None for K = 0
    speedup_end_to_end: Interval | None = None
    minimum_detectable_effect: float | None = None
    warnings: tuple[str, ...] = ()  # worth a second look, yet no reason to call it invalid


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The answer for one target, workload and setting."""

    target: str
    pairing: str
    workload: str
    engine: str
    concurrency: int
    temperature: float
    dtype: str
    method: str  # NO_DRAFTER: do not speculate, or not shown to help
    num_speculative_tokens: int
    speedup: Interval | None
    sentence: str
    reasons: tuple[str, ...]
