"""Greedy text over slots is that of transformers' `generate` in float32, by architecture."""

from typing import Any

import pytest

from tests.decoding.lossless import acceptance_rate, assert_texts, decode, make_drafter
from tests.decoding.models import ARCHITECTURES, build, ragged_requests
from tests.decoding.test_decoder import Subject, make_subject

pytestmark = pytest.mark.slow  # 17 architectures, 5 settings each


@pytest.fixture(scope="module", params=list(ARCHITECTURES))
def subject(request: Any) -> Subject:
    config = ARCHITECTURES[request.param]
    return make_subject(build(config(), seed=0), build(config(), seed=1))


REQUESTS = ragged_requests()


@pytest.mark.sampled(one_in=4)
def test_the_reference_text_does_not_loop(subject: Subject) -> None:
    assert all(len(set(text)) >= 6 for text in subject.texts)


@pytest.mark.sampled(one_in=2)
def test_text_without_drafts_equals_generate(subject: Subject) -> None:
    baseline = make_drafter("none", subject.target)

    assert_texts(decode(subject.target, baseline, REQUESTS, k=0), subject.texts)


@pytest.mark.sampled(one_in=4, every=["k"])
@pytest.mark.parametrize("k", [1, 8])
def test_text_with_perfect_drafts_equals_generate(subject: Subject, k: int) -> None:
    drafter = make_drafter("draft_model", subject.target, subject.own_draft)

    results = decode(subject.target, drafter, REQUESTS, k=k)

    assert_texts(results, subject.texts)
    assert acceptance_rate(results) == 1


@pytest.mark.sampled(one_in=2, every=["subject", "k"])
@pytest.mark.parametrize("k", [1, 8])
def test_text_with_mostly_wrong_drafts_equals_generate(subject: Subject, k: int) -> None:
    drafter = make_drafter("draft_model", subject.target, subject.stranger)

    results = decode(subject.target, drafter, REQUESTS, k=k)

    assert_texts(results, subject.texts)
    assert acceptance_rate(results) < 0.2
