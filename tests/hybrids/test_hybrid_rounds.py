"""Hybrids in the rest of the decoder: sampling, graphs, expected answers, devices, trees."""

from typing import Any

import pytest
import torch

from specbench.decode.drafter import NoDrafter
from specbench.decode.scheduler import FixedK
from specbench.errors import ModelError
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import StockRunner
from specbench.forward.scoring import mean_log_probs
from specbench.records import Request
from tests.decoding import graph_bench
from tests.decoding.fake_rounds import trace_round
from tests.decoding.graph_bench import Bench, Cycle
from tests.decoding.lossless import (
    FIRST,
    LAST,
    SAMPLED_VOCAB_SIZE,
    WARM,
    assert_texts,
    decode,
    exact_probs,
    make_drafter,
    sample_texts,
    sampled_model,
    sampled_p_value,
)
from tests.decoding.models import generated, plain_logits, ragged_prompts
from tests.decoding.test_serving import serve
from tests.hybrids.checks import EVERY_K, NUM_TOKENS, checked, subject
from tests.hybrids.models import tiny_hybrid

pytestmark = pytest.mark.slow

FALSE_ALARM = 1e-3 / 4  # for the whole file, shared by its p-values


@pytest.mark.long
@pytest.mark.parametrize("family", ["LFM2", "Qwen3.5"])
def test_sampled_texts_have_the_hybrid_targets_distribution(family: str) -> None:
    small = {"vocab_size": SAMPLED_VOCAB_SIZE, "initializer_range": 0.15}
    model = tiny_hybrid(family, **small)
    probs = exact_probs(model, WARM)
    target = StockRunner(model)
    drafter = make_drafter("draft_model", target, FusedRunner(sampled_model(seed=1)))

    texts, accepted = sample_texts(target, drafter, k=3, sampling=WARM)

    assert 0.2 < accepted < 0.95
    for triple in (FIRST, LAST):
        assert sampled_p_value(texts, probs, triple) > FALSE_ALARM


def test_captured_rounds_have_the_texts_of_eager_ones() -> None:
    of = subject("LFM2")
    requests = [
        Request(prompt_ids=ragged_prompts()[i % 3], max_new_tokens=n)
        for i, n in enumerate((3, 14, 7, 9))
    ]
    held = graph_bench.Subject(of.target, of.own, of.stranger)
    bench = Bench(held, make_drafter("draft_model", of.target, of.own))

    results = bench.serve(requests, Cycle(*EVERY_K), num_rows=3)

    assert bench.graphs.num_replays > 0
    assert_texts(results, [of.texts[i % 3][: r.max_new_tokens] for i, r in enumerate(requests)])


def test_a_predicted_output_of_a_hybrid_is_checked_in_revertible_pieces() -> None:
    of = subject("LFM2")
    right, wrong = of.texts[0], (*of.texts[0][:7], 1, 2, 3, *of.texts[0][10:])
    drafter = make_drafter("previous_turn", of.target, verify_prediction_first=True)
    for prediction in (right, wrong):
        request = Request(
            prompt_ids=ragged_prompts()[0], max_new_tokens=NUM_TOKENS, prediction_ids=prediction
        )

        (result,) = decode(of.target, drafter, [request], k=3)

        assert_texts([result], [of.texts[0]])
        assert result.answer_check is not None
        assert result.answer_check.num_accepted >= 5


def test_a_second_turn_of_a_hybrid_feeds_only_new_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    of = subject("LFM2")
    fed: list[int] = []
    forward = StockRunner.forward

    def seen(runner: Any, tokens_BT: Any, *args: Any, **how: Any) -> Any:
        if how.get("start") is not None:
            fed.append(tokens_BT.shape[1])
        return forward(runner, tokens_BT, *args, **how)

    monkeypatch.setattr(StockRunner, "forward", seen)
    turns = [Request(prompt_ids=p, max_new_tokens=NUM_TOKENS, conversation="c") for p in of.turns]
    serve(of.target, NoDrafter(), turns, FixedK(0), 1)

    # The last two tokens of the answer are fed again, as in a row with a KV cache only.
    assert fed == [len(of.turns[0]), len(of.turns[1]) - len(of.turns[0]) - NUM_TOKENS + 2]


@pytest.mark.parametrize(
    ("family", "method", "k"),
    [
        ("LFM2", "draft_model", 3),
        *(
            pytest.param(family, *how, marks=pytest.mark.long)
            for family in ("Qwen3.5", "Falcon-H1", "Bamba", "Zamba2", "Olmo hybrid")
            for how in (("none", 0), ("draft_model", 3))
        ),
    ],
)
def test_a_round_of_a_hybrid_neither_syncs_nor_copies(family: str, method: str, k: int) -> None:
    # Experts are left out, as in test_device_program.py.
    trace_round(method, k, make_runner=lambda: StockRunner(tiny_hybrid(family)))


def test_a_tree_is_refused_by_the_targets_name() -> None:
    of = subject("LFM2")
    drafter = make_drafter("draft_model", of.target, of.own, tree=(2, 2))
    request = Request(prompt_ids=(1, 2, 3), max_new_tokens=4)

    with pytest.raises(ModelError, match=r"Lfm2ForCausalLM.*tree"):
        decode(of.target, drafter, [request], k=2)


def test_a_hybrid_is_compared_with_its_steps_if_its_scan_differs() -> None:
    # Zamba 2 bounds its time steps in a scan alone: so tightly here that the two part.
    model = tiny_hybrid("Zamba2", time_step_min=1.0)
    prompt = ragged_prompts()[1]
    text = generated(model, prompt, 6)
    target = checked(model)
    request = Request(prompt_ids=prompt, max_new_tokens=6)

    results = decode(target, make_drafter("ngram", target), [request], k=2)

    assert_texts(results, [text])


def test_self_speculation_runs_over_the_targets_own_states() -> None:
    of = subject("Qwen3.5")
    drafter = make_drafter("self_speculation", of.target, num_layers=1)
    requests = [Request(prompt_ids=p, max_new_tokens=NUM_TOKENS) for p in ragged_prompts()]

    assert_texts(decode(of.target, drafter, requests, k=3), of.texts)


def test_samples_are_scored_as_by_plain_forwards() -> None:
    model = tiny_hybrid("LFM2")
    prompt, outputs = (3, 1, 4, 1, 5), [(9, 2, 6), (5, 3)]
    rows = [[*prompt, *output] for output in outputs]
    expected = []
    for row, output in zip(rows, outputs, strict=True):
        logits = plain_logits(model, torch.tensor([row]))[0, len(prompt) - 1 : -1].log_softmax(-1)
        expected.append(float(logits.gather(1, torch.tensor(output)[:, None]).mean()))

    assert mean_log_probs(checked(model), prompt, outputs) == pytest.approx(expected, abs=1e-4)
