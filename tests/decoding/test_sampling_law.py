"""Sampled text has exactly the target's law: chi-square on the joint law of three tokens.

False alarm: 1e-3 for the whole file, shared equally (Bonferroni) by all its p-values. Seeds
are fixed, so an alarm repeats. The law is enumerated from plain forwards, never sampled.
"""

from functools import cache

import pytest

from specbench.records import Sampling
from specbench.round.drafter import Drafter
from tests.decoding.fakes import Flattened, Unlawful
from tests.decoding.lossless import (
    FIRST,
    LAST,
    NUM_SAMPLES,
    WARM,
    LawBench,
    deepest,
    law_p_value,
    make_drafter,
    sample_texts,
)
from tests.drafters.variants import VARIANTS

pytestmark = pytest.mark.slow  # 10,000 texts a case

CUT = Sampling(temperature=1.3, top_k=5, top_p=0.8)
CASES = [
    ("none", 0, WARM),
    ("none", 0, CUT),
    *((str(variant), k, WARM) for variant in VARIANTS for k in (1, 4)),
    *((str(variant), 4, CUT) for variant in VARIANTS),
    ("draft_model without its law", 4, WARM),
]
FALSE_ALARM = 1e-3 / (2 * len(CASES))


@cache
def bench(sampling: Sampling, num_layers: int = 1) -> LawBench:
    return LawBench(sampling, num_layers)


def drafter_for(name: str, bench: LawBench) -> Drafter:
    """The catalogue's drafter; or a draft model whose guesses the verifier must match."""
    if name == "draft_model without its law":
        return Unlawful(make_drafter("draft_model", bench.target, bench.draft))
    chosen = {str(variant): variant for variant in VARIANTS}.get(name)
    method, parameters = (chosen.method, chosen.parameters) if chosen else (name, {})
    return make_drafter(method, bench.target, bench.draft, **parameters)


@pytest.mark.parametrize(("name", "k", "sampling"), CASES)
def test_sampled_texts_have_the_law_of_the_target(name: str, k: int, sampling: Sampling) -> None:
    # A part of the target drafts only where the target has parts.
    subject = bench(sampling, num_layers=2 if name.startswith("self_speculation") else 1)
    first_seed = CASES.index((name, k, sampling)) * NUM_SAMPLES  # no two cases share a draw

    drafter = drafter_for(name, subject)
    texts_N6, accepted = sample_texts(
        subject.target,
        drafter,
        k=deepest(drafter, k),
        sampling=sampling,
        first_seed=first_seed,
    )

    p_values = law_p_value(texts_N6, subject.law, FIRST), law_p_value(texts_N6, subject.law, LAST)
    print(f"{name} K={k} T={sampling.temperature}: p = {p_values}, accepted {accepted:.2f}")
    assert min(p_values) > FALSE_ALARM
    assert k == 0 or 0.01 < accepted < 0.98, "the case must both keep and refuse drafts"


def test_a_draft_law_that_is_not_the_one_drawn_from_is_found_out() -> None:
    subject = bench(WARM)
    liar = Flattened(make_drafter("draft_model", subject.target, subject.draft))

    texts_N6, _ = sample_texts(subject.target, liar, k=4, sampling=WARM)

    assert law_p_value(texts_N6, subject.law, FIRST) < 1e-6
