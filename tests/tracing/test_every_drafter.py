"""Every drafter is traced exactly, approximately, or refused, including new ones.

Seven tokens and random models: drafts are often accepted and often rejected.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from specbench.decode.drafter import Drafter, Proposal
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.errors import UsageError
from specbench.forecast.forecast import replay_one, serves
from specbench.forward.fused_runner import FusedRunner
from specbench.records import Request, Sampling, TraceRecord
from specbench.records.forecasts import Drafting
from specbench.stats.rounds import RoundCounts
from specbench.tracing import trace as trace_module
from specbench.tracing.trace import TargetText, TraceNames, trace
from tests.decoding.lossless import (
    GREEDY,
    SAMPLED_PROMPT,
    WARM,
    decode,
    make_drafter,
    sampled_model,
)
from tests.drafters.variants import VARIANTS, Variant
from tests.tracing.answers import counted

pytestmark = pytest.mark.slow  # every drafter, round after round

KS = range(1, 9)
MAX_NEW_TOKENS = 20
PROMPTS = ((*SAMPLED_PROMPT, 3, 3), SAMPLED_PROMPT[:4])
REFUSED = {"lookahead", "lookahead, window 3 ngram 3 guesses 2", "previous_turn, predicted output"}
APPROXIMATE = {"previous_turn", "token_recycling", "token_recycling, 12 drafts"}
DRAWN_TREES = {"draft_model, tree 3 2", "eagle, static", "eagle3, static"}
DRAWN_TREES |= {"self_speculation, tree 3 2"}
TRACED = [variant for variant in VARIANTS if variant.name not in REFUSED]
EXACT = [variant for variant in TRACED if variant.name not in APPROXIMATE]


@cache
def models() -> tuple[FusedRunner, FusedRunner]:
    return FusedRunner(sampled_model(seed=0, num_layers=2)), FusedRunner(sampled_model(seed=1))


def drafter_of(variant: Variant):
    return make_drafter(variant.method, *models(), **variant.parameters)


@cache
def texts(sampling: Sampling = GREEDY) -> tuple[TargetText, ...]:
    """The target's own texts, each with a seed."""
    results = []
    for seed, prompt in enumerate(PROMPTS):
        request = Request(prompt_ids=prompt, max_new_tokens=MAX_NEW_TOKENS, seed=seed)
        plain = make_drafter("none", *models())
        (result,) = decode(models()[0], plain, [request], k=0, sampling=sampling)
        results.append(
            TargetText(
                workload="tiny",
                prompt_id=f"p{seed}",
                turn=0,
                prompt_ids=prompt,
                output_ids=result.output_ids,
                max_new_tokens=MAX_NEW_TOKENS,
                sampling=sampling,
                seed=seed,
                prediction_ids=(*result.output_ids[:12], 0, *result.output_ids[15:]),
            )
        )
    return tuple(results)


def traced(
    variant: Variant, text: TargetText, drafting: Drafting = "own"
) -> tuple[TraceRecord, ...]:
    names = TraceNames("tiny", variant.name, variant.method)
    return trace(names, models()[0], drafter_of(variant), [text], KS, drafting=drafting)


def measured(variant: Variant, text: TargetText, k: int, drafter: Any = None) -> RoundCounts:
    request = Request(
        prompt_ids=text.prompt_ids,
        max_new_tokens=text.max_new_tokens,
        seed=text.seed,
        prediction_ids=text.prediction_ids,
    )
    drafter = drafter or drafter_of(variant)
    (result,) = decode(models()[0], drafter, [request], k=k, sampling=text.sampling)
    assert result.output_ids == text.output_ids
    return counted([result.rounds], k)


def replayed(records: tuple[TraceRecord, ...], k: int) -> RoundCounts:
    (serving,) = [record for record in records if serves(record, k)]
    return replay_one(serving, k)


@pytest.mark.sampled(one_in=3, every=["variant.method"])
@pytest.mark.parametrize("variant", EXACT, ids=str)
def test_at_temperature_0_replayed_rounds_are_the_measured_ones(variant: Variant):
    most = drafter_of(variant).capabilities.max_k or max(KS)
    for text in texts():
        records = traced(variant, text)
        for k in KS[:most:3]:
            assert replayed(records, k) == measured(variant, text, k), f"K = {k}"


@pytest.mark.parametrize("name", ["ngram", "suffix", "medusa", "medusa, chain"])
def test_drafts_without_a_distribution_are_replayed_exactly_at_any_temperature(name: str):
    variant = next(variant for variant in VARIANTS if variant.name == name)
    for text in texts(WARM):
        records = traced(variant, text)
        for k in KS[: drafter_of(variant).capabilities.max_k or max(KS) : 3]:
            assert replayed(records, k) == measured(variant, text, k), f"K = {k}"


class LikeliestDrafts:
    """A drafter that drafts its likeliest tokens at any temperature, as vLLM's do."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:  # noqa: ARG002
        return self._inner.propose(state, k, span, Sampler(GREEDY))


@pytest.mark.parametrize(
    "name", ["draft_model", "draft_model, tree 3 2", "eagle, static", "dflash"]
)
def test_greedy_drafting_is_replayed_exactly_at_any_temperature(name: str):
    variant = next(variant for variant in VARIANTS if variant.name == name)
    for text in texts(WARM):
        records = traced(variant, text, drafting="greedy")
        for k in KS[: drafter_of(variant).capabilities.max_k or max(KS) : 3]:
            likeliest = LikeliestDrafts(drafter_of(variant))
            assert replayed(records, k) == measured(variant, text, k, likeliest), f"K = {k}"


@pytest.mark.sampled(one_in=5)
@pytest.mark.parametrize("variant", EXACT, ids=str)
def test_several_rows_give_the_traces_of_one_row(variant: Variant, monkeypatch):
    together = traced(variant, texts()[0])
    for most in (1, 3):
        monkeypatch.setattr(trace_module, "MOST_ROWS", most)
        monkeypatch.setattr(trace_module, "_CHUNK", 7)
        alone = traced(variant, texts()[0])
        assert [r.chances for r in alone] == [r.chances for r in together]
        assert [r.num_drafted for r in alone] == [r.num_drafted for r in together]


@pytest.mark.sampled(one_in=5)
@pytest.mark.parametrize("variant", TRACED, ids=str)
def test_a_round_does_not_see_the_text_after_its_drafts(variant: Variant):
    """Another ending changes nothing before it."""
    text, cut = texts()[0], 12
    changed = tuple((token + 1) % 7 for token in text.output_ids[cut:])
    other = replace(text, output_ids=(*text.output_ids[:cut], *changed))

    for first, second in zip(traced(variant, text), traced(variant, other), strict=True):
        for start in range(cut - 1):
            depth = cut - 1 - start
            assert first.chances[start][:depth] == second.chances[start][:depth]
            assert first.num_drafted[start] == second.num_drafted[start]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_method_that_depends_on_its_own_rounds_is_refused_by_name(name: str):
    variant = next(variant for variant in VARIANTS if variant.name == name)

    with pytest.raises(UsageError, match=f"{name}: {variant.method} cannot be forecast"):
        traced(variant, texts()[0])


@pytest.mark.parametrize("name", sorted(DRAWN_TREES))
def test_trees_drawn_from_a_distribution_are_refused_above_temperature_0(name: str):
    variant = next(variant for variant in VARIANTS if variant.name == name)

    with pytest.raises(UsageError, match=f"{name}"):
        traced(variant, texts(WARM)[0])


@pytest.mark.parametrize("name", sorted(APPROXIMATE))
def test_traces_that_depend_on_round_starts_are_marked_inexact(name: str):
    variant = next(variant for variant in VARIANTS if variant.name == name)

    assert not any(record.is_exact for record in traced(variant, texts()[0]))
