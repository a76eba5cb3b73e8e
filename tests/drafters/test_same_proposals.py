"""Drafts after a text equal those after a prefill of it, whatever rounds led there.

Seven tokens and random models: drafts are accepted and refused often, on every branch.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from specbench.decode.drafter import Drafter, Proposal
from specbench.decode.round import run_round
from specbench.decode.rows import Rows
from specbench.decode.sampling import Sampler
from specbench.decode.state import State
from specbench.drafters.registry import build_drafter, drafter_class
from specbench.forward.fused_runner import FusedRunner
from specbench.records import Request, Result
from tests.decoding.fakes import Wrapped
from tests.decoding.graph_bench import Cycle
from tests.decoding.lossless import (
    GREEDY,
    SAMPLED_PROMPT,
    WARM,
    deepest,
    filled_rows,
    make_drafter,
    parts_of,
    sampled_model,
    serve,
)
from tests.drafters.feature_cases import Path, paths_of
from tests.drafters.variants import VARIANTS, Variant
from tests.export.deployments import deployment

pytestmark = pytest.mark.slow  # every drafter, round after round

SPAN, SEED = 128, 7
KS = (6, 2, 4, 0, 0, 0, 1, 5, 1, 1, 3, 0)
TWO_LAYERS = Variant("mtp, 2 layers", "mtp", {"num_layers": 2})
# These remember what their own rounds fed, or an answer that a longer prompt does not restart.
WITH_A_PAST = {"lookahead", "token_recycling", "previous_turn"}
FRESH = [variant for variant in (*VARIANTS, TWO_LAYERS) if variant.method not in WITH_A_PAST]
# Suffix decoding also drafts from the answer of the turn before.
TURNS = [variant for variant in FRESH if variant.method != "suffix"]


@cache
def models() -> tuple[FusedRunner, FusedRunner]:
    return FusedRunner(sampled_model(seed=0, num_layers=2)), FusedRunner(sampled_model(seed=1))


def drafter_of(variant: Variant) -> Drafter:
    target, draft = models()
    if variant is not TWO_LAYERS:
        return make_drafter(variant.method, target, draft, **variant.parameters)
    head = drafter_class("mtp").new_checkpoint(target.model.config, 0, **variant.parameters)
    return build_drafter("mtp", parts_of(target, None, head), {})


class RowProposal(NamedTuple):
    """One row's proposal after a text, which ends with the current token."""

    text: Path
    k: int
    paths: list[Path]
    probs: Tensor | None


def drafted(state: State, k: int, proposal: Proposal) -> RowProposal:
    paths = paths_of(proposal, 0)
    if proposal.tree is None:
        paths = paths[: int(proposal.num_drafted_B[0])]
    text = tuple(state.tokens_BC[0, : int(state.length_B[0]) + 1].tolist())
    probs = None if proposal.probs is None else proposal.probs[0]
    return RowProposal(text, k, paths, probs)


class FixedTokenSampler(Sampler):
    """Picks one token, whatever the model's logits: another round's may follow a refusal."""

    def __init__(self, token: int) -> None:
        super().__init__(WARM)
        self._token = token

    def pick(self, *_: Tensor) -> Tensor:
        return torch.tensor([[self._token]])


class RowRecorder(Wrapped):
    """Stores the proposals of a single row."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        self.seen: list[RowProposal] = []

    def propose(self, state: State, k: int, span: int, sampler: Sampler) -> Proposal:
        proposal = self.inner.propose(state, k, span, sampler)
        self.seen.append(drafted(state, k, proposal))
        return proposal


def served(variant: Variant, *prompts: Path) -> tuple[list[RowProposal], list[Result]]:
    """The proposals of a conversation's turns, of 40 tokens each."""
    watched = RowRecorder(drafter_of(variant))
    ks = [deepest(watched, k) if k else 0 for k in KS]
    turns = [
        Request(
            prompt_ids=prompt,
            max_new_tokens=40,
            seed=SEED,
            conversation="c",
        )
        for prompt in prompts
    ]
    results = serve(models()[0], watched, turns, Cycle(*ks), 1, WARM).results
    return watched.seen, results


def filled(drafter: Drafter, prompts: Sequence[Path], sampler: Sampler, **more: Any) -> Rows:
    requests = [Request(prompt_ids=p, max_new_tokens=SPAN, seed=SEED, **more) for p in prompts]
    return filled_rows(models()[0], drafter, requests, sampler, capacity=SPAN)


@torch.inference_mode()
def assert_those_of_a_fresh_prefill(variant: Variant, seen: Sequence[RowProposal]) -> None:
    drafter = drafter_of(variant)
    for old in seen:
        if variant.method == "suffix":  # it remembers other texts' answers
            drafter = drafter_of(variant)
        state = filled(drafter, [old.text[:-1]], FixedTokenSampler(old.text[-1])).state
        new = drafted(state, old.k, drafter.propose(state, old.k, SPAN, Sampler(WARM)))

        where = f"K = {old.k} after {len(old.text)} tokens"
        assert new.text == old.text, where
        assert new.paths == old.paths, where
        if old.probs is not None:
            torch.testing.assert_close(old.probs, new.probs, atol=1e-4, rtol=1e-3, msg=where)


@pytest.mark.sampled(one_in=3, every=["variant.method"])
@pytest.mark.parametrize("variant", FRESH, ids=str)
def test_proposals_after_rounds_of_any_k_are_those_of_a_fresh_prefill(variant: Variant) -> None:
    seen, results = served(variant, SAMPLED_PROMPT)

    assert len(seen) >= 7
    assert variant.method == "suffix" or len(set(results[0].rounds.num_accepted)) > 1
    assert_those_of_a_fresh_prefill(variant, seen)


@pytest.mark.sampled(one_in=3, every=["variant.method"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_drafts_have_probabilities_if_the_method_samples_them(variant: Variant) -> None:
    seen, _ = served(variant, SAMPLED_PROMPT)
    draws = {drafted.probs is not None for drafted in seen if drafted.k}
    assert draws == {deployment(variant.method, **variant.parameters).draws_drafts}


@pytest.mark.sampled(one_in=7)
@pytest.mark.parametrize("variant", TURNS, ids=str)
def test_proposals_of_a_next_turn_are_those_of_a_fresh_prefill(variant: Variant) -> None:
    _, (first,) = served(variant, SAMPLED_PROMPT)
    for num_left_out in (0, 2, 25):
        end = len(first.output_ids) - num_left_out
        # It continues differently from the answer.
        other = (first.output_ids[end] + 1) % 7 if num_left_out else 3
        then = (*SAMPLED_PROMPT, *first.output_ids[:end], other, 5, 2, 4)

        seen, _ = served(variant, SAMPLED_PROMPT, then)

        of_turn = [drafted for drafted in seen if drafted.text[: len(then)] == then]
        assert len(of_turn) >= 7
        assert_those_of_a_fresh_prefill(variant, of_turn)


@torch.inference_mode()
def rounds(
    variant: Variant, prompts: Sequence[Path], row: int, *, moves_to: int | None = None
) -> tuple[list[RowProposal], Path]:
    """Greedy rounds of one row, which may move after the second: its drafts and its text."""
    watched, sampler = RowRecorder(drafter_of(variant)), Sampler(GREEDY)
    rows = filled(watched, prompts, sampler, prediction_ids=(0, 2, 1, 5, 0, 2) * 2)
    state = rows.state.rows(row, 1)
    for number, k in enumerate((4, 4, 2, 4, 3, 4)):
        if moves_to is not None and number == 2:
            rows.move_row(row, moves_to, int(state.length_B[0]) + 1)
            state = rows.state.rows(moves_to, 1)
        run_round(models()[0], watched, state, sampler, k=deepest(watched, k), span=SPAN)
    text = tuple(state.tokens_BC[0, : int(state.length_B[0]) + 1].tolist())
    return watched.seen, text


@pytest.mark.sampled(one_in=3, every=["variant.method"])
@pytest.mark.parametrize("variant", [*VARIANTS, TWO_LAYERS], ids=str)
def test_a_row_is_drafted_for_as_another_row_of_the_batch_even_if_it_moves(
    variant: Variant,
) -> None:
    prompt, other = SAMPLED_PROMPT, tuple(reversed(SAMPLED_PROMPT[:-2]))

    first = rounds(variant, [prompt, other, other], 0)

    assert rounds(variant, [other, other, prompt], 2) == first
    assert rounds(variant, [other, other, prompt], 2, moves_to=0) == first
