"""The number of sampled tokens, and the deviation that they detect."""

import math
import re
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any, cast

import pytest

from specbench.bench.budget import duration
from specbench.bench.verification import _READ, _SAMPLED, FEWEST_TOKENS, _estimate
from specbench.cli.verify import PRECISION, enough_tokens
from specbench.records import Sampling
from specbench.verify.collect import (
    Collector,
    EngineUnderTest,
    KnownOutput,
    VerificationJob,
    VerificationPrompt,
    _end,
)
from specbench.verify.judge import MOST_TOKENS, power_of_call, tokens_for


def question(name: str, conversation: str | None = None) -> VerificationPrompt:
    return VerificationPrompt(
        id=name, prompt_ids=(1,), max_new_tokens=100, conversation=conversation
    )


TALK = [question("a"), question("b1", "b"), question("b2", "b"), question("c"), question("d")]


def prompts_taken(num_tokens: int, talk: list[VerificationPrompt]) -> str:
    return " ".join(talk[i % len(talk)].id for i in range(_end(talk, 0, num_tokens, 1)))


def test_a_conversation_does_not_continue_past_the_prompt_list():
    """A single conversation would otherwise never end."""
    assert prompts_taken(201, TALK[1:3]) == "b1 b2 b1 b2"


def test_outputs_are_expected_to_be_as_long_as_the_greedy_one():
    answer = KnownOutput("builtin", (7,) * 40)
    talk = [replace(prompt, answer=answer) for prompt in TALK]
    assert prompts_taken(41, talk) == "a b1 b2"
    assert prompts_taken(121, talk) == "a b1 b2 c"


class CountingEngine:
    """An engine that counts its tokens; its answers are as long as requested."""

    name = "builtin"
    share = 1.0  # of what it was asked for
    num_decoded = 0
    seeds: tuple[int, ...] = ()
    conversations: tuple[str | None, ...] = ()

    def serve(self, requests: Any, work: object, load: object) -> Any:  # noqa: ARG002
        self.num_decoded += sum(r.max_new_tokens for r in requests)
        self.seeds += tuple(r.seed for r in requests)
        self.conversations += tuple(r.conversation for r in requests)
        lengths = [int(self.share * r.max_new_tokens) for r in requests]
        assert lengths, "nothing was asked"
        results = tuple(SimpleNamespace(output_ids=(0,) * length) for length in lengths)
        return SimpleNamespace(results=results)


def test_texts_do_not_depend_on_the_concurrency():
    reference = cast(Any, SimpleNamespace(vocab_size=1000))
    collector = Collector(reference, TALK, seed=0)
    work = cast(Any, SimpleNamespace(method="ngram", k=4))
    streams, seeds = [], []
    for wanted, rows in ((700, 1), (700, 16)):
        engine = CountingEngine()
        case = EngineUnderTest("one/ngram", cast(Any, engine), work, rows)
        texts = collector._sampled_texts(case, Sampling(temperature=0.7), wanted)
        streams.append([q.id for q, _ in islice(texts, 7)])
        assert engine.num_decoded == (800 if rows == 1 else 1600)
        twice = [c for c in engine.conversations if c]
        assert twice[:4] == ["b 0", "b 0", "b 1", "b 1"]  # each time another one
        assert len(set(engine.seeds)) == len(engine.seeds)
        seeds.append(engine.seeds[:7])
    assert seeds[0] == seeds[1]
    assert streams[0] == streams[1] == ["a", "b1", "b2", "c", "d", "a", "b1"]


def test_only_missing_tokens_are_requested_after_short_outputs():
    """With 50 tokens instead of 100: 8 texts for 700, 3 for the other 300, 2 for 150, 1 for 50."""
    collector = Collector(cast(Any, SimpleNamespace(vocab_size=1000)), TALK, seed=0)
    engine = CountingEngine()
    engine.share = 0.5
    work = cast(Any, SimpleNamespace(method="ngram", k=4))
    case = EngineUnderTest("one/ngram", cast(Any, engine), work, 1)
    texts = [text for _, text in islice(collector._sampled_texts(case, Sampling(), 700), 14)]
    assert sum(map(len, texts)) == 700
    assert engine.num_decoded == 1400


def test_k_0_is_not_generated_again_except_in_conversations():
    answer = KnownOutput("builtin", (7,) * 40)
    talk = [replace(prompt, answer=answer) for prompt in TALK]
    collector = Collector(cast(Any, SimpleNamespace(vocab_size=1000)), talk, seed=0)
    of_one_turn = Collector(cast(Any, SimpleNamespace(vocab_size=1000)), talk[:1], seed=0)
    work = cast(Any, SimpleNamespace(method="none", k=0))
    assert of_one_turn.greedy_texts(EngineUnderTest("one", cast(Any, CountingEngine()), work)) == [
        (7,) * 40
    ]
    for name, k, num_questions in (("builtin", 0, 2), ("builtin", 4, 5), ("transformers", 0, 5)):
        engine = CountingEngine()
        engine.name = name
        work = cast(Any, SimpleNamespace(method="ngram", k=k))
        texts = collector.greedy_texts(EngineUnderTest("one", cast(Any, engine), work))
        assert len(engine.seeds) == num_questions
        assert [len(text) for text in texts] == (
            [40, 100, 100, 40, 40] if num_questions == 2 else [100] * 5
        )


def jobs(*temperatures: float) -> list[VerificationJob]:
    work = cast(Any, SimpleNamespace(method="ngram", k=4))
    return [
        VerificationJob("one/d", None, "builtin", work, Sampling(temperature=t))
        for t in temperatures
    ]


def test_the_estimate_is_reported_before_sampling():
    answer = KnownOutput("builtin", (7,) * 40)
    talk = [replace(prompt, answer=answer) for prompt in TALK]  # 200 tokens, which took 2 s
    num_tokens, message = _estimate(jobs(0.0, 0.0), talk, 2.0, 8192, math.inf, 0)
    assert re.match(f"about {duration(4.0)}: 5 .*2 cells", message)
    seconds = 0.01 * (2 * 200 + 2 * (_SAMPLED + _READ) * 8192)
    mixed = jobs(0.0, 0.7, 0.0, 0.7)
    num_tokens, message = _estimate(mixed, talk, 2.0, 8192, math.inf, 2)
    assert num_tokens == 8192
    assert message.startswith(f"about {duration(seconds)}: ")
    assert re.search("8,192 sampled .* 2,", message)
    assert f"{power_of_call(8192, 2).shift:.1%}" in message


def test_a_time_budget_limits_the_verified_tokens_with_a_note():
    talk = [replace(prompt, answer=KnownOutput("builtin", (7,) * 40)) for prompt in TALK]
    mixed = jobs(0.0, 0.7, 0.0, 0.7)  # 4 s of greedy answers, 34 ms per sampled token of both
    num_tokens, message = _estimate(mixed, talk, 2.0, 20_000, 38.0, 2)
    assert num_tokens == pytest.approx(1000, abs=1)
    assert message.startswith("about 38s (--time-budget: 38s): ")
    assert re.search(f"{num_tokens:,} .*20,000 sampled", message)
    assert _estimate(mixed, talk, 2.0, 20_000, 1e6, 2)[0] == 20_000
    assert _estimate(mixed, talk, 2.0, 20_000, 1.0, 2)[0] == FEWEST_TOKENS


def test_the_tokens_for_a_precision_detect_that_shift():
    for precision in (0.05, 0.02):
        for cells in (2, 28):
            tokens = tokens_for(precision, cells)
            assert power_of_call(tokens, cells).shift <= precision
            assert power_of_call(tokens - 1024, cells).shift > precision
    assert tokens_for(0.02, 28) > tokens_for(0.02, 2) > tokens_for(0.05, 2)
    assert tokens_for(1e-6, 2) <= MOST_TOKENS


def test_tokens_per_cell_rise_with_the_number_of_cells():
    """K = 0 is also a cell; at temperature 0 nothing is sampled."""
    job = cast(Any, SimpleNamespace(target=SimpleNamespace(name="one")))
    for ks, temperatures, num_pairings, tokens in (
        (None, (0.0, 0.7), 1, 8192),
        ((1, 2, 3), (0.0, 0.7), 1, 8192),
        ((1, 2, 3), (0.7, 1.0), 1, 9216),
        (None, (0.0, 0.7), 16, 9216),
    ):
        settings = SimpleNamespace(
            draft=SimpleNamespace(num_speculative_tokens=ks),
            sampling=SimpleNamespace(temperatures=temperatures),
            load=SimpleNamespace(engines=("builtin",)),
        )
        assert enough_tokens(PRECISION, cast(Any, settings), [job] * num_pairings) == tokens
