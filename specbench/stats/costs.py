"""The round-cost formulas: pure numbers, shared by the decoder's controller and the forecast.

Bytes are those that a forward must read from the device's memory.
"""


def goodput(tokens: float, *, num_live: int, round_s: float) -> float:
    """Tokens a second of a batch whose live rows emit `tokens` each in a round of `round_s`.

    Source: Liu et al. 2024 (arXiv:2406.14066), the goodput of a speculation length.
    """
    return num_live * tokens / round_s


def amortised_goodput(rate: float, *, stay_s: float, once_s: float) -> float:
    """What is left of `rate` tokens a second kept up for `stay_s`, when `once_s` buys it."""
    return rate * stay_s / (stay_s + once_s)


def bytes_per_forward(weights_bytes: int, rows: int, context: int, kv_bytes_per_token: int) -> int:
    """W + B L kv: every weight once and the keys and values of every row, whatever its tokens.

    A few checked tokens read what one reads: it is the same for a step and a verification. An
    embedding table is no part of W unless it is the output matrix too: single rows of it are
    looked up. Source: the memory side of the roofline (Williams et al. 2009).
    """
    return weights_bytes + rows * context * kv_bytes_per_token


def roofline_s(num_bytes: float, bytes_per_s: float) -> float:
    """bytes / bandwidth: what must be read from memory takes at least so long."""
    return num_bytes / bytes_per_s
