"""The round-cost formulas: pure numbers, shared by the decoder's controller and the forecast.

Bytes are those that a forward must read from the device's memory.
"""

from specbench.stats.acceptance import expected_tokens_iid


def goodput(tokens: float, *, num_live: int, round_s: float) -> float:
    """Tokens per second of a batch whose `num_live` rows each emit `tokens` per `round_s`.

    Source: Liu et al. 2024 (arXiv:2406.14066), the goodput of a speculation length.
    """
    return num_live * tokens / round_s


def amortised_goodput(rate: float, *, stay_s: float, once_s: float) -> float:
    """Tokens per second that remain of `rate` over `stay_s`, if `once_s` is paid once for it."""
    return rate * stay_s / (stay_s + once_s)


def bytes_per_forward(weights_bytes: int, rows: int, context: int, kv_bytes_per_token: int) -> int:
    """W + B L kv: every weight once and the keys and values of every row, whatever its tokens.

    Checking a few tokens reads as much as one step. W contains the embedding table only if it is
    also the output matrix: otherwise single rows of it are looked up. Source: the memory side of
    the roofline (Williams et al. 2009).
    """
    return weights_bytes + rows * context * kv_bytes_per_token


def roofline_s(num_bytes: float, bytes_per_s: float) -> float:
    """bytes / bandwidth: what must be read from memory takes at least so long."""
    return num_bytes / bytes_per_s


def break_even_acceptance(k: int, round_steps: float) -> float | None:
    """The acceptance of every draft at which a round of K emits what it costs, in baseline steps.

    (1 - a^(K+1)) / (1 - a) = B, solved for a to 2e-12. 0: a round costs no more than a step; None:
    not even 1 is enough. Source: Leviathan et al. 2023 (arXiv:2211.17192), equation 1, with
    verification and overhead not free.
    """
    if round_steps > k + 1:
        return None
    if round_steps <= 1:
        return 0.0
    # By halves: scipy.optimize takes longer to import than most commands run.
    low, high = 0.0, 1.0
    while high - low > 2e-12:
        middle = (low + high) / 2
        if expected_tokens_iid(middle, k) < round_steps:
            low = middle
        else:
            high = middle
    return high
