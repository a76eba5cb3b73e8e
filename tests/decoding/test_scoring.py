"""Mean log-probabilities against plain forwards and torch's own log_softmax."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from specbench.errors import ModelError
from specbench.forward import scoring
from specbench.forward.runner import Runner, StockRunner
from specbench.forward.scoring import likeliest, mean_log_probs, next_logits
from tests.decoding.conftest import MakeRunner
from tests.decoding.fakes import CountingRunner
from tests.decoding.lossless import decode, make_drafter, texts_of
from tests.decoding.models import (
    ARCHITECTURES,
    VOCAB_SIZE,
    build,
    plain_logits,
    random_prompt,
    tiny_llama,
)
from tests.decoding.test_rows_together import WARM, samples

PROMPT = random_prompt(11, seed=2)
OUTPUTS = [random_prompt(n, seed=40 + n) for n in (9, 1, 14, 6)]


def plain(model: Any, prompt: Sequence[int], output: Sequence[int]) -> float:
    """Mean over the output's tokens of log p(token | tokens before it)."""
    tokens_1T = torch.tensor([[*prompt, *output]])
    log_probs_TV = plain_logits(model, tokens_1T)[0].float().log_softmax(-1)
    places = range(len(prompt) - 1, len(prompt) + len(output) - 1)
    log_probs = [float(log_probs_TV[i, token]) for i, token in zip(places, output, strict=True)]
    return sum(log_probs) / len(log_probs)


def assert_plain(runner: Runner, expected: Sequence[float], prompt: Sequence[int]) -> None:
    assert mean_log_probs(runner, prompt, OUTPUTS) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:1]], ids=["prompt", "one token"])
def test_scores_are_those_of_a_plain_log_softmax(make_runner: MakeRunner, prompt: Any) -> None:
    model = tiny_llama(seed=0)
    expected = [plain(model, prompt, output) for output in OUTPUTS]

    assert_plain(make_runner(model), expected, prompt)


@pytest.mark.parametrize("num_tokens", [1, 2, 700])
def test_logits_of_the_next_token_are_those_of_a_plain_forward(
    make_runner: MakeRunner, num_tokens: int
) -> None:
    model, tokens = tiny_llama(seed=0, max_position_embeddings=1024), random_prompt(num_tokens, 3)
    expected = plain_logits(model, torch.tensor([tokens]))[0, -1]
    runner = make_runner(model)
    for text in (random_prompt(9, 4), tokens):  # another text was in the row before
        actual = next_logits(runner, text)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("max_logits", [1, 4 * 5 * VOCAB_SIZE])
def test_scores_do_not_depend_on_the_chunk_size(
    make_runner: MakeRunner, max_logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_llama(seed=0)
    expected = [plain(model, PROMPT, output) for output in OUTPUTS]
    monkeypatch.setattr(scoring, "MOST_LOGITS", max_logits)
    monkeypatch.setattr(scoring, "_CHUNK", 7)

    assert_plain(make_runner(model), expected, PROMPT)


@pytest.mark.parametrize("architecture", ["Gemma3 + window", "GPT-2", "Qwen3-MoE"])
def test_scores_are_correct_with_windows_and_learned_positions(architecture: str) -> None:
    model = build(ARCHITECTURES[architecture]())
    expected = [plain(model, PROMPT, output) for output in OUTPUTS]

    assert_plain(StockRunner(model), expected, PROMPT)


def test_scores_do_not_depend_on_what_the_rows_held_before(make_runner: MakeRunner) -> None:
    model = tiny_llama(seed=0)
    expected = [plain(model, PROMPT, output) for output in OUTPUTS]
    runner = make_runner(model)
    decode(runner, make_drafter("ngram", runner), samples(random_prompt(40, seed=8)), k=4)

    assert_plain(runner, expected, PROMPT)


def test_scoring_does_not_change_decoding(make_runner: MakeRunner) -> None:
    runner = make_runner(tiny_llama(seed=0))
    drafter = make_drafter("ngram", runner)
    before = decode(runner, drafter, samples(), k=3, sampling=WARM)
    cache = runner.cache

    mean_log_probs(runner, samples()[0].prompt_ids, texts_of(before))

    assert runner.cache is cache, "graphs are bound to its addresses"
    after = decode(runner, drafter, samples(), k=3, sampling=WARM)
    assert texts_of(after) == texts_of(before)


def test_scoring_prefills_the_prompt_once_and_batches_outputs() -> None:
    runner = CountingRunner()

    mean_log_probs(runner, tuple(range(10)), [(10, 11, 12), (10, 11)])

    assert [tuple(positions_BT.shape) for positions_BT in runner.fed] == [(1, 9), (2, 3)]
    assert runner.fed[1].tolist() == [[9, 10, 11]] * 2


def test_a_text_longer_than_the_context_is_refused() -> None:
    with pytest.raises(ModelError, match=r"13.*12"):
        mean_log_probs(CountingRunner(max_position=12), tuple(range(10)), [(1, 2), (1, 2, 3)])


def test_the_most_likely_text_is_picked_and_the_first_of_equals() -> None:
    assert likeliest([-2.0, -1.0, -1.5]) == 1
    assert likeliest([-1.0, -1.0]) == 0
