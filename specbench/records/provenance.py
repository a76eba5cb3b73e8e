"""Where and how it was measured: environment, models, settings, plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from specbench.records.forecasts import AcceptanceRule
from specbench.records.measured import CellKey


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Provenance, written before the first measurement; an import leaves None or "" in it."""

    created_at: str
    command: tuple[str, ...]
    specbench_version: str
    git_commit: str | None
    python: str
    packages: Mapping[str, str]
    platform: str
    cpu: str
    num_cpu_cores: int | None
    threads: int | None
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
class RunSettings:
    """What the user asked for; with it an interrupted run can go on."""

    command: Literal["run", "sweep-k", "import"]
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
    engines: tuple[str, ...] = ("builtin",)
    is_default_range: bool = False  # nobody asked for each of these K
    adaptive: bool = False  # also a cell whose K the controller picks
    concurrency: tuple[int, ...] = (1,)
    request_rate: float | None = None  # Poisson arrivals a second; None: closed loop
    contexts: tuple[int, ...] = ()  # tokens that prompts are lengthened to; (): as they are
    forward: Literal["auto", "stock", "fused"] = "auto"
    graph: Literal["auto", "off", "step", "round"] = "auto"
    compile: bool = False
    acceptance: tuple[float, ...] | None = None  # drawn, per position: the text is no text
    dummy_weights: bool = False
    forecast: bool = False  # trace and forecast, then measure the best few K alone
    exhaustive: bool = False  # forecast, and measure every K all the same
    most_drafters: int | None = None  # of a forecast, to be measured in each setting; None: all
    costs: tuple[str, ...] = ()  # files or addresses: what rounds cost in another engine
    acceptance_rule: AcceptanceRule | None = None  # that engine's; None: as drafts are made here
    num_samples: int = 1  # above 1: also a cell with so many answers to a prompt, the best picked

    @property
    def is_synthetic(self) -> bool:
        """True where nothing real was decoded: a speed, never a statement about text."""
        return self.acceptance is not None or self.dummy_weights


@dataclass(frozen=True, kw_only=True, slots=True)
class CellPlan:
    """One line of the plan: a cell and how much of it will be measured."""

    key: CellKey
    num_prompts: int
    num_repeats: int


def too_deep(pairing: str, least: int) -> str:
    """What a run says of the K that nobody asked for and that its plan leaves out."""
    return f"{pairing} cannot draft K = {least} or more tokens ahead: these K were left out"


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
    pairing_sha256: Mapping[str, str] = field(default_factory=dict)  # of their entries in the file
    workload_prompts: Mapping[str, int] = field(default_factory=dict)  # in the file, used or not

    @property
    def keys(self) -> tuple[CellKey, ...]:
        """Of every planned cell, in the order of the plan."""
        return tuple(plan.key for plan in self.cells)
