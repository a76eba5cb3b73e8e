"""Reports of TensorRT-LLM's `trtllm-bench` (--report_json).

Sources: tensorrt_llm/bench/dataclasses/reporting.py and statistics.py of 1.3. A request has one
more round than decoding iterations, so K is (acceptance length - 1) / acceptance rate.
"""

from specbench.importers.imported_cell import Figures, ImportOverrides, ParsedResult, latencies
from specbench.importers.result_file import ResultObject
from specbench.records import Kind
from specbench.stats.rounds import mean_length

TOOL = "trtllm-bench"


def recognizes(result: ResultObject) -> bool:
    return result.has("engine", "world_info", "request_info", "performance")


def read(result: ResultObject, given: ImportOverrides) -> ParsedResult:  # noqa: ARG001
    """Concurrency is not in the report, which only has the mean number of running requests."""
    engine, speed = result.inner("engine"), result.inner("performance")
    k, acceptance = _speculation(result.inner("decoding_stats"))
    return ParsedResult(
        engine="tensorrt_llm",
        model=engine.text("model") or engine.text("model_path"),
        num_speculative_tokens=k,
        tool_version=engine.text("version"),
        num_completed=result.inner("request_info").whole("num_requests"),
        figures={
            "aggregate_tokens_per_s": speed.number("system_output_throughput_tok_s"),
            "requests_per_s": speed.number("request_throughput_req_s"),
            **latencies(
                lambda name, percent: result.inner(*name.split()).milliseconds(f"p{percent}"),
                request_latency_s="performance request_latency_percentiles_ms",
                ttft_s="streaming_metrics ttft_percentiles",
                tpot_s="streaming_metrics tpot_percentiles",
            ),
            **acceptance,
        },
        warnings=(Kind.ALL_ITERATIONS(),) if acceptance else (),
    )


def _speculation(stats: ResultObject) -> tuple[int | None, Figures]:
    """K and acceptance from means over requests; K is None if no draft token was accepted."""
    names = ("acceptance_length", "draft_acceptance_rate")
    length, rate = (stats.inner(f"{name}_percentiles").number("average") for name in names)
    k = round((length - 1) / rate) if length and rate else None
    counts = ("num_draft_tokens", "num_accepted_draft_tokens")
    drafted, accepted = (stats.inner(f"{name}_percentiles").number("average") for name in counts)
    figures = {"mean_acceptance_length_per_request": length} if length else {}
    if k and drafted and accepted is not None:
        pooled = mean_length(accepted, drafted / k)
        figures |= {"acceptance_rate": accepted / drafted, "mean_acceptance_length": pooled}
    return k, figures
