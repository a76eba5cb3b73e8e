"""Result lines of SGLang's `bench_serving` (--output-file, --output-details).

Source: sglang/bench_serving.py of 0.5.23. A line has no name of the model; accept_length is the
server's average since its start, not that of the run.
"""

from specbench.engines.served.sglang import depth
from specbench.importers.imported_cell import (
    ImportOverrides,
    ParsedResult,
    bench_speeds,
    requests_of,
)
from specbench.importers.result_file import ResultObject
from specbench.records import Kind

TOOL = "sglang bench_serving"


def recognizes(result: ResultObject) -> bool:
    return result.has("backend", "dataset_name", "completed", "output_throughput", "median_tpot_ms")


def read(result: ResultObject, given: ImportOverrides) -> ParsedResult:
    length = result.number("accept_length")
    server = result.inner("server_info")
    algorithm = server.text("speculative_algorithm")
    model = result.text("model_id") or result.text("model")
    errors = result.items("errors")
    dataset = result.text("dataset_name")
    return ParsedResult(
        engine="sglang",
        model=model or server.text("model_path"),
        workload=dataset,
        num_speculative_tokens=_depth(server),
        drafts_by=f"server_info ({algorithm})" if algorithm else "",
        concurrency=result.whole("max_concurrency"),
        request_rate=result.rate("request_rate"),
        tool_version=server.text("version"),
        num_completed=result.whole("completed"),
        num_failed=None if errors is None else sum(map(bool, errors)),
        figures={
            **bench_speeds(result, "e2e_latency"),
            "input_tokens_per_s": result.number("input_throughput"),
            "mean_acceptance_length": length,
        },
        requests=requests_of(result, is_sampled=bool(given.temperature)),
        warnings=(
            *([Kind.SINCE_START()] if length is not None else []),
            *([Kind.RANDOM_PROMPTS()] if dataset and dataset.startswith("random") else []),
        ),
    )


def _depth(server: ResultObject) -> int | None:
    """K from the arguments of the server."""
    if not server.has("speculative_algorithm"):
        return None
    return depth(
        server.text("speculative_algorithm"),
        server.whole("speculative_num_steps"),
        server.whole("speculative_num_draft_tokens"),
    )
