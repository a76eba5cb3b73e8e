"""Reports on their way to the host: none is overwritten before it is read."""

import pytest
import torch
from torch import Tensor

from specbench.decode.graphs import GraphLauncher
from specbench.decode.launcher import Launcher
from specbench.decode.scheduler import FixedK
from tests.decoding.fake_graphs import EarlyCopies, LateClock, LateCopies
from tests.decoding.graph_bench import (
    Bench,
    Subject,
    eager_texts,
    make_subject,
    one_request,
    some_requests,
)
from tests.decoding.lossless import assert_texts


@pytest.fixture(scope="module")
def llama() -> Subject:
    return make_subject()


@pytest.mark.parametrize("copies", [LateCopies, EarlyCopies])
def test_round_reports_are_complete_whenever_they_arrive(
    llama: Subject, copies: type[LateCopies]
) -> None:
    requests, drafter = some_requests(), llama.drafter("ngram")
    texts = eager_texts(llama, drafter, requests, FixedK(3), 5)

    results = Bench(llama, drafter, copies=copies).serve(requests, FixedK(3), 5)

    assert_texts(results, texts)


def report(number: int, num_rows: int = 2) -> Tensor:
    return torch.full((num_rows, 5), number)


@pytest.mark.parametrize("copies", [LateCopies, EarlyCopies])
def test_a_round_report_stays_readable_for_two_rounds(
    copies: type[LateCopies],
) -> None:
    clock = LateClock()
    readback = copies(clock)
    first, first_ended = readback.fetch(report(1)), clock.mark()
    second, second_ended = readback.fetch(report(2)), clock.mark()
    clock.seconds(first_ended)
    assert torch.equal(first, report(1))

    other, _ = readback.fetch(report(3, num_rows=4)), clock.mark()
    third, third_ended = readback.fetch(report(4)), clock.mark()
    clock.seconds(second_ended)
    assert torch.equal(second, report(2))
    clock.seconds(third_ended)
    assert torch.equal(third, report(4))
    assert torch.equal(other, report(3, num_rows=4))
    assert third is first  # two buffers a shape, however many rounds


LAGGING = [14, 18, 19, 20, 21, 22, 23, 24, 25, 25, 25, 25]  # K + 1 more than is known


@pytest.mark.parametrize(
    ("launcher", "k", "num_tokens", "spans"),
    [
        (Launcher, 0, 6, [11, 12, 13, 14, 15]),
        (GraphLauncher, 0, 6, [11, 12, 13, 14, 15, 16]),
        (Launcher, 3, 12, [14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24]),
        (GraphLauncher, 3, 12, LAGGING),
    ],
)
def test_the_span_of_a_round_covers_exactly_what_it_may_fill(
    llama: Subject,
    launcher: type[Launcher],
    k: int,
    num_tokens: int,
    spans: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where reports lag, the last round is over before the one that ended the text is known of."""
    asked: list[int] = []
    span_for = launcher.span_for

    def span(self: Launcher, num_tokens: int) -> int:
        asked.append(num_tokens)
        return span_for(self, num_tokens)

    monkeypatch.setattr(launcher, "span_for", span)
    drafter = llama.drafter("ngram")
    if launcher is GraphLauncher:
        Bench(llama, drafter).serve(one_request(num_tokens), FixedK(k))
    else:
        eager_texts(llama, drafter, one_request(num_tokens), FixedK(k), 1)

    assert asked == spans
