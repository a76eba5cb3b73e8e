"""Single requests, of result files that list their times."""

from specbench.importers.imported_cell import request_of
from specbench.importers.result_file import Result
from specbench.records import RequestRecord


def requests_of(result: Result) -> tuple[RequestRecord, ...]:
    """In the order they were sent; empty if the file has no such lists.

    `itls` has the seconds between a request's chunks: their sum is its decode time, whatever a
    chunk holds. Prompts of equal length that got equal texts are taken for one, asked repeatedly.
    """
    prompts, lengths, ttfts = map(result.numbers, ("input_lens", "output_lens", "ttfts"))
    gaps, texts = result.lists("itls"), result.values.get("generated_texts")
    if prompts is None or lengths is None or ttfts is None or gaps is None:
        return ()
    for name, column in (("input_lens", prompts), ("ttfts", ttfts), ("itls", gaps)):
        if len(column) != len(lengths):
            result.fail(name, f"{len(column)} requests, {len(lengths)} in output_lens")
    if not isinstance(texts, list) or len(texts) != len(lengths):
        texts = [*range(len(lengths))]
    first: dict[tuple[float, str], int] = {}
    return tuple(
        request_of(
            f"prompt {first.setdefault((prompts[i], str(texts[i])), i)}",
            i,
            num_prompt_tokens=prompts[i],
            num_tokens=lengths[i],
            ttft_s=ttfts[i],
            total_s=ttfts[i] + sum(gaps[i]),
        )
        for i in range(len(lengths))
    )
