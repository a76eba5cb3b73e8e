"""Synthetic traces whose rounds can be counted by hand, and costs for them."""

from collections.abc import Mapping, Sequence

from specbench.forecast.cost_curve import CostCurve
from specbench.records import TraceRecord


def trace(prompt: str, kept: Sequence[bool | float], *, depth: int = 4, **changes) -> TraceRecord:
    """A chain along len(kept) + 1 tokens; `kept[i]` is the chance that token i + 1 is guessed."""
    size = len(kept)
    values = {
        "target": "demo",
        "drafter": "draft",
        "method": "draft_model",
        "workload": "code",
        "prompt_id": prompt,
        "turn": 0,
        "repeat": 0,
        "temperature": 0.0,
        "num_speculative_tokens": depth,
        "is_chain": True,
        "is_exact": True,
        "num_prompt_tokens": 10,
        "output_ids": tuple(range(size + 1)),
        # The budget ends before a draft of the last token: a round emits one more.
        "num_drafted": tuple(min(depth, size - 1 - s) for s in range(size)),
        "chances": tuple(
            tuple(float(chance) for chance in kept[s : s + min(depth, size - 1 - s)])
            for s in range(size)
        ),
    }
    return TraceRecord(**{**values, **changes})


def right(prompt: str, num_tokens: int = 13, **changes) -> TraceRecord:
    """Every draft is right: rounds at K emit K + 1 of the tokens after the first."""
    return trace(prompt, [True] * (num_tokens - 1), **changes)


def wrong(prompt: str, num_tokens: int = 13, **changes) -> TraceRecord:
    """No draft is right: every round emits one token."""
    return trace(prompt, [False] * (num_tokens - 1), **changes)


def curve(costs: Mapping[int, float], *, num_visits: int = 6) -> CostCurve:
    """Costs in seconds, the same in every repetition."""
    return CostCurve(costs={k: (cost,) * num_visits for k, cost in costs.items()})
