"""Traces of the fake engine's drafters: `good` is always right, any other never."""

from collections.abc import Iterable, Sequence
from typing import Any

from specbench.records import TraceRecord
from specbench.records.forecasts import Drafting
from specbench.tracing.trace import TargetText
from tests.forecast.traces import trace


def fake_trace(
    engine: Any,  # noqa: ARG001
    drafter: str,
    method: str,
    texts: Sequence[TargetText],
    ks: Iterable[int],
    drafting: Drafting = "own",
) -> tuple[TraceRecord, ...]:
    return tuple(
        trace(
            text.prompt_id,
            [drafter == "good"] * text.num_starts,
            depth=max(ks),
            target="big",
            drafter=drafter,
            method=method,
            workload=text.workload,
            turn=text.turn,
            repeat=text.repeat,
            temperature=text.sampling.temperature,
            num_prompt_tokens=len(text.prompt_ids),
            output_ids=text.output_ids,
            context=text.context,
            drafting=drafting,
            seconds=0.25,
        )
        for ks in [tuple(ks)]
        for text in texts
    )
