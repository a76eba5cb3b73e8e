"""Speeds from the times of single requests, where a result file has them."""

from collections.abc import Mapping
from statistics import median

from specbench.importers.result_file import Result


def decode_speeds(result: Result) -> Mapping[str, float]:
    """decode_tokens_per_s and user_tokens_per_s; empty where the file has no such lists.

    `itls` holds the gaps between a request's chunks, so their sum is its decode time whatever a
    chunk holds; `output_lens` counts its tokens. A request that failed has none of either.
    """
    lengths, gaps = result.numbers("output_lens"), result.lists("itls")
    if lengths is None or gaps is None:
        return {}
    if len(lengths) != len(gaps):
        result.fail("itls", f"{len(gaps)} requests, {len(lengths)} in output_lens")
    spent = [sum(gap) for gap in gaps]
    timed = [(n - 1, s) for n, s in zip(lengths, spent, strict=True) if n > 1 and s > 0]
    if not timed:
        return {}
    return {
        "decode_tokens_per_s": sum(n for n, _ in timed) / sum(s for _, s in timed),
        "user_tokens_per_s": median(n / s for n, s in timed),
    }
