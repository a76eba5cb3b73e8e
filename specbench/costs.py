"""The round-cost formulas: pure numbers, shared by the decoder's controller and the forecast.

Costs are in units of one baseline step (a target forward of one token): c for one drafted
token, v for verifying K + 1 tokens, h for everything else in a round.
"""

from collections.abc import Sequence


def expected_tokens(acceptance_rate_per_position: Sequence[float]) -> float:
    """Tokens a round emits, 1 + sum(a_i), where a_i = P(at least i drafts are accepted).

    The a_i are unconditional, so no independence between positions is assumed.
    """
    return 1.0 + sum(acceptance_rate_per_position)


def expected_tokens_iid(alpha: float, k: int) -> float:
    """(1 - alpha^(K+1)) / (1 - alpha): every draft is accepted alike and independently.

    Source: Leviathan et al. 2023 (arXiv:2211.17192), equation 1.
    """
    return float(sum(alpha**i for i in range(k + 1)))


def break_even_length(k: int, *, draft: float, verify: float, overhead: float = 0.0) -> float:
    """K c + v + h: the acceptance length at which a round costs what it saves."""
    return k * draft + verify + overhead


def predicted_speedup(tokens: float, break_even: float) -> float:
    """Decode speed-up of rounds that emit `tokens` and cost `break_even` baseline steps.

    Source: Leviathan et al. 2023, theorem 3.8, with verification and overhead not free.
    """
    return tokens / break_even


def optimal_k(tokens: Sequence[float], break_even: Sequence[float]) -> int:
    """The K with the highest predicted speed-up; of equals the smallest.

    Entry K of both sequences belongs to K; entry 0 is the baseline, 1 token for 1 step.
    """
    speedups = [
        predicted_speedup(emitted, cost) for emitted, cost in zip(tokens, break_even, strict=True)
    ]
    return speedups.index(max(speedups))
