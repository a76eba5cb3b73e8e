"""An engine's requests and results in the decoder's words, and back."""

from collections.abc import Collection, Sequence

from specbench.decoding.request import Request, Result
from specbench.engines.arrivals import arrivals
from specbench.engines.engine import EngineRequest, EngineResult, Load


def decoder_requests(requests: Sequence[EngineRequest], load: Load) -> list[Request]:
    """What the decoder is asked."""
    return [
        Request(
            prompt_ids=request.prompt_ids,
            max_new_tokens=request.max_new_tokens,
            seed=request.seed,
            arrival=arrival,
            prediction_ids=request.prediction_ids,
            is_sample=load.best_of,
        )
        for request, arrival in zip(requests, arrivals(requests, load), strict=True)
    ]


def engine_result(result: Result, eos_ids: Collection[int]) -> EngineResult:
    """What the decoder answered."""
    return EngineResult(
        output_ids=result.output_ids,
        hit_eos=result.output_ids[-1] in eos_ids,
        prefill_s=result.first_token_s - result.started_s,
        ttft_s=result.first_token_s - result.arrived_s,
        decode_s=result.finished_s - result.first_token_s,
        total_s=result.finished_s - result.arrived_s,
        cpu_s=None,
        rounds=result.rounds,
        arrived_s=result.arrived_s,
        queue_s=result.started_s - result.arrived_s,
    )
