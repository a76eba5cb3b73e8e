"""The checks that a broken decoder must fail: greedy text and sampled texts."""

from collections.abc import Callable
from functools import cache

from specbench.decode.drafter import Drafter
from specbench.forward.runner import StockRunner
from tests.decoding.lossless import (
    FIRST,
    LAST,
    NUM_SAMPLES,
    WARM,
    SamplingBench,
    assert_texts,
    decode,
    make_drafter,
    sample_texts,
    sampled_p_value,
    until_eos,
)
from tests.decoding.models import ARCHITECTURES, build, ragged_requests, ragged_texts

# Layers with and without a window, ragged rows.
REQUESTS = ragged_requests()


@cache
def gemma() -> tuple[StockRunner, StockRunner, list[tuple[int, ...]]]:
    model = build(ARCHITECTURES["Gemma2 + window"]())
    texts = ragged_texts(model)
    return StockRunner(model), StockRunner(model), texts


def greedy_check(
    wrap: Callable[[Drafter], Drafter] = lambda drafter: drafter,
    eos_ids: tuple[int, ...] = (),
    **parameters: object,
) -> None:
    """AssertionError if greedy text is not that of `generate`."""
    target, draft, texts = gemma()
    drafter = wrap(make_drafter("draft_model", target, draft, **parameters))
    results = decode(target, drafter, REQUESTS, k=4, eos_ids=eos_ids)
    assert_texts(results, [until_eos(text, eos_ids) for text in texts])


@cache
def bench() -> SamplingBench:
    return SamplingBench(WARM)


def sampled_p(k: int, num_samples: int = NUM_SAMPLES, **parameters: object) -> float:
    """The smaller p-value of the two triples of tokens."""
    subject = bench()
    drafter = make_drafter("draft_model", subject.target, subject.draft, **parameters)
    texts_N6, _ = sample_texts(subject.target, drafter, k=k, sampling=WARM, num_samples=num_samples)
    return min(sampled_p_value(texts_N6, subject.probs, triple) for triple in (FIRST, LAST))
