"""Records of a run as JSON and back: strict, so that everything written can be read again.

A line of records.jsonl is `{"type": "block", "data": {...}}`; run.json is a RunRecord.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from specbench.errors import UsageError
from specbench.records import (
    BlockRecord,
    EngineCost,
    EngineRecord,
    Environment,
    ExtensionRecord,
    FailureRecord,
    FirstDifference,
    ForecastRecord,
    ForwardCost,
    ImportedRecord,
    LimitRecord,
    MemoryRecord,
    ModelIdentity,
    ReferenceRecord,
    RoundCost,
    RunRecord,
    ServerRecord,
    TraceRecord,
)
from specbench.untrusted import parse_json

SCHEMA_VERSION = 9


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnd:
    """The last line of a run that measured everything in its plan."""

    finished_at: str  # ISO 8601, UTC


StoredRecord = (
    BlockRecord
    | ReferenceRecord
    | MemoryRecord
    | ForwardCost
    | FailureRecord
    | ModelIdentity
    | EngineRecord
    | LimitRecord
    | FirstDifference
    | ImportedRecord
    | TraceRecord
    | RoundCost
    | EngineCost
    | ForecastRecord
    | ExtensionRecord
    | ServerRecord
    | Environment
    | RunEnd
)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRun:
    """All records of a run so far, each kind in the order it was stored."""

    folder: Path
    run: RunRecord
    is_complete: bool  # False: interrupted, still running, or failed
    is_failed: bool = False  # ended without a measurement
    is_empty: bool = False  # without a measurement so far
    blocks: tuple[BlockRecord, ...] = ()
    references: tuple[ReferenceRecord, ...] = ()
    memory: tuple[MemoryRecord, ...] = ()
    forwards: tuple[ForwardCost, ...] = ()
    failures: tuple[FailureRecord, ...] = ()
    models: tuple[ModelIdentity, ...] = ()
    engines: tuple[EngineRecord, ...] = ()
    limits: tuple[LimitRecord, ...] = ()
    differences: tuple[FirstDifference, ...] = ()
    imported: tuple[ImportedRecord, ...] = ()
    traces: tuple[TraceRecord, ...] = ()
    round_costs: tuple[RoundCost, ...] = ()
    engine_costs: tuple[EngineCost, ...] = ()
    forecasts: tuple[ForecastRecord, ...] = ()
    extensions: tuple[ExtensionRecord, ...] = ()  # decisions taken while it was measured
    servers: tuple[ServerRecord, ...] = ()
    sessions: tuple[Environment, ...] = ()  # one for each resume, and for each node of a cluster

    def with_slo(self, slo: Mapping[str, float] | None) -> "StoredRun":
        """The run, judged by goodput within limits, or by speed; UsageError for several samples."""
        if slo and self.run.settings.load.num_samples > 1:
            raise UsageError(
                f"--slo counts single requests, and run {self.run.run_id} took several samples of "
                "a prompt; drop --slo"
            )
        load = replace(self.run.settings.load, slo=slo)
        settings = replace(self.run.settings, load=load)
        return replace(self, run=replace(self.run, settings=settings))

    @property
    def was_budget_too_short(self) -> bool:
        """Whether a failed run measured nothing only because its time budget was over."""
        return self.run.settings.effort.budget_s is not None and not any(self._errors)

    @property
    def why_failed(self) -> str:
        """Why a failed run has measured nothing."""
        if self.was_budget_too_short:
            budget_s = self.run.settings.effort.budget_s
            return f"its budget of {budget_s:g} s was over before the first prompt"
        return "; ".join(dict.fromkeys(self._errors)) or "no request was sent"

    @property
    def _errors(self) -> list[str]:
        errors = [f"{failure.pairing}: {failure.reason}" for failure in self.failures]
        errors += [problem for server in self.servers for problem in server.problems]
        return errors + [r.error for block in self.blocks for r in block.requests if r.error]


def has_measured(record: StoredRecord) -> bool:
    """Whether a record has a measurement or forecast, not only a preparation."""
    if isinstance(record, BlockRecord):
        return any(request.error is None for request in record.requests)
    return isinstance(record, ImportedRecord | ForecastRecord)


Tag = TypeVar("Tag")
Data = TypeVar("Data")


@dataclass(frozen=True, slots=True)
class _RecordLine(Generic[Tag, Data]):
    type: Tag
    data: Data


_AnyLine = (
    _RecordLine[Literal["block"], BlockRecord]
    | _RecordLine[Literal["reference"], ReferenceRecord]
    | _RecordLine[Literal["memory"], MemoryRecord]
    | _RecordLine[Literal["forward"], ForwardCost]
    | _RecordLine[Literal["failure"], FailureRecord]
    | _RecordLine[Literal["model"], ModelIdentity]
    | _RecordLine[Literal["engine"], EngineRecord]
    | _RecordLine[Literal["limit"], LimitRecord]
    | _RecordLine[Literal["difference"], FirstDifference]
    | _RecordLine[Literal["imported"], ImportedRecord]
    | _RecordLine[Literal["trace"], TraceRecord]
    | _RecordLine[Literal["cost"], RoundCost]
    | _RecordLine[Literal["enginecost"], EngineCost]
    | _RecordLine[Literal["forecast"], ForecastRecord]
    | _RecordLine[Literal["extension"], ExtensionRecord]
    | _RecordLine[Literal["server"], ServerRecord]
    | _RecordLine[Literal["session"], Environment]  # environment of the lines after a resume
    | _RecordLine[Literal["done"], RunEnd]
)
_TAGS: dict[type, str] = {
    data: get_args(tag)[0] for tag, data in (get_args(line) for line in get_args(_AnyLine))
}

_CONFIG = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)
_LINE: TypeAdapter[Any] = TypeAdapter(
    Annotated[_AnyLine, Field(discriminator="type")], config=_CONFIG
)
# pydantic hands a config to a standard dataclass only through an enclosing type.
_RUN: TypeAdapter[RunRecord | None] = TypeAdapter(RunRecord | None, config=_CONFIG)


class NotJsonError(ValueError):
    """The text is not JSON, as after a write that was cut short."""


class SchemaError(ValueError):
    """The run was written by a specbench with another layout of runs."""


def encode_line(record: StoredRecord) -> bytes:
    """One line with its newline; ValueError if it would not read back as `record`.

    This refuses NaN, infinities, and values that the record's types do not allow.
    """
    return _encode(_LINE, _RecordLine(_TAGS[type(record)], record)) + b"\n"


def decode_line(text: bytes) -> StoredRecord:
    """The record of one line; NotJsonError or ValueError gives the fault."""
    record: StoredRecord = _decode(_LINE, text).data
    return record


def encode_run(run: RunRecord) -> bytes:
    """The indented text of run.json; ValueError as for `encode_line`."""
    return _encode(_RUN, run, indent=2) + b"\n"


def decode_run(text: bytes) -> RunRecord:
    """The run of a run.json; SchemaError, NotJsonError or ValueError if it is not one."""
    # Another layout has unknown keys: the error is about its version, not about keys.
    try:
        document = parse_json(text)
    except ValueError as error:
        raise NotJsonError(str(error)) from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if isinstance(version, int) and version != SCHEMA_VERSION:
        advice = "update specbench to read it" if version > SCHEMA_VERSION else "measure it again"
        raise SchemaError(f"schema version {version}, not {SCHEMA_VERSION}; {advice}")
    run: RunRecord | None = _decode(_RUN, text)
    if run is None:
        raise ValueError("null instead of a run")
    return run


_LINE_TYPE = re.compile(rb'\{"type":"([a-z]+)","data":\{.*\}\n')


def line_type(line: bytes) -> str | None:
    """The type that a complete line states, without reading the rest; None if it has none."""
    match = _LINE_TYPE.match(line)
    return match[1].decode() if match else None


def _encode(adapter: TypeAdapter[Any], value: object, *, indent: int | None = None) -> bytes:
    try:
        text = adapter.dump_json(value, indent=indent, warnings="error")
        read_back = _decode(adapter, text)
    except ValueError as error:
        raise ValueError(f"cannot be stored: {error}") from error
    if read_back != value:
        raise ValueError("cannot be stored: it would read back as another value (NaN? a list?)")
    return text


def _decode(adapter: TypeAdapter[Any], text: bytes) -> Any:
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            raise NotJsonError(first["msg"]) from error
        path = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{path or 'line'}: {first['msg']}") from error
