"""`specbench verify` reads whole conversations, and what it found is not lost on a full disk."""

import io
import re
from pathlib import Path

import pytest

from specbench.bench import verification
from specbench.engines.builtin import BuiltinEngine
from specbench.errors import ModelError
from specbench.models.tokenizer import ChatTokenizer
from specbench.records import Message
from tests.cli.calls import specbench

pytestmark = pytest.mark.slow  # whole verifications

TALK = ("-w", "talk.jsonl", "--max-new-tokens", "8", "--threads", "1", "--device", "cpu")
GREEDY = ("-k", "2", "--temperature", "0")


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list:
    """The questions of a call, as its collector gets them."""
    seen: list = []
    collector = verification.Collector

    def watched(teacher, questions, *, seed):  # type: ignore[no-untyped-def]
        seen.extend(questions)
        return collector(teacher, questions, seed=seed)

    monkeypatch.setattr(verification, "Collector", watched)
    return seen


def test_verify_asks_a_later_turn_after_the_targets_own_response(
    tiny: Path, questions: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {}
    serve = BuiltinEngine.serve

    def watched(self, requests, work, load):  # type: ignore[no-untyped-def]
        done = serve(self, requests, work, load)
        for request, result in zip(requests, done.results, strict=True):
            answers.setdefault(request.prompt_ids, result.output_ids)
        return done

    monkeypatch.setattr(BuiltinEngine, "serve", watched)
    ran = specbench("verify", "tiny/draft", *GREEDY, *TALK, cwd=tiny)

    assert ran.code == 0, ran.err
    assert "in 3 of 3 answers" in ran.out
    first, second = (question for question in questions if question.conversation)
    (alone,) = (question for question in questions if not question.conversation)
    tokenizer = ChatTokenizer(str(tiny / "target"), revision=None, trust_remote_code=False)
    text = tokenizer.text(answers[first.prompt_ids])
    assert second.id == f"{first.id}, turn 2"
    assert second.conversation == first.conversation
    assert alone.prompt_ids in answers
    talk = (("user", "Hello"), ("assistant", text), ("user", "And then?"))
    history = [Message(role=role, content=text) for role, text in talk]
    assert second.prompt_ids == tokenizer.prompt_ids(history)


def test_sampled_turns_also_follow_the_distribution(tiny: Path) -> None:
    ran = specbench(
        *("verify", "tiny/draft", "-k", "2", "--temperature", "0.7", "--num-tokens", "1000"),
        *TALK,
        cwd=tiny,
    )
    assert ran.code == 0, ran.out


def test_a_later_turn_that_is_too_long_is_omitted_with_a_warning(
    tiny: Path, questions: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = BuiltinEngine.serve

    def refusing(self, requests, work, load):  # type: ignore[no-untyped-def]
        if len(requests[0].prompt_ids) > len(first) > 0:
            raise ModelError("the target's context has 8")
        first.extend(requests[0].prompt_ids)
        return serve(self, requests, work, load)

    first: list[int] = []
    monkeypatch.setattr(BuiltinEngine, "serve", refusing)
    (tiny / "one.jsonl").write_text('{"turns": ["Hello", "And then?"]}\n')
    ran = specbench("verify", "tiny/draft", *GREEDY, "-w", "one.jsonl", *TALK[2:], cwd=tiny)

    assert ran.code == 0, ran.err
    assert len(questions) == 1
    output = " ".join(ran.err.split())
    assert re.search("turn 2 .*context has 8", output)


class FullDisk(io.StringIO):
    """What a full disk is to a writer."""

    def write(self, text: str) -> int:  # noqa: ARG002
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_verdict_that_stdout_cannot_take_is_printed_to_stderr(
    more: tuple[str, ...], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.cli.calls.StringIO", iter_of(FullDisk(), io.StringIO()))
    ran = specbench("verify", "tiny/draft", *GREEDY, *TALK, *more, cwd=tiny)

    assert ran.code == 2
    assert "Traceback" not in ran.err
    assert re.search("tiny/draft: lossless: .*K = 0 .*3 of 3 ", ran.err)
    assert re.search("error: standard output .*: No space left .*free space", ran.err)


def iter_of(*streams: io.StringIO):  # type: ignore[no-untyped-def]
    """Gives one after the other: standard output, then standard error."""
    left = iter(streams)
    return lambda: next(left)
