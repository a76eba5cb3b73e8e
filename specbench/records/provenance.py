"""Where and how it was measured: environment, models, settings, plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from specbench.records.keys import CellKey
from specbench.settings import RunSettings


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
    threads: int | None  # None: chosen per target, in its EngineRecord
    device: str  # "cpu" or "cuda:0"
    gpu: str | None = None
    gpu_memory_bytes: int | None = None
    driver: str | None = None
    power_limit_w: float | None = None
    sm_clock_default_mhz: int | None = None
    probe: str = ""  # which probe ran, or why none did
    node: str | None = None  # of a cluster: a short id, never the name of a machine

    @property
    def hardware(self) -> dict[str, str]:
        """What seconds depend on; they are compared where it is the same."""
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

    name: str
    source: str  # folder name or hub id, never an absolute path
    revision: str | None
    content_sha256: str
    tokenizer_sha256: str
    dtype: str
    num_parameters: int
    template_sha256: str | None = None  # of its chat template; "": it has none
    template_clock: str = ""  # the date that its chat template printed; "": none


@dataclass(frozen=True, kw_only=True, slots=True)
class CellPlan:
    """One line of the plan: a cell and how much of it will be measured."""

    key: CellKey
    num_prompts: int
    num_repeats: int


def no_template(target: str) -> str:
    """What a run and a check of files say of a target without a chat template."""
    return f"{target} has no chat template: prompts are fed as they are"


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
        """Those of the planned cells, in the order of the plan."""
        return tuple(plan.key for plan in self.cells)
