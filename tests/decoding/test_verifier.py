"""The verdict on numbers worked by hand. Vocabulary of 4, drafts of up to 3."""

import pytest
import torch
from torch import Tensor

from specbench.decode.drafter import Proposal
from specbench.decode.sampling import Purpose, Sampler, uniform
from specbench.decode.verifier import Verdict, verify
from specbench.records import Sampling
from tests.decoding.lossless import one_draft_p_value

GREEDY = Sampler(Sampling())
WARM = Sampler(Sampling(temperature=1.0))
N = 40_000


def logits_for(tokens: list[int], vocab_size: int = 4) -> Tensor:
    """Logits [1, T, V] whose argmax are the given tokens."""
    return torch.nn.functional.one_hot(torch.tensor([tokens]), vocab_size).float()


def judged_greedily(
    drafts: list[int], *, target: list[int], num_drafted: int | None = None
) -> list[int]:
    """The tokens that one row emits."""
    meant = len(drafts) if num_drafted is None else num_drafted
    proposal = Proposal(torch.tensor([drafts], dtype=torch.long), torch.tensor([meant]))
    positions = torch.arange(len(target))[None]
    verdict = verify(proposal, logits_for(target), GREEDY, torch.zeros(1).long(), positions)
    return own_tokens(verdict)


def own_tokens(verdict: Verdict, row: int = 0) -> list[int]:
    tokens: list[int] = verdict.tokens_BT[row, : int(verdict.num_accepted_B[row]) + 1].tolist()
    return tokens


def test_right_drafts_are_kept_and_a_bonus_follows() -> None:
    assert judged_greedily([1, 2, 3], target=[1, 2, 3, 0]) == [1, 2, 3, 0]


def test_the_first_wrong_draft_is_replaced_by_the_targets_token() -> None:
    assert judged_greedily([1, 0, 3], target=[1, 2, 3, 0]) == [1, 2]


def test_a_right_draft_after_a_wrong_one_does_not_count() -> None:
    assert judged_greedily([0, 2, 3], target=[1, 2, 3, 0]) == [1]


def test_an_inactive_draft_is_not_accepted_even_if_right() -> None:
    assert judged_greedily([1, 2, 3], target=[1, 2, 3, 0], num_drafted=1) == [1, 2]


def test_a_round_without_drafts_emits_one_target_token() -> None:
    assert judged_greedily([], target=[3]) == [3]


def test_every_row_is_verified_separately() -> None:
    proposal = Proposal(torch.tensor([[1, 2], [1, 0], [0, 2]]), torch.tensor([2, 2, 2]))
    logits = logits_for([1, 2, 3]).expand(3, -1, -1)

    verdict = verify(proposal, logits, GREEDY, torch.zeros(3).long(), torch.arange(3).expand(3, -1))

    assert verdict.num_accepted_B.tolist() == [2, 1, 0]
    assert [own_tokens(verdict, row) for row in range(3)] == [[1, 2, 3], [1, 2], [1]]


def test_one_hot_distributions_accept_only_the_targets_tokens() -> None:
    # Rejection at temperature 0 is the same rule as matching: p is 1 or 0.
    drafts = torch.tensor([[1, 0]])
    q = torch.nn.functional.one_hot(drafts, 4).float()

    verdict = verify(
        Proposal(drafts, torch.tensor([2]), q),
        logits_for([1, 2, 3]),
        GREEDY,
        torch.zeros(1).long(),
        torch.arange(3)[None],
    )

    assert own_tokens(verdict) == [1, 2]


P = torch.tensor([0.5, 0.3, 0.2, 0.0])
Q = torch.tensor([0.1, 0.2, 0.3, 0.4])


def rejected_or_kept(draft: int, num_drafted: int = 1) -> tuple[Tensor, Tensor]:
    """N rows that all drafted the same token: how many were kept [N], the row's first token [N]."""
    proposal = Proposal(
        torch.full((N, 1), draft), torch.full((N,), num_drafted), Q.expand(N, 1, -1)
    )
    logits = P.log().expand(N, 2, -1)
    verdict = verify(proposal, logits, WARM, torch.arange(N), torch.tensor([[4, 5]]).expand(N, -1))
    return verdict.num_accepted_B, verdict.tokens_BT[:, 0]


def close(share: float, expected: float) -> bool:
    """Within 5 standard errors of N draws."""
    return bool(abs(share - expected) <= 5 * (expected * (1 - expected) / N) ** 0.5)


@pytest.mark.parametrize(("draft", "chance"), [(0, 1), (1, 1), (2, 2 / 3), (3, 0)])
def test_a_draft_is_accepted_with_probability_p_over_q(draft: int, chance: float) -> None:
    accepted_N, _ = rejected_or_kept(draft)

    assert close(float(accepted_N.float().mean()), chance)


def test_a_draft_of_target_probability_0_is_always_rejected() -> None:
    q = torch.tensor([1.0, 0.0, 0.0, 0.0])
    proposal = Proposal(torch.full((N, 1), 3), torch.ones(N).long(), q.expand(N, 1, -1))

    verdict = verify(
        proposal, P.log().expand(N, 2, -1), WARM, torch.arange(N), torch.tensor([[4, 5]] * N)
    )

    assert verdict.num_accepted_B.sum() == 0


def test_a_refused_draft_is_replaced_from_the_residual() -> None:
    # max(p - q, 0) = (0.4, 0.1, 0, 0), that is 0.8 and 0.2.
    accepted_N, tokens_N = rejected_or_kept(3)

    assert accepted_N.sum() == 0
    assert close(float((tokens_N == 0).float().mean()), 0.8)
    assert close(float((tokens_N == 1).float().mean()), 0.2)


def test_a_rejected_later_draft_is_replaced_from_its_residual() -> None:
    certain = torch.tensor([0.0, 1.0, 0.0, 0.0])
    drafts = torch.tensor([1, 3]).expand(N, -1)
    proposal = Proposal(drafts, torch.full((N,), 2), torch.stack([certain, Q]).expand(N, -1, -1))
    logits = torch.stack([certain, P, P]).log().expand(N, -1, -1)

    verdict = verify(proposal, logits, WARM, torch.arange(N), torch.arange(4, 7).expand(N, -1))

    assert verdict.num_accepted_B.unique().tolist() == [1]
    shares = torch.bincount(verdict.tokens_BT[:, 1], minlength=4) / N
    assert close(float(shares[0]), 0.8)
    assert close(float(shares[1]), 0.2)


def test_a_round_without_drafts_samples_from_the_target_distribution() -> None:
    accepted_N, tokens_N = rejected_or_kept(0, num_drafted=0)

    assert accepted_N.sum() == 0
    shares = torch.bincount(tokens_N, minlength=4) / N
    assert all(close(float(s), float(p)) for s, p in zip(shares, P, strict=True))


def test_after_an_accepted_draft_the_bonus_has_the_targets_own_distribution() -> None:
    proposal = Proposal(torch.zeros(N, 1).long(), torch.ones(N).long(), Q.expand(N, 1, -1))
    logits = torch.stack([torch.tensor([0.0, -99, -99, -99]), P.log()]).expand(N, -1, -1)

    verdict = verify(proposal, logits, WARM, torch.arange(N), torch.tensor([[4, 5]]).expand(N, -1))

    assert verdict.num_accepted_B.min() == 1
    shares = torch.bincount(verdict.tokens_BT[:, 1], minlength=4) / N
    assert all(close(float(s), float(p)) for s, p in zip(shares, P, strict=True))


def test_the_token_after_one_draft_has_the_targets_distribution() -> None:
    # Sharper than the joint distribution of texts: 100,000 rows. False alarm 1e-3, fixed seeds.
    assert one_draft_p_value() > 1e-3


def test_a_draft_is_never_rejected_if_p_equals_q() -> None:
    proposal = Proposal(torch.zeros(N, 1).long(), torch.ones(N).long(), P.expand(N, 1, -1))

    verdict = verify(
        proposal,
        P.log().expand(N, 2, -1),
        WARM,
        torch.arange(N),
        torch.tensor([[4, 5]]).expand(N, -1),
    )

    # p == q up to the rounding of a softmax of logarithms.
    assert int((verdict.num_accepted_B == 0).sum()) <= 1


def test_a_rejection_without_a_residual_samples_from_the_target() -> None:
    # q exceeds p everywhere by rounding only; an empty residual would always give token 0.
    p = torch.tensor([0.0, 0.5, 0.5, 0.0])
    q = p * (1 + 1e-3)
    chance_N = uniform(torch.arange(N), torch.full((N, 1), 4), Purpose.ACCEPT)[:, 0]
    proposal = Proposal(torch.ones(N, 1).long(), torch.ones(N).long(), q.expand(N, 1, -1))

    verdict = verify(
        proposal,
        p.log().expand(N, 2, -1),
        WARM,
        torch.arange(N),
        torch.tensor([[4, 5]]).expand(N, -1),
    )

    refused_N = chance_N * q[1] > p[1]
    assert int(refused_N.sum()) > 10
    assert torch.equal(verdict.num_accepted_B == 0, refused_N)
    assert set(verdict.tokens_BT[refused_N, 0].tolist()) == {1, 2}
