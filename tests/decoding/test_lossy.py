"""Lossy rules: worked by hand, against a plain loop, and inside rounds. Vocabulary of 4 by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decode.drafter import Proposal
from specbench.decode.lossy import LossyVerifier
from specbench.decode.round import Verifier
from specbench.decode.sampling import Sampler
from specbench.decode.verifier import verify
from specbench.forward.runner import StockRunner
from specbench.forward.tree import StaticTree
from specbench.records import LossyRule, Request, Result, Sampling
from specbench.records.lossy import RULES
from specbench.topology import Topology
from tests.decoding.fake_rounds import trace_round
from tests.decoding.lossless import decode, make_drafter, texts_of
from tests.decoding.models import exact_llama, generated, ragged_prompts

GREEDY, WARM = Sampling(), Sampling(temperature=1.0)
# exp(-entropy) is 0.319, so that typical acceptance takes min(0.09, 0.3 * 0.319 = 0.096).
PROBS = torch.tensor([0.5, 0.3, 0.15, 0.05])
TYPICAL = LossyRule(name="typical", parameters={"threshold": 0.09, "alpha": 0.3})
QUARTER = LossyRule(name="threshold", parameters={"single": 0.25})
NOTHING = LossyVerifier(replace(TYPICAL, parameters={"threshold": 1.0, "alpha": 1e9}))
ANYTHING = LossyVerifier(replace(TYPICAL, parameters={"threshold": 1e-30, "alpha": 1.0}))
# 0 - 1 - 3, 0 - 1 - 4, 0 - 2 - 5: nodes of a tree, draft i is node i + 1
TREE = Topology.of_paths([(0,), (1,), (0, 0), (0, 1), (1, 0)])


def judge_row(
    rule: LossyRule,
    drafts: list[int],
    probs: list[Tensor],
    *,
    sampling: Sampling = WARM,
    topology: Topology | None = None,
    num_drafted: int | None = None,
    seed: int = 0,
) -> tuple[list[int], list[int]]:
    """The tokens that one row emits, and the target's token after each node."""
    tree = None if topology is None else StaticTree(topology, torch.device("cpu")).of_rows(1)
    num_active = len(drafts) if num_drafted is None else num_drafted
    if tree is not None and num_drafted is not None:
        tree = tree.truncated_to(torch.tensor([num_drafted]))
    proposal = Proposal(torch.tensor([drafts]), torch.tensor([num_active]), tree=tree)
    logits = torch.stack(probs).log()[None]
    places = torch.arange(len(probs))[None] if tree is None else tree.depths_BN
    sampler, seeds = Sampler(sampling), torch.tensor([seed])
    verdict = LossyVerifier(rule)(proposal, logits, sampler, seeds, places)
    picks = sampler.pick(logits, seeds, places)[0].tolist()
    return verdict.tokens_BT[0, : int(verdict.num_accepted_B) + 1].tolist(), picks


@pytest.mark.parametrize(
    ("drafts", "options", "kept", "last_node"),
    [
        # 0.3 and 0.15 are above the bar of 0.09, 0.05 is not.
        pytest.param([1, 2, 3, 0], {}, [1, 2], 2, id="up to the first that is not typical"),
        pytest.param([1, 2], {}, [1, 2], 2, id="all, and the target's own token"),
        # Swapped, the bar would be min(0.3, 0.09 * 0.319) = 0.029, below the draft's 0.05.
        pytest.param([3], {"seed": 3}, [], 0, id="threshold and alpha are not swapped"),
        # At 0.5 probabilities are squared: 0.15 becomes 0.062, below 0.09.
        pytest.param(
            [2], {"sampling": Sampling(temperature=0.5)}, [], 0, id="the sampling's temperature"
        ),
        pytest.param(
            [2], {"sampling": Sampling(temperature=1.0, top_k=2)}, [], 0, id="what top-k excludes"
        ),
        pytest.param([0, 0], {"num_drafted": 1}, [0], 1, id="an inactive draft"),
        pytest.param(
            [0, 1, 0, 1, 0],
            {"topology": TREE, "num_drafted": 1},
            [0],
            1,
            id="an inactive draft of a tree",
        ),
        # The first child (0.5) has two untypical children, the second (0.15) a typical one.
        pytest.param([0, 2, 3, 3, 1], {"topology": TREE}, [2, 1], 5, id="a tree's longest path"),
        # 0.3 * 0.15 against 0.15 * 0.5 and 0.3 * 0.3
        pytest.param([1, 2, 2, 1, 0], {"topology": TREE}, [1, 1], 4, id="the likeliest of a tie"),
        pytest.param([3, 3, 0, 0, 0], {"topology": TREE}, [], 0, id="no child passes"),
    ],
)
def test_typical_drafts_are_kept(
    drafts: list[int], options: dict[str, Any], kept: list[int], last_node: int
) -> None:
    tokens, picks = judge_row(TYPICAL, drafts, [PROBS] * (len(drafts) + 1), **options)
    assert tokens == [*kept, picks[last_node]]


def test_typical_acceptance_is_more_lenient_for_flat_distributions() -> None:
    # 40 equal tokens: each has 0.025, the bar is 0.3 * 0.025.
    flat = torch.full((40,), 1 / 40)
    assert judge_row(TYPICAL, [7], [flat] * 2)[0][0] == 7
    # One token in front: the bar is 0.3 * exp(-1.78) = 0.05.
    peaked = torch.tensor([0.6, *[0.4 / 16] * 16])
    tokens, picks = judge_row(TYPICAL, [7], [peaked] * 2)
    assert tokens == [picks[0]]


def test_a_typical_draft_is_accepted_at_temperature_0() -> None:
    assert judge_row(TYPICAL, [1, 3], [PROBS] * 3, sampling=GREEDY)[0] == [1, 0]
    assert judge_row(TYPICAL, [0, 0], [PROBS] * 3, sampling=GREEDY)[0] == [0, 0, 0]


def test_a_threshold_accepts_likely_drafts_and_the_targets_own_token() -> None:
    kept, picks = judge_row(QUARTER, [1, 1, 1], [PROBS] * 4, seed=1)
    assert kept == [1, 1, 1, picks[3]]
    for seed in range(40):
        tokens, picks = judge_row(QUARTER, [3, 1], [PROBS] * 3, seed=seed)
        assert tokens == ([3, 1, picks[2]] if picks[0] == 3 else [picks[0]])


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("rule", [TYPICAL, QUARTER], ids=lambda rule: rule.name)
def test_lossy_tree_acceptance_equals_a_plain_loop(rule: LossyRule, sampling: Sampling) -> None:
    generator = torch.Generator().manual_seed(0)
    for seed in range(200):
        probs = list((4 * torch.rand(6, 4, generator=generator)).softmax(-1))
        drafts = torch.randint(0, 4, (5,), generator=generator).tolist()
        tokens, picks = judge_row(rule, drafts, probs, sampling=sampling, topology=TREE, seed=seed)
        assert tokens == by_hand(rule, drafts, probs, picks)


def by_hand(rule: LossyRule, drafts: list[int], probs: list[Tensor], picks: list[int]) -> list[int]:
    """The rule over every path of TREE, one number after the other."""
    best: tuple[int, float, list[int], int] = (0, 0.0, [], 0)
    for path in TREE.paths:
        nodes = [TREE.paths.index(path[: i + 1]) + 1 for i in range(len(path))]
        tokens, log_p = [drafts[node - 1] for node in nodes], 0.0
        for parent, token in zip([0, *nodes], tokens, strict=False):
            probs_V = probs[parent].tolist()
            if rule.name == "typical":
                entropy = -sum(p * math.log(p + 1e-5) for p in probs_V)
                passes = probs_V[token] > min(0.09, 0.3 * math.exp(-entropy))
            else:
                passes = probs_V[token] >= 0.25 or token == picks[parent]
            if not passes:
                break
            log_p += math.log(probs_V[token])
        else:
            if (len(path), log_p) > best[:2]:
                best = (len(path), log_p, tokens, nodes[-1])
    return [*best[2], picks[best[3]]]


def decoded(
    verifier: Verifier, method: str, k: int, sampling: Sampling, **parameters: object
) -> list[Result]:
    target, draft = StockRunner(exact_llama(seed=0)), StockRunner(exact_llama(seed=1))
    drafter = make_drafter(method, target, draft, **parameters)
    prompts = [*ragged_prompts(), (4, 8, 15, 16, 4, 8, 15, 16, 4, 8)]
    requests = [Request(prompt_ids=p, max_new_tokens=20, seed=i) for i, p in enumerate(prompts)]
    return decode(target, drafter, requests, k=k, sampling=sampling, verifier=verifier)


DRAFTERS = [("draft_model", {}), ("draft_model", {"tree": (3, 2)}), ("ngram", {}), ("medusa", {})]


@pytest.mark.sampled(one_in=3, every=["method", "sampling"])
@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("method", "parameters"), DRAFTERS, ids=str)
def test_a_rule_that_accepts_nothing_gives_the_text_of_plain_decoding(
    method: str, parameters: dict[str, object], sampling: Sampling
) -> None:
    results = decoded(NOTHING, method, 3, sampling, **parameters)
    assert texts_of(results) == texts_of(decoded(verify, "none", 0, sampling))
    assert not any(any(result.rounds.num_accepted) for result in results)
    assert any(sum(result.rounds.num_drafted) for result in results)


@pytest.mark.parametrize("parameters", [{}, {"tree": (3, 2)}], ids=str)
def test_a_rule_that_accepts_everything_keeps_all_k_drafts(parameters: dict[str, object]) -> None:
    for result in decoded(ANYTHING, "draft_model", 3, WARM, **parameters):
        *rounds, _ = result.rounds.num_accepted
        assert set(rounds) == {3}
        assert len(result.output_ids) == 20


@pytest.mark.parametrize("method", ["ngram", "medusa"])
def test_a_threshold_of_1_is_the_lossless_rule(method: str) -> None:
    verifier = LossyVerifier(LossyRule(name="threshold", parameters={"single": 1.0}))
    lossy, lossless = (decoded(v, method, 3, WARM) for v in (verifier, verify))
    assert texts_of(lossy) == texts_of(lossless)
    assert [r.rounds.num_accepted for r in lossy] == [r.rounds.num_accepted for r in lossless]


def test_typical_acceptance_keeps_more_and_changes_the_text() -> None:
    bold, plain = (
        decoded(verifier, "draft_model", 3, GREEDY) for verifier in (LossyVerifier(TYPICAL), verify)
    )
    assert texts_of(plain)[:3] == [
        generated(exact_llama(seed=0), prompt, 20) for prompt in ragged_prompts()
    ]
    assert texts_of(bold) != texts_of(plain)
    assert sum(len(r.rounds) for r in bold) < sum(len(r.rounds) for r in plain)


def test_every_lossy_rule_accepts_a_likely_draft() -> None:
    for name, parameters in RULES.items():
        rule = LossyRule(name=name, parameters=dict.fromkeys(parameters, 0.4))
        assert judge_row(rule, [0], [PROBS] * 2)[0][0] == 0


@pytest.mark.sampled(one_in=3, every=["method", "rule"])
@pytest.mark.slow
@pytest.mark.parametrize("rule", [TYPICAL, QUARTER], ids=["typical", "threshold"])
@pytest.mark.parametrize(("method", "parameters"), DRAFTERS, ids=str)
def test_a_lossy_round_neither_syncs_nor_copies(
    method: str, parameters: dict[str, object], rule: LossyRule
) -> None:
    trace_round(method, 3, verifier=LossyVerifier(rule), **parameters)
