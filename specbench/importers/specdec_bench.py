"""Results of `specdec_bench` in NVIDIA's Model Optimizer: the folder of its --save_dir.

Source: examples/specdec_bench at a2fbac7b. `acceptance_rate.json` and `timing.json` have an item
per run; `configuration.json` has the options. Lengths are tokens per streamed chunk.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from specbench.importers.imported_cell import Figures, ImportOverrides, ParsedResult
from specbench.importers.result_file import ResultObject
from specbench.records import Kind
from specbench.stats.rounds import num_reaching

TOOL = "specdec_bench"

ENGINES = {"TRTLLM": "tensorrt_llm", "VLLM": "vllm", "SGLANG": "sglang"}
_HISTOGRAM = "Acceptance_Length_Histogram"
# Keys of the files of a folder; `join` adds the others under these names to each histogram.
_PARTS = {"timing": "Output TPS", "configuration": "speculative_algorithm"}


def recognizes(result: ResultObject) -> bool:
    return any(result.has(key) for key in (_HISTOGRAM, *_PARTS.values()))


def join(results: Sequence[ResultObject]) -> list[ResultObject]:
    """Every result, with the times of its run and the configuration of its folder."""
    joined = [result for result in results if not recognizes(result)]
    for result in filter(recognizes, results):
        folder = [r for r in results if Path(r.place).parent == Path(result.place).parent]
        runs = [r for r in folder if r.has(_HISTOGRAM)]
        if not runs:
            result.fail(_HISTOGRAM, "is missing; import its folder")
        parts = {name: [r.values for r in folder if r.has(key)] for name, key in _PARTS.items()}
        if result in runs:
            added = {n: p[min(runs.index(result), len(p) - 1)] for n, p in parts.items() if p}
            joined.append(replace(result, values={**result.values, **added}))
    return joined


def read(result: ResultObject, given: ImportOverrides) -> ParsedResult:
    about, timing = result.inner("configuration"), result.inner("timing")
    # DFlash has a block size instead, which engines count differently.
    algorithm = about.text("speculative_algorithm") or ""
    k = {"NONE": 0, "DFLASH": None}.get(algorithm, about.whole("draft_length"))
    acceptance = _acceptance(result, given.num_speculative_tokens if k is None else k)
    sampling = about.inner("runtime_params").section("sampling_kwargs")
    greedy = 0.0 if about.values and sampling is None else None
    temperatures = (about.number("temperature"), (sampling or about).number("temperature"), greedy)
    return ParsedResult(
        engine=ENGINES.get(about.text("engine") or "", "unknown"),
        model=about.text("model_dir"),
        workload=about.text("dataset"),
        num_speculative_tokens=k,
        concurrency=about.whole("concurrency"),
        temperature=next((value for value in temperatures if value is not None), None),
        tool_version=about.text("specdec_bench_version"),
        measured_at=about.text("timestamp"),
        num_completed=len(result.inner("Request_AL").values) or None,
        figures={
            "aggregate_tokens_per_s": timing.number("Output TPS"),
            "request_latency_s": _median(timing, "E2E Request Time"),
            "ttft_s": _median(timing, "TTFT Time"),
            "user_tokens_per_s": _median(timing, "Request Generation Tokens Per Second"),
            **acceptance,
        },
        warnings=(Kind.CHUNKS(),) if acceptance else (),
    )


def _acceptance(result: ResultObject, k: int | None) -> Figures:
    """Acceptance over chunks and over requests, from the numbers of chunks by their tokens."""
    if k is None:
        return {}
    chunks = result.inner(_HISTOGRAM).histogram(
        range(1, k + 2), f"1 to {k + 1} tokens per chunk at K={k}"
    )
    num = sum(chunks.values())
    if not k or not num:
        return {}
    reached = num_reaching({length - 1: n for length, n in chunks.items()}, k)
    per_request = result.number("Average_AL") or result.number("Average_AR")
    return {
        "mean_acceptance_length": sum(length * n for length, n in chunks.items()) / num,
        "mean_acceptance_length_per_request": per_request,
        "acceptance_rate_per_position": tuple(n / num for n in reached[1:]),
        "num_rounds": float(num),
    }


def _median(timing: ResultObject, name: str) -> float | None:
    """A median, which the file contains as text."""
    quantiles = timing.inner(name, "quantiles")
    text = quantiles.text("0.5") or ""
    value = float(text) if text.replace(".", "", 1).isdecimal() else text or None
    return replace(quantiles, values={"0.5": value}).number("0.5")
