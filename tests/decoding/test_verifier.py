"""The verdict on numbers worked by hand. Vocabulary of 4, drafts of up to 3."""

from typing import Any

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


def emitted_tokens(verdict: Verdict, row: int = 0) -> list[int]:
    tokens: list[int] = verdict.tokens_BT[row, : int(verdict.num_accepted_B[row]) + 1].tolist()
    return tokens


@pytest.mark.parametrize(
    ("drafts", "num_drafted", "tokens"),
    [
        pytest.param([1, 2, 3], 3, [1, 2, 3, 0], id="right drafts and a bonus"),
        pytest.param([1, 0, 3], 3, [1, 2], id="the target's token for the first wrong draft"),
        pytest.param([0, 2, 3], 3, [1], id="no right draft after a wrong one"),
        pytest.param([1, 2, 3], 1, [1, 2], id="an inactive draft"),
        pytest.param([], 0, [1], id="one token without drafts"),
    ],
)
def test_a_row_emits_the_accepted_drafts_and_one_target_token(
    drafts: list[int], num_drafted: int, tokens: list[int]
) -> None:
    proposal = Proposal(torch.tensor([drafts], dtype=torch.long), torch.tensor([num_drafted]))
    target = [1, 2, 3, 0][: len(drafts) + 1]
    positions = torch.arange(len(target))[None]

    verdict = verify(proposal, logits_for(target), GREEDY, torch.zeros(1).long(), positions)

    assert emitted_tokens(verdict) == tokens


def test_every_row_is_verified_separately() -> None:
    proposal = Proposal(torch.tensor([[1, 2], [1, 0], [0, 2]]), torch.tensor([2, 2, 2]))
    logits = logits_for([1, 2, 3]).expand(3, -1, -1)

    verdict = verify(proposal, logits, GREEDY, torch.zeros(3).long(), torch.arange(3).expand(3, -1))

    assert verdict.num_accepted_B.tolist() == [2, 1, 0]
    assert [emitted_tokens(verdict, row) for row in range(3)] == [[1, 2, 3], [1, 2], [1]]


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

    assert emitted_tokens(verdict) == [1, 2]


P = torch.tensor([0.5, 0.3, 0.2, 0.0])
Q = torch.tensor([0.1, 0.2, 0.3, 0.4])


def verify_rows(
    drafts: list[int], q: Tensor = Q, p: Tensor = P, num_drafted: int | None = None
) -> Verdict:
    """N rows with the same drafts, with q for each draft or for all of them, and the same for p."""
    k = len(drafts)
    meant_N = torch.full((N,), k if num_drafted is None else num_drafted)
    proposal = Proposal(torch.tensor(drafts).expand(N, -1), meant_N, q.expand(N, k, -1))
    positions = torch.arange(4, 5 + k).expand(N, -1)
    return verify(proposal, p.log().expand(N, k + 1, -1), WARM, torch.arange(N), positions)


def close(share: float, expected: float) -> bool:
    """Within 5 standard errors of N draws."""
    return bool(abs(share - expected) <= 5 * (expected * (1 - expected) / N) ** 0.5)


def have_shares(tokens_N: Tensor, expected: Tensor) -> bool:
    shares = torch.bincount(tokens_N, minlength=4) / N
    return all(close(float(s), float(p)) for s, p in zip(shares, expected, strict=True))


@pytest.mark.parametrize(("draft", "chance"), [(0, 1), (1, 1), (2, 2 / 3), (3, 0)])
def test_a_draft_is_accepted_with_probability_p_over_q(draft: int, chance: float) -> None:
    assert close(float(verify_rows([draft]).num_accepted_B.float().mean()), chance)


def test_a_draft_of_target_probability_0_is_always_rejected() -> None:
    assert verify_rows([3], q=torch.tensor([1.0, 0.0, 0.0, 0.0])).num_accepted_B.sum() == 0


# max(p - q, 0) = (0.4, 0.1, 0, 0), that is 0.8 and 0.2.
RESIDUAL = torch.tensor([0.8, 0.2, 0.0, 0.0])
FIRST, SECOND = torch.eye(4)[:2]


@pytest.mark.parametrize(
    ("options", "num_accepted", "shares"),
    [
        pytest.param({"drafts": [3]}, 0, RESIDUAL, id="a rejected draft: the residual"),
        pytest.param(
            {"drafts": [1, 3], "q": torch.stack([SECOND, Q]), "p": torch.stack([SECOND, P, P])},
            1,
            RESIDUAL,
            id="a later rejected draft: its own residual",
        ),
        pytest.param({"drafts": [0], "num_drafted": 0}, 0, P, id="nothing drafted: the target's"),
        pytest.param(
            {"drafts": [0], "p": torch.stack([FIRST, P])}, 1, P, id="the bonus: the target's"
        ),
    ],
)
def test_the_token_after_accepted_drafts_has_the_residual_or_target_distribution(
    options: dict[str, Any], num_accepted: int, shares: Tensor
) -> None:
    verdict = verify_rows(**options)

    assert verdict.num_accepted_B.unique().tolist() == [num_accepted]
    assert have_shares(verdict.tokens_BT[:, num_accepted], shares)


def test_the_token_after_one_draft_has_the_targets_distribution() -> None:
    # Sharper than the joint distribution of texts: 100,000 rows. False alarm 1e-3, fixed seeds.
    assert one_draft_p_value() > 1e-3


def test_a_draft_is_never_rejected_if_p_equals_q() -> None:
    verdict = verify_rows([0], q=P)

    # p == q up to the rounding of a softmax of logarithms.
    assert int((verdict.num_accepted_B == 0).sum()) <= 1


def test_a_rejection_without_a_residual_samples_from_the_target() -> None:
    # q exceeds p everywhere by rounding only; an empty residual would always give token 0.
    p = torch.tensor([0.0, 0.5, 0.5, 0.0])
    q = p * (1 + 1e-3)
    chance_N = uniform(torch.arange(N), torch.full((N, 1), 4), Purpose.ACCEPT)[:, 0]

    verdict = verify_rows([1], q=q, p=p)

    refused_N = chance_N * q[1] > p[1]
    assert int(refused_N.sum()) > 10
    assert torch.equal(verdict.num_accepted_B == 0, refused_N)
    assert set(verdict.tokens_BT[refused_N, 0].tolist()) == {1, 2}
