"""How much is sampled, and what that can find."""

from itertools import islice
from types import SimpleNamespace
from typing import Any, cast

from specbench.records import Sampling
from specbench.verify.collect import Collector, Examined, Question, _begin
from specbench.verify.judge import MOST_TOKENS, power_of_call, tokens_for


def question(name: str, conversation: str | None = None) -> Question:
    return Question(id=name, prompt_ids=(1,), max_new_tokens=100, conversation=conversation)


TALK = [question("a"), question("b1", "b"), question("b2", "b"), question("c"), question("d")]


def taken(num_tokens: int, num_rows: int) -> str:
    return " ".join(q.id for _, q in _begin(list(enumerate(TALK)), num_tokens, num_rows))


def test_no_more_is_decoded_than_is_wanted_and_no_conversation_is_cut():
    assert taken(num_tokens=100, num_rows=1) == "a"
    assert taken(num_tokens=101, num_rows=1) == "a b1 b2"
    assert taken(num_tokens=1, num_rows=2) == "a b1 b2"
    assert taken(num_tokens=301, num_rows=2) == "a b1 b2 c"
    assert taken(num_tokens=9999, num_rows=2) == "a b1 b2 c d"


class Served:
    """An engine whose answers are as long as it was asked for; it counts what it decodes."""

    name = "builtin"
    num_decoded = 0
    seeds: tuple[int, ...] = ()

    def serve(self, requests: Any, work: object, load: object) -> Any:  # noqa: ARG002
        self.num_decoded += sum(r.max_new_tokens for r in requests)
        self.seeds += tuple(r.seed for r in requests)
        results = tuple(SimpleNamespace(output_ids=(0,) * r.max_new_tokens) for r in requests)
        return SimpleNamespace(results=results)


def test_texts_are_the_same_however_many_are_asked_for_at_once():
    teacher = cast(Any, SimpleNamespace(vocab_size=1000))
    collector = Collector(teacher, TALK, seed=0)
    work = cast(Any, SimpleNamespace(method="ngram", k=4))
    streams, seeds = [], []
    for wanted, rows in ((700, 1), (700, 16)):
        engine = Served()
        who = Examined("one/ngram", cast(Any, engine), work, rows)
        texts = collector._sampled_texts(who, Sampling(temperature=0.7), wanted)
        streams.append([q.id for q, _ in islice(texts, 7)])
        assert engine.num_decoded == (800 if rows == 1 else 1000)
        assert len(set(engine.seeds)) == len(engine.seeds)
        seeds.append(engine.seeds[:7])
    assert seeds[0] == seeds[1]
    assert streams[0] == streams[1] == ["a", "b1", "b2", "c", "d", "a", "b1"]


def test_a_precision_is_the_shift_that_so_many_tokens_find():
    for precision in (0.05, 0.02):
        for cells in (2, 28):
            tokens = tokens_for(precision, cells)
            assert power_of_call(tokens, cells).shift <= precision
            assert power_of_call(tokens - 1024, cells).shift > precision
    assert tokens_for(0.02, 28) > tokens_for(0.02, 2) > tokens_for(0.05, 2)
    assert tokens_for(1e-6, 2) <= MOST_TOKENS
