"""Reports on their way to the host: none is overwritten before it is read."""

import pytest
import torch
from torch import Tensor

from specbench.serving.policy import FixedK
from tests.decoding.fake_graphs import EarlyCopies, LateClock, LateCopies
from tests.decoding.graph_bench import Bench, Subject, eager_texts, make_subject, some_requests
from tests.decoding.lossless import assert_texts


@pytest.fixture(scope="module")
def llama() -> Subject:
    return make_subject()


@pytest.mark.parametrize("copies", [LateCopies, EarlyCopies])
def test_reports_are_whole_however_early_or_late_they_arrive(
    llama: Subject, copies: type[LateCopies]
) -> None:
    requests, drafter = some_requests(), llama.drafter("ngram")
    texts = eager_texts(llama, drafter, requests, FixedK(3), 5)

    results = Bench(llama, drafter, copies=copies).serve(requests, FixedK(3), 5)

    assert_texts(results, texts)


def report(number: int, num_rows: int = 2) -> Tensor:
    return torch.full((num_rows, 5), number)


@pytest.mark.parametrize("copies", [LateCopies, EarlyCopies])
def test_a_report_can_be_read_until_the_round_after_the_next_is_launched(
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
