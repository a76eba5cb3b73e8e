"""Checks of a hybrid model as target and as draft: texts are those of `generate`.

The real tests run them for every family; test_planted_rollbacks.py asserts that each check fails
for broken code.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from specbench.decode.adaptive_k import Controller, RoundCostModel, default_ks
from specbench.forward.runner import Runner
from specbench.forward.self_test import make_checked_runner
from specbench.records import Request
from tests.decoding.graph_bench import Cycle
from tests.decoding.lossless import acceptance_rate, assert_texts, decode, make_drafter, serve
from tests.decoding.models import generated, ragged_prompts, random_prompt, tiny_llama
from tests.hybrids.models import tiny_hybrid

NUM_TOKENS = 20
EVERY_K = (4, 0, 1, 0, 0, 0, 4, 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A hybrid target, drafts of its family, and texts that they must not change.

    `twin` has the target's weights, `near` has noise on them: some of its drafts are accepted.
    """

    target: Runner
    twin: Runner
    near: Runner
    stranger: Runner
    texts: tuple[tuple[int, ...], ...]
    turns: tuple[tuple[int, ...], ...]  # the prompts of a conversation, and their answers
    answers: tuple[tuple[int, ...], ...]


@cache
def subject(family: str) -> Subject:
    model = tiny_hybrid(family)
    texts = tuple(generated(model, prompt, NUM_TOKENS) for prompt in ragged_prompts())
    opening = ragged_prompts()[1]
    follow_up = (*opening, *texts[1], *random_prompt(5, seed=2))
    turns = (opening, follow_up)
    answers = (texts[1], generated(model, follow_up, NUM_TOKENS))
    return Subject(
        target=checked(model),
        twin=checked(model),
        near=checked(with_noise(tiny_hybrid(family))),
        stranger=checked(tiny_hybrid(family, seed=1)),
        texts=texts,
        turns=turns,
        answers=answers,
    )


def checked(model: Any) -> Runner:
    return make_checked_runner(model)[0]


def with_noise(model: Any, scale: float = 0.06) -> Any:
    """The model with matrices that differ by a share of their size."""
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        if weight.ndim > 1:
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_(noise * weight.std() * scale)
    return model


def check_side_by_side(of: Subject, ks: Sequence[int], **how: Any) -> None:
    """Ragged rows at each K, with drafts that are all right, partly right, and wrong."""
    requests = [Request(prompt_ids=p, max_new_tokens=NUM_TOKENS) for p in ragged_prompts()]
    for k in ks:
        if k == 0:
            baseline = make_drafter("none", of.target)
            assert_texts(decode(of.target, baseline, requests, k=0, **how), of.texts)
            continue
        rates = []
        for draft in (of.twin, of.near, of.stranger):
            drafter = make_drafter("draft_model", of.target, draft)
            results = decode(of.target, drafter, requests, k=k, **how)
            assert_texts(results, of.texts)
            rates.append(acceptance_rate(results))
        assert rates[0] == 1, f"at K={k} of the target's own drafts {rates[0]:.0%} are accepted"
        assert 0.1 < rates[1] < 0.95, rates
        assert rates[2] < 0.2, rates


def check_rows_that_come_and_go(of: Subject) -> None:
    """More requests than rows, K changing from round to round: rows move, drafts catch up.

    The draft has the target's weights: its drafts are accepted whenever its state is right.
    """
    lengths = (3, 20, 7, 20, 5, 12)
    requests = [
        Request(prompt_ids=ragged_prompts()[i % 3], max_new_tokens=length)
        for i, length in enumerate(lengths)
    ]
    drafter = make_drafter("draft_model", of.target, of.twin)

    served = serve(of.target, drafter, requests, Cycle(*EVERY_K), 2)

    assert_texts(served.results, [of.texts[i % 3][:n] for i, n in enumerate(lengths)])
    assert acceptance_rate(served.results) == 1


def check_adaptive_k(of: Subject) -> None:
    """The real controller picks K: it rises while drafts are right, falls to 0 when they turn
    wrong, and rises again, so that the draft has to catch up with its rows."""
    ks = default_ks(4)
    costs = RoundCostModel({(rows, k): [1 + 0.2 * k] for rows in (1, 2) for k in ks})
    controller = Controller(ks, costs, probe_share=0.5)
    requests = [Request(prompt_ids=p, max_new_tokens=NUM_TOKENS) for p in ragged_prompts()]
    chosen: list[int] = []
    for draft in (of.twin, of.stranger, of.near):
        drafter = make_drafter("draft_model", of.target, draft)
        served = serve(of.target, drafter, requests, controller, 2)
        assert_texts(served.results, of.texts)
        chosen += served.timeline.num_speculative_tokens
    assert max(chosen) == ks[-1]
    assert any(chosen[chosen.index(0) :]), f"no K was tried after 0: {chosen}"


def check_second_turn(of: Subject, draft: Runner, ks: Sequence[int] = (3,)) -> None:
    """A conversation continues in its row, next to another request and after idle rounds."""
    turns = [Request(prompt_ids=p, max_new_tokens=NUM_TOKENS, conversation="c") for p in of.turns]
    other = Request(prompt_ids=ragged_prompts()[0], max_new_tokens=NUM_TOKENS)
    drafter = make_drafter("draft_model", of.target, draft)

    served = serve(of.target, drafter, [turns[0], other, other, turns[1]], Cycle(*ks), 2)

    results = [served.results[i] for i in (0, 1, 3)]
    assert_texts(results, [of.answers[0], of.texts[0], of.answers[1]])


def check_as_draft(of: Subject) -> None:
    """A target with only attention layers, whose text the hybrid must not change."""
    model = tiny_llama(seed=0)
    texts = [generated(model, prompt, NUM_TOKENS) for prompt in ragged_prompts()]
    target = checked(model)
    requests = [Request(prompt_ids=p, max_new_tokens=NUM_TOKENS) for p in ragged_prompts()]
    drafter = make_drafter("draft_model", target, of.target)
    served = serve(target, drafter, requests, Cycle(*EVERY_K), 3)
    assert_texts(served.results, texts)


def check_short_answer(of: Subject) -> None:
    """A second turn after an answer of one token, and one whose text differs from the answer."""
    opening, answer = of.turns[0], of.answers[0]
    for kept, follow_up in (
        (answer[:1], (*opening, answer[0], *random_prompt(5, seed=3))),
        (answer, (*opening, *answer[:9], *random_prompt(5, seed=3))),
    ):
        turns = [
            Request(prompt_ids=p, max_new_tokens=n, conversation="c")
            for p, n in ((opening, len(kept)), (follow_up, NUM_TOKENS))
        ]
        afresh = replace(turns[1], conversation=None)
        drafter = make_drafter("draft_model", of.target, of.near)

        (alone,) = decode(of.target, drafter, [afresh], k=3)
        served = serve(of.target, drafter, turns, Cycle(3), 1)

        assert_texts(served.results, [kept, alone.output_ids])
