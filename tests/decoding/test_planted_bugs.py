"""The lossless checks are worth something: each fails for a decoder that is broken on purpose.

How a bug is planted: conftest.py. Those of trees are in test_planted_tree_bugs.py.
"""

from functools import partial

import pytest
import torch
from torch import Tensor

from specbench.decode import round as one_round
from specbench.decode import sampling, verifier
from specbench.decode.sampling import Purpose, exponential
from specbench.drafters.draft_model import ModelDrafter
from specbench.forward.attention import masks, stock
from tests.decoding import planted_checks as checks
from tests.decoding.conftest import Plant
from tests.decoding.fakes import Perturbed
from tests.decoding.lossless import (
    NUM_SAMPLES,
    acceptance_rate,
    decode,
    make_drafter,
    one_draft_p_value,
)

pytestmark = pytest.mark.slow

# Drafts of which the second of each round is wrong and those after it are right.
greedy = partial(checks.greedy_check, Perturbed)
p_of_sampled = partial(
    checks.sampled_p, k=4, num_samples=NUM_SAMPLES // 2
)  # drafts come with their probabilities


def test_the_unmodified_decoder_passes_every_check() -> None:
    greedy()
    for place in range(5):
        greedy(eos_ids=(checks.gemma()[2][0][place],))
    assert p_of_sampled() > 1e-3
    assert one_draft_p_value() > 1e-3


GREEDY_BUGS = {
    "accept all": (
        verifier._leading,
        "accepted_BK.cumprod(1).sum(1)",
        "torch.ones_like(accepted_BK).long().sum(1)",
    ),
    "sum for cumprod": (verifier._leading, ".cumprod(1).sum(1)", ".sum(1)"),
    "rollback off by one": (
        one_round.commit,
        "state.length_B1.add_(num_emitted_B1)",
        "state.length_B1.add_(num_emitted_B1 + (num_emitted_B1 < T))",
    ),
    "commit one short": (
        one_round.commit,
        "state.length_B1.add_(num_emitted_B1)",
        "state.length_B1.add_(num_emitted_B1 - (num_emitted_B1 > 1).long())",
    ),
    "mask off by one, seeing the next slot": (
        masks.visible,
        "slots_S <= places_BT1",
        "slots_S <= places_BT1 + 1",
    ),
    "mask off by one, not seeing itself": (
        masks.visible,
        "slots_S <= places_BT1",
        "slots_S < places_BT1",
    ),
    "window off by one": (
        masks.visible,
        "places_BT1 - window + 1",
        "places_BT1 - window",
    ),
    "heads of a group in the wrong order": (
        stock.slot_attention,
        "packed = query.reshape(B, N, G * T, D)",
        "packed = query.reshape(B, G, N, T, D).transpose(1, 2).reshape(B, N, G * T, D)",
    ),
    "verdict off by one position": (
        one_round.finish_round,
        "verdict = verifier(proposal, out.logits,",
        "verdict = verifier(proposal, out.logits.roll(1, 1),",
    ),
}


@pytest.mark.parametrize("bug", GREEDY_BUGS)
def test_the_greedy_check_detects(bug: str, plant: Plant) -> None:
    plant(*GREEDY_BUGS[bug])

    with pytest.raises(AssertionError, match="differs at"):
        greedy()


def test_the_greedy_check_fails_when_an_end_of_text_among_accepted_drafts_is_ignored(
    plant: Plant,
) -> None:
    # Perturbed drafts are accepted one a round: the token after the first is an accepted draft.
    plant(
        one_round.commit,
        "torch.where(is_eos_BT, state.places(T), T)",
        "torch.where(\n"
        "is_eos_BT & (state.places(T) == num_accepted_B[:, None]), state.places(T), T)",
    )

    with pytest.raises(AssertionError, match="differs at"):
        greedy(eos_ids=(checks.gemma()[2][0][1],))


def test_a_hole_in_the_draft_models_cache_costs_acceptance(plant: Plant) -> None:
    target, draft, _ = checks.gemma()

    def accepted() -> float:
        drafter = make_drafter("draft_model", target, draft)
        return acceptance_rate(decode(target, drafter, checks.REQUESTS, k=4))

    assert accepted() == 1
    known = "state.positions(1 - self._num_fed, self._num_fed)"
    plant(ModelDrafter.propose, known, "state.positions(0, 1)")
    assert accepted() < 1


def _shared_noise(seed_B: Tensor, positions_BK: Tensor, drafts_BK: Tensor) -> Tensor:
    """A uniform number made from the very noise with which the draft was drawn."""
    noise = exponential(seed_B, positions_BK, Purpose.DRAFT, 7)
    return 1 - torch.exp(-noise.gather(-1, drafts_BK[..., None])[..., 0])


DISTRIBUTION_BUGS = {
    "no residual": (
        verifier._refused,
        "residual_V = (p_V - q_V).clamp_(min=0)",
        "residual_V = p_V.clone()",
    ),
    "p and q swapped": (verifier._reject, "chance_BK * q_BK <= p_BK", "chance_BK * p_BK <= q_BK"),
    "q ignored": (verifier._reject, "chance_BK * q_BK <= p_BK", "chance_BK <= p_BK"),
    "accept all": (
        verifier._leading,
        "accepted_BK.cumprod(1).sum(1)",
        "torch.ones_like(accepted_BK).long().sum(1)",
    ),
    "sum for cumprod": (verifier._leading, ".cumprod(1).sum(1)", ".sum(1)"),
    "the bonus drawn from the residual of nothing drafted": (
        verifier._reject,
        "proposal.num_drafted_B)[:, None]",
        "proposal.num_drafted_B)[:, None] | True",
    ),
    "acceptance decided by the draft's noise": (
        verifier._reject,
        "uniform(seed_B, positions_BT[:, :-1], Purpose.ACCEPT)",
        "shared_noise(seed_B, positions_BT[:, :-1], drafts_BK)",
    ),
    "the first round repeats the prefill's noise": (
        one_round.finish_round,
        "state.seed_B, next_BN)",
        "state.seed_B, positions_BN)",
    ),
    "noise that forgets the position": (
        sampling._key,
        "(positions_BT & _MASK32)",
        "(positions_BT // 2 & _MASK32)",
    ),
}


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("bug", DISTRIBUTION_BUGS)
def test_the_distribution_check_fails_for(
    bug: str, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifier, "shared_noise", _shared_noise, raising=False)
    plant(*DISTRIBUTION_BUGS[bug])

    p_value = p_of_sampled()

    print(f"{bug}: p = {p_value:.1e}")
    assert p_value < 1e-6


def test_the_one_draft_check_detects_shared_noise(
    plant: Plant,
) -> None:
    # The replacement excludes the draft itself, so the bias is small: too small for texts.
    plant(verifier._reject, "next_position_B1, Purpose.TARGET)", "next_position_B1, Purpose.DRAFT)")

    p_value = one_draft_p_value()

    print(f"draft and replacement share their noise: p = {p_value:.1e}")
    assert p_value < 1e-6
