"""MTP layers: every family's layout against the plain facts, and layers beyond the first.

Shape suffixes: T tokens, F hidden size, V vocabulary, K drafts.
"""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest
import torch

from specbench.decode.round import run_round
from specbench.decode.sampling import Sampler
from specbench.drafters.mtp import Mtp, MtpHead
from specbench.files import mtp
from specbench.forward.runner import StockRunner
from specbench.models.checkpoint import Checkpoint
from specbench.records import Request
from tests.decoding.lossless import acceptance_rate, assert_texts, decode, parts_of
from tests.decoding.models import build, generated, random_prompt
from tests.drafters.feature_cases import (
    GREEDY,
    SPAN,
    Guided,
    Watched,
    assert_chains,
    num_kept,
    prefilled,
    run_rounds,
)
from tests.drafters.mtp_families import (
    PlainLayer,
    PlainMtp,
    checkpoint_for,
    dense_target,
    family_of,
)

ROLLED_BACK = ("deepseek_v3", "glm4_moe", "mimo")
FAMILIES = (*ROLLED_BACK, "qwen3_next", "qwen3_5", "qwen3_5_moe")
T = 12
TOKENS_T = torch.tensor(random_prompt(T, seed=1, vocab_size=61))
PLACES_1T = torch.arange(T)[None]
PROMPTS = [random_prompt(n, seed=n, vocab_size=61) for n in (11, 5, 8)]


@torch.no_grad()
def check_layout(name: str, *, tolerance: float = 2e-4) -> None:
    """AssertionError where the head's states or logits are not those of the plain facts."""
    family = family_of(name)
    checkpoint, model = checkpoint_for(name, family.config), dense_target()
    plain = PlainLayer(family, checkpoint.tensors, model)
    states_TF = torch.randn(T, 32, generator=torch.Generator().manual_seed(5))
    expected = plain(TOKENS_T, states_TF)
    head = MtpHead(checkpoint, StockRunner(model))
    head.layers.allocate(1, 64)

    made_1TF = head.step(TOKENS_T[None], states_TF[None], PLACES_1T, 64)

    assert float((made_1TF[0] - expected[0]).abs().max()) < tolerance, "the state that goes on"
    worst = float((head.logits(made_1TF)[0] - expected[1]).abs().max())
    assert worst < tolerance * float(expected[1].abs().max()), "the logits"


@pytest.mark.parametrize("name", FAMILIES)
def test_an_mtp_layer_equals_the_reference_in_every_family(name: str) -> None:
    check_layout(name)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("fault", ["is_state_first", "recycles_normed"])
def test_the_layout_check_fails_for_another_order_or_another_state(
    name: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = mtp.FAMILIES[name]
    wrong = replace(right, **{fault: not getattr(right, fault)})
    monkeypatch.setitem(mtp.FAMILIES, name, wrong)

    with pytest.raises(AssertionError, match="the state that goes on"):
        check_layout(name)


@pytest.mark.sampled(one_in=2, every=["name", "k"])
@pytest.mark.slow
@pytest.mark.parametrize("name", ROLLED_BACK)
@pytest.mark.parametrize("k", [1, 3])
def test_text_with_mtp_drafts_equals_generate_in_every_family(name: str, k: int) -> None:
    config = family_of(name).config
    model = build(config)
    texts = [generated(model, prompt, 16) for prompt in PROMPTS]
    target = StockRunner(model)
    drafter = Mtp(parts_of(target, checkpoint=checkpoint_for(name, config)))

    requests = [Request(prompt_ids=prompt, max_new_tokens=16) for prompt in PROMPTS]
    results = decode(target, drafter, requests, k=k, prefill_chunk=4)

    assert_texts(results, texts)
    assert acceptance_rate(results) < 1


class Subject(NamedTuple):
    """A target of a family with MTP layers, and its plain reference."""

    target: StockRunner
    checkpoint: Checkpoint
    plain: PlainMtp
    texts: list[tuple[int, ...]]


@cache
def subject(name: str, num_layers: int) -> Subject:
    config = family_of(name).config
    model = build(config)
    texts = [(*prompt, *generated(model, prompt, 48)) for prompt in PROMPTS]
    checkpoint = checkpoint_for(name, config, num_layers=num_layers)
    layers = [PlainLayer(family_of(name, i), checkpoint.tensors, model) for i in range(num_layers)]
    target = StockRunner(build(family_of(name).config))  # the config is changed by a runner
    return Subject(target, checkpoint, PlainMtp(layers, model), texts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_layers", "ks"),
    [
        ("deepseek_v3", 1, [4, 4, 0, 3, 0, 0, 4, 1, 4, 4, 4]),
        ("mimo", 1, [4, 4, 0, 3, 0, 0, 4, 1, 4, 4, 4]),
        ("mimo", 3, [3, 3, 0, 3, 0, 0, 3, 1, 3, 2, 3]),
        ("deepseek_v3", 2, [2, 2, 0, 2, 0, 0, 2, 1, 2, 2, 2]),
    ],
)
def test_mtp_drafts_equal_the_reference_for_any_acceptance(
    name: str, num_layers: int, ks: list[int]
) -> None:
    """Prefilled in chunks of 4, with rounds that draft nothing among the others."""
    target, checkpoint, plain, texts = subject(name, num_layers)
    watched = Watched(Mtp(parts_of(target, checkpoint=checkpoint)))

    ends = run_rounds(target, Guided(watched, texts), PROMPTS, ks, prefill_chunk=4)

    for end, text in zip(ends, texts, strict=True):
        assert end == text[: len(end)]
    assert set(num_kept(ends, watched.seen)) >= set(range(max(ks) + 1))
    assert_chains(plain, watched.seen)


def test_a_moved_row_keeps_its_hidden_states() -> None:
    target, checkpoint, plain, _ = subject("mimo", 3)
    watched = Watched(Mtp(parts_of(target, checkpoint=checkpoint)))
    rows = prefilled(target, watched, PROMPTS)

    with torch.no_grad():
        rows.move_row(2, 0, len(PROMPTS[2]))
        watched.propose(rows.state.rows(0, 1), 3, SPAN, Sampler(GREEDY))

    assert watched.seen[0].text[:-1] == PROMPTS[2]
    assert_chains(plain, watched.seen)


def test_a_row_without_new_tokens_keeps_its_states() -> None:
    target, checkpoint, _, _ = subject("mimo", 3)
    drafter = Mtp(parts_of(target, checkpoint=checkpoint))
    rows = prefilled(target, drafter, PROMPTS)
    rows.state.budget_B[1] = 0
    before_RF = drafter.buffers[1].clone()

    with torch.no_grad():
        run_round(target, drafter, rows.state, Sampler(GREEDY), k=3, span=SPAN)

    changed_R = (drafter.buffers[1] != before_RF).any(-1)
    assert changed_R.tolist() == [True, False, True]


def test_mtp_drafts_of_one_token_prompts_leave_the_text_unchanged() -> None:
    target, checkpoint, _, texts = subject("mimo", 3)
    drafter = Mtp(parts_of(target, checkpoint=checkpoint))
    model = build(family_of("mimo").config)
    prompts = [texts[0][:1], texts[1]]
    expected = [generated(model, prompt, 20) for prompt in prompts]

    requests = [Request(prompt_ids=prompt, max_new_tokens=20) for prompt in prompts]
    results = decode(target, drafter, requests, k=8)

    assert_texts(results, expected)
