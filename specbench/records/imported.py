"""What another tool measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from specbench.records.doc import Doc
from specbench.records.measured import RequestRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedRecord:
    """One cell's figures as another tool's result file gives them.

    `figures` has the names and units of our metrics; one that the file does not carry is absent.
    `requests` are in the order they were sent, if the file has each one's times; without them
    nothing has an interval.
    """

    cell_id: Annotated[str, Doc("the cell")]
    tool: Annotated[str, Doc("such as `vllm bench serve`")]
    tool_version: Annotated[str | None, Doc("absent if unknown")]
    file: Annotated[str, Doc("name of the result file, without its folder")]
    file_sha256: Annotated[str, Doc("hash of the file")]
    measured_at: Annotated[str | None, Doc("ISO 8601, as the file has it")]
    num_requests: Annotated[int | None, Doc("sent", "requests")]
    num_failed: Annotated[int | None, Doc("failed", "requests")]
    figures: Annotated[
        Mapping[str, float | tuple[float, ...]],
        Doc("figures under the names and in the units of our metrics"),
    ] = field(default_factory=dict)
    requests: Annotated[
        tuple[RequestRecord, ...],
        Doc("in the order they were sent; empty if the file has no times of single requests"),
    ] = ()
    warnings: Annotated[tuple[str, ...], Doc("what the tool's way of counting means for them")] = ()
