"""Sampled text has exactly the target's distribution: chi-square on three tokens together.

Once for each rule of verification, and for every drafter whose drafts have probabilities. If they
have none, the target samples every token itself, so each text equals the one without drafts. That
proves more than a test of its distribution.

False alarm: 1e-3 for the whole file, shared equally (Bonferroni) by all its p-values. Seeds
are fixed, so an alarm repeats. The distribution is enumerated from plain forwards, never sampled.
"""

from functools import cache

import pytest
from torch import Tensor

from specbench.decode.drafter import Drafter
from specbench.forward.fused_runner import FusedRunner
from specbench.records import Sampling
from tests.decoding.fakes import Flattened, WithoutProbs
from tests.decoding.lossless import (
    FIRST,
    LAST,
    NUM_SAMPLES,
    WARM,
    SamplingBench,
    deepest,
    make_drafter,
    sample_texts,
    sampled_model,
    sampled_p_value,
)
from tests.drafters.variants import STOPPING, VARIANTS, Variant

CUT = Sampling(temperature=1.3, top_k=5, top_p=0.8)
# A drafter that is missing here fails the test of texts that are equal.
WITH_PROBABILITIES = (
    "draft_model",
    "dflash",
    "eagle, chain",
    "eagle, static",
    "eagle3, chain",
    "eagle3, static",
    "mtp",
    "dflash2",
    "dspark",
    "gemma4_mtp",
    "self_speculation",
    "draft_model, tree 3 2",
    "self_speculation, tree 3 2",
    "token_intersection",
)
CHAIN, TREE = "draft_model", "draft_model, tree 3 2"
PEAGLE = "peagle"
CASES = [
    ("none", 0, WARM),
    ("none", 0, CUT),
    *((name, 4, CUT) for name in WITH_PROBABILITIES),
    *((name, k, WARM) for name in (CHAIN, TREE) for k in (1, 4)),
    ("draft_model without its distribution", 4, WARM),
    ("eagle", 4, WARM),  # a tree without probabilities
    (PEAGLE, 4, CUT),
    *((str(variant), 4, WARM) for variant in STOPPING),
]
FALSE_ALARM = 1e-3 / (2 * len(CASES))
NUM_EQUAL = 256  # texts that are compared one by one


@cache
def bench(sampling: Sampling, num_layers: int = 1) -> SamplingBench:
    return SamplingBench(sampling, num_layers)


def drafter_for(name: str, bench: SamplingBench) -> Drafter:
    """The drafter of pairings.yaml; or a draft model whose guesses the verifier must match."""
    if name == "draft_model without its distribution":
        return WithoutProbs(make_drafter("draft_model", bench.target, bench.draft))
    chosen = {str(variant): variant for variant in (*VARIANTS, *STOPPING)}.get(name)
    method, parameters = (chosen.method, chosen.parameters) if chosen else (name, {})
    return make_drafter(method, bench.target, bench.draft, **parameters)


# One for each rule of verification; the others draft with code that one of these runs.
# With half the texts, the first and the third miss a temperature that is wrong by 15%.
IN_EVERY_RUN = {
    ("none", 0, CUT): NUM_SAMPLES,
    ("draft_model without its distribution", 4, WARM): NUM_SAMPLES // 2,
    (CHAIN, 4, CUT): NUM_SAMPLES,  # warm ones: test_planted_bugs.py
    (TREE, 4, CUT): NUM_SAMPLES // 2,
    (str(STOPPING[0]), 4, WARM): NUM_SAMPLES // 2,
}


@pytest.mark.slow  # thousands of texts per case
@pytest.mark.parametrize(
    ("name", "k", "sampling", "num_samples"),
    [
        *((*case, num_samples) for case, num_samples in IN_EVERY_RUN.items()),
        *(
            pytest.param(*case, NUM_SAMPLES, marks=pytest.mark.long)
            for case in CASES
            if IN_EVERY_RUN.get(case) != NUM_SAMPLES
        ),
    ],
)
def test_sampled_texts_are_distributed_as_the_targets(
    name: str, k: int, sampling: Sampling, num_samples: int
) -> None:
    # A part of the target drafts only if the target has parts.
    subject = bench(sampling, num_layers=2 if name.startswith("self_speculation") else 1)
    first_seed = CASES.index((name, k, sampling)) * NUM_SAMPLES  # no two cases share a draw

    drafter = drafter_for(name, subject)
    texts_N6, accepted = sample_texts(
        subject.target,
        drafter,
        k=deepest(drafter, k),
        sampling=sampling,
        first_seed=first_seed,
        num_samples=num_samples,
    )

    p_values = [sampled_p_value(texts_N6, subject.probs, triple) for triple in (FIRST, LAST)]
    print(f"{name} K={k} T={sampling.temperature}: p = {p_values}, accepted {accepted:.2f}")
    assert min(p_values) > FALSE_ALARM
    assert k == 0 or 0.01 < accepted < 0.98, "the case must both keep and refuse drafts"


@cache
def exact_models() -> tuple[FusedRunner, FusedRunner]:
    """A target of two layers and a draft model, in float64: see `exact_llama`."""
    return FusedRunner(sampled_model(0, 2).double()), FusedRunner(sampled_model(1).double())


@cache
def texts_without_drafts(sampling: Sampling) -> Tensor:
    target, _ = exact_models()
    drafter = make_drafter("none", target)
    return sample_texts(target, drafter, k=0, sampling=sampling, num_samples=NUM_EQUAL)[0]


@pytest.mark.sampled(one_in=3, every=["variant.method"])
@pytest.mark.slow
@pytest.mark.parametrize(
    "variant", [v for v in VARIANTS if str(v) not in (*WITH_PROBABILITIES, PEAGLE)], ids=str
)
def test_drafts_without_probabilities_leave_every_text_unchanged(variant: Variant) -> None:
    target, draft = exact_models()
    for k, sampling in ((1, WARM), (4, WARM), (4, CUT)):
        drafter = make_drafter(variant.method, target, draft, **variant.parameters)
        texts_N6, accepted = sample_texts(
            target, drafter, k=deepest(drafter, k), sampling=sampling, num_samples=NUM_EQUAL
        )
        print(f"{variant} K={k} T={sampling.temperature}: accepted {accepted:.3f}")
        assert texts_N6.equal(texts_without_drafts(sampling))
        assert 0.01 < accepted < 0.98, "the case must both keep and refuse drafts"


@pytest.mark.slow
def test_a_false_draft_distribution_is_detected() -> None:
    subject = bench(WARM)
    liar = Flattened(make_drafter("draft_model", subject.target, subject.draft))

    texts_N6, _ = sample_texts(
        subject.target, liar, k=4, sampling=WARM, num_samples=NUM_SAMPLES // 2
    )

    assert sampled_p_value(texts_N6, subject.probs, FIRST) < 1e-6
