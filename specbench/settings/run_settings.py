"""The settings of a run in groups; run.json has them flat."""

from dataclasses import dataclass, field, make_dataclass
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_origin

from specbench.doc import Doc
from specbench.settings.groups import (
    DEFAULT_WORKLOADS,
    DecoderSettings,
    DraftSettings,
    EffortSettings,
    ForecastSettings,
    K,
    LoadSettings,
    MachineSettings,
    PairingsFile,
    SamplingSettings,
    Seed,
    ServerSettings,
    WorkloadSettings,
)
from specbench.settings.option import choices_of, flat, grouped, leaves

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """The settings of a run, with which an interrupted one can be resumed."""

    command: Annotated[Literal["run", "sweep-k", "import"], Doc("the command")] = "run"
    workload: WorkloadSettings
    draft: Annotated[DraftSettings, K] = field(default_factory=DraftSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    effort: EffortSettings = field(default_factory=EffortSettings)
    load: LoadSettings = field(default_factory=LoadSettings)
    servers: ServerSettings = field(default_factory=ServerSettings)
    forecasting: ForecastSettings = field(default_factory=ForecastSettings)
    decoder: DecoderSettings = field(default_factory=DecoderSettings)
    machine: MachineSettings = field(default_factory=MachineSettings)
    seed: Seed = 0
    pairings_file: PairingsFile = None

    @classmethod
    def unset(cls) -> "RunSettings":
        """The settings of a command line without options."""
        return cls(workload=WorkloadSettings(pairings=(), workloads=DEFAULT_WORKLOADS))

    @property
    def stored(self) -> Any:
        """The settings as in run.json: every value by its name."""
        values = flat(self)
        return StoredSettings(**{leaf.name: values[leaf.name] for leaf in leaves(RunSettings)})

    @classmethod
    def of(cls, stored: Any) -> "RunSettings":
        """The settings of a run.json."""
        settings: RunSettings = grouped(cls, stored)
        return settings

    @classmethod
    def with_options(cls, options: object, **more: Any) -> "RunSettings":
        """The settings that a command's options have, by their names; defaults for the others."""
        return cls.of(SimpleNamespace(**{**flat(options), **more}))

    @classmethod
    def __get_pydantic_core_schema__(
        cls, _source: Any, handler: "GetCoreSchemaHandler"
    ) -> "CoreSchema":
        from pydantic_core import core_schema  # noqa: PLC0415 - --help does not need it

        stored = handler(StoredSettings)
        return core_schema.no_info_after_validator_function(
            cls.of,
            stored,
            serialization=core_schema.plain_serializer_function_ser_schema(
                attrgetter("stored"), return_schema=stored
            ),
        )


def _stored_type(kind: Any) -> Any:
    """A choice is stored as text: a run stays readable if its choice no longer exists."""
    if not choices_of(kind):
        return kind
    return str if get_origin(kind) is Literal else str | None


StoredSettings = make_dataclass(
    "RunSettings",
    [
        (leaf.name, _stored_type(leaf.type), field(default=leaf.default))
        for leaf in leaves(RunSettings)
    ],
    frozen=True,
    kw_only=True,
    slots=True,
)
