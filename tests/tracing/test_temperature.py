"""Sampled drafts: replayed rounds are the expectation of the measured ones.

A text that was decoded with drafts has the target's distribution, so rounds are replayed over the
texts that they emitted: the difference is due to random acceptance. Its standard error comes from
the texts, which are independent. The bound of 4 standard errors gives one false alarm in 16,000;
seeds are fixed. Planted faults deviate by more than 5.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import NamedTuple

import numpy as np
import pytest

from specbench.forecast.forecast import replay_one
from specbench.records import Request, Sampling, TraceRecord
from specbench.stats.rounds import RoundCounts
from specbench.tracing import trace as trace_module
from specbench.tracing.trace import TargetText, TraceNames, trace, trace_conversation
from tests.decoding.lossless import SAMPLED_PROMPT, WARM, decode
from tests.drafters.variants import VARIANTS, Variant
from tests.tracing.answers import Options, conversations, counted, decode_with_drafts, open_demo
from tests.tracing.test_every_drafter import drafter_of, models

pytestmark = pytest.mark.slow  # thousands of rounds

K, MAX_NEW_TOKENS, NUM_TEXTS = 4, 90, 36
CUT_OFF = Sampling(temperature=1.5, top_k=5, top_p=0.8)
WARM_DEMO = Options(temperature=1.0, max_new_tokens=90)
DRAWN = ("draft_model", "eagle, chain", "dflash")
LIKE_THEM = ("self_speculation", "eagle3, chain", "mtp", "gemma4_mtp")  # grown by the same code


class ReplayError(NamedTuple):
    """Replayed minus measured rounds over all texts."""

    relative: float
    standard_error: float  # also relative

    @property
    def z(self) -> float:
        return self.relative / self.standard_error


def decoded(variant: Variant, sampling: Sampling) -> list[tuple[TargetText, RoundCounts]]:
    """Texts with the rounds that emitted them."""
    requests = [
        Request(prompt_ids=SAMPLED_PROMPT, max_new_tokens=MAX_NEW_TOKENS, seed=seed)
        for seed in range(NUM_TEXTS)
    ]
    results = decode(models()[0], drafter_of(variant), requests, k=K, sampling=sampling)
    blank = TargetText(
        workload="tiny",
        prompt_id="",
        turn=0,
        prompt_ids=SAMPLED_PROMPT,
        output_ids=(),
        max_new_tokens=MAX_NEW_TOKENS,
        sampling=sampling,
        seed=0,
    )
    return [
        (
            replace(blank, prompt_id=str(request.seed), output_ids=result.output_ids),
            counted([result.rounds], K),
        )
        for request, result in zip(requests, results, strict=True)
    ]


def compared(rounds: Sequence[tuple[TraceRecord, RoundCounts]]) -> ReplayError:
    """Pairs of a text's trace and its measured rounds."""
    measured_N = np.array([measured.num_rounds for _, measured in rounds])
    replayed_N = np.array([replay_one(trace, K).num_rounds for trace, _ in rounds])
    spread = np.std(replayed_N - measured_N, ddof=1) * sqrt(len(rounds))
    relative = (replayed_N.sum() - measured_N.sum()) / measured_N.sum()
    return ReplayError(float(relative), float(spread / measured_N.sum()))


def on_tiny_models(name: str, sampling: Sampling) -> ReplayError:
    variant = next(variant for variant in VARIANTS if variant.name == name)
    names, rounds = TraceNames("tiny", variant.name, variant.method), []
    for text, measured in decoded(variant, sampling):
        records = trace(names, models()[0], drafter_of(variant), [text], [K])
        rounds.append((records[0], measured))
    return compared(rounds)


def on_the_embedded_pair() -> ReplayError:
    """`draft` on six prompts of chat and six of creative."""
    engine, rounds = open_demo("draft"), []
    for workload in ("chat", "creative"):
        for texts in conversations(engine, workload, 6, WARM_DEMO):
            text = texts[0]
            ((output_ids, log),) = decode_with_drafts(engine, "draft", [text], K)
            emitted = replace(text, output_ids=output_ids)
            records = trace_conversation(engine, "draft", "draft_model", [emitted], [K])
            rounds.append((records[0], counted([log], K)))
    return compared(rounds)


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        *((name, WARM) for name in DRAWN),
        *(pytest.param(name, WARM, marks=pytest.mark.long) for name in LIKE_THEM),
        ("draft_model", CUT_OFF),
    ],
)
def test_replayed_rounds_equal_measured_ones_on_average(name: str, sampling: Sampling):
    estimate = on_tiny_models(name, sampling)

    assert estimate.standard_error < 0.02
    assert abs(estimate.z) < 4


@pytest.mark.long
def test_replayed_rounds_of_the_demo_pair_equal_measured_ones():
    estimate = on_the_embedded_pair()

    assert estimate.standard_error < 0.04
    assert abs(estimate.z) < 4


def test_a_planted_inverse_acceptance_ratio_is_detected(monkeypatch):
    """min(1, p/q) is the verifier's own chance, before its outcome is known."""
    monkeypatch.setattr(trace_module, "kept_given_text", lambda q, p: min(1.0, p / q) if q else 1.0)

    assert abs(on_tiny_models("draft_model", WARM).z) > 5


@pytest.mark.long
def test_a_planted_shift_of_trace_starts_is_detected(monkeypatch):
    """The distribution of a draft compared with the token after it."""
    honest = trace_module.ProposalMatches.add

    def shifted(matches, starts, proposal, length_B1, text_C, size):
        honest(matches, starts, proposal, length_B1, text_C.roll(-1), size - 1)

    monkeypatch.setattr(trace_module.ProposalMatches, "add", shifted)

    assert abs(on_the_embedded_pair().z) > 5
