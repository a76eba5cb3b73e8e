"""Where and how it was measured: environment, models, settings, plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from specbench.records.doc import Doc
from specbench.records.keys import CellKey
from specbench.settings import RunSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Provenance, written before the first measurement; an import leaves None or "" in it."""

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
    node: Annotated[
        str | None, Doc("node of a [cluster](cluster.md): a short id; absent without one")
    ] = None

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

    name: Annotated[str, Doc("as in the pairing")]
    source: Annotated[str, Doc("hub id, or name of the folder")]
    revision: Annotated[str | None, Doc("hub revision; absent for a folder")]
    content_sha256: Annotated[str, Doc("hash of the weights")]
    tokenizer_sha256: Annotated[str, Doc("hash of the tokenizer")]
    dtype: Annotated[str, Doc("as loaded")]
    num_parameters: Annotated[int, Doc("number of parameters", "parameters")]
    template_sha256: Annotated[
        str | None, Doc("hash of the chat template; empty without one, absent in older runs")
    ] = None
    template_clock: Annotated[
        str, Doc("fixed date that the chat template printed; empty if it prints none")
    ] = ""


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
