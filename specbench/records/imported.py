"""What another tool measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from specbench.records.measured import RequestRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedRecord:
    """One cell's figures as another tool's result file gives them.

    `figures` has the names and units of our metrics; one that the file does not carry is absent.
    `requests` are in the order they were sent, if the file has each one's times; without them
    nothing has an interval.
    """

    cell_id: str
    tool: str  # such as "vllm bench serve"
    tool_version: str | None
    file: str  # its name, without the folder
    file_sha256: str
    measured_at: str | None  # ISO 8601; as the file has it
    num_requests: int | None  # sent
    num_failed: int | None
    figures: Mapping[str, float | tuple[float, ...]] = field(default_factory=dict)
    requests: tuple[RequestRecord, ...] = ()
    warnings: tuple[str, ...] = ()  # what the tool's own way of counting means for them
