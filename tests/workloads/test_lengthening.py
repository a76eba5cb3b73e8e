"""Prompts lengthened with real text: length, order, and unchanged parts."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from specbench.errors import UsageError, WorkloadError
from specbench.inputs.lengthening import INTRODUCTION, SEPARATOR, TextSource, lengthen
from specbench.inputs.workloads import Workload, find_workloads, load_workload
from specbench.records import Message, Prompt
from specbench.shipped import PACKAGE, shipped

DEMO = PACKAGE / "demo" / "workloads"
GENERAL = shipped("workloads")


def prompt_of(name: str, text: str) -> Prompt:
    return Prompt(id=name, turns=((Message(role="user", content=text),),))


def workload_of(name: str, *prompts: Prompt) -> Workload:
    return Workload(name=name, path=Path(name), sha256=name, prompts=prompts)


def source_of(*workloads: Workload, seed: int = 0) -> TextSource:
    return TextSource(workloads=workloads, seed=seed)


def words(prompt: Prompt) -> int:
    """Counts a token per word, and three tokens per message for the template."""
    return sum(3 + len(message.content.split()) for message in prompt.turns[0])


def characters(prompt: Prompt) -> int:
    return sum(len(message.content) for message in prompt.turns[0])


class Counter:
    """Counts with another counter, and records the number of calls."""

    def __init__(self, count) -> None:
        self.count = count
        self.calls = 0

    def __call__(self, prompt: Prompt) -> int:
        self.calls += 1
        return self.count(prompt)


class DemoTokens:
    """The bundled pair's own tokens, under its chat template."""

    def __init__(self) -> None:
        self.inner = Tokenizer.from_file(str(PACKAGE / "demo/models/target/tokenizer.json"))

    def __call__(self, prompt: Prompt) -> int:
        turns = (f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in prompt.turns[0])
        return len(self.inner.encode("".join(turns) + "<|im_start|>assistant\n"))


@pytest.fixture(scope="module")
def demo_tokens() -> DemoTokens:
    return DemoTokens()


def context_of(longer: Prompt, prompt: Prompt) -> str:
    """The text between introduction and question of a single-message prompt."""
    head, tail = f"{INTRODUCTION}\n\n", f"\n\n{SEPARATOR}\n\n{prompt.turns[0][-1].content}"
    content = longer.turns[0][-1].content
    assert content.startswith(head)
    assert content.endswith(tail)
    return content[len(head) : -len(tail)]


def numbered(name: str, sentences: int) -> Prompt:
    """One paragraph of sentences of five words."""
    return prompt_of(name, " ".join(f"The {name} sentence number {i}." for i in range(sentences)))


POOL = workload_of("pool", *(numbered(name, 60) for name in "abcdefgh"))
QUESTION = prompt_of("q", "What is the capital of Peru?")


@pytest.mark.parametrize("num_tokens", [20, 21, 50, 512, 1000, 2000, 4096])
def test_the_first_turn_has_98_to_100_percent_of_the_tokens(num_tokens):
    longer = lengthen(QUESTION, num_tokens, source_of(POOL), words)
    assert 0.98 * num_tokens <= words(longer) <= num_tokens


def test_the_length_of_a_worked_example_is_met():
    # 3 for the template, 2 for "Earlier material:", 1 for "---", 6 for the question: of 50
    # tokens 38 are left, and less than 49 is too few: 37 or 38 words of the first text.
    longer = lengthen(QUESTION, 50, source_of(workload_of("w", numbered("a", 60))), words)
    text = context_of(longer, QUESTION)
    assert text.split() == numbered("a", 60).turns[0][0].content.split()[: len(text.split())]
    assert len(text.split()) in (37, 38)


@pytest.mark.sampled(one_in=2, every=["folder", "num_tokens"])
@pytest.mark.slow
@pytest.mark.parametrize("folder", [DEMO, GENERAL], ids=["embedded", "general"])
@pytest.mark.parametrize("num_tokens", [512, 4096])
def test_shipped_prompts_meet_the_length_in_the_models_tokens(folder, num_tokens, demo_tokens):
    for name in find_workloads(folder):
        workload = load_workload(name, folder=folder)
        source = TextSource.starting_with(workload, seed=0)
        for prompt in workload.prompts[::16]:
            counter = Counter(demo_tokens)
            longer = lengthen(prompt, num_tokens, source, counter)
            tokens = demo_tokens(longer)
            assert tokens <= num_tokens or longer is prompt
            assert tokens >= 0.98 * num_tokens
            assert counter.calls <= 12


def test_lengthening_to_32k_tokens_takes_at_most_8_counts(demo_tokens):
    workload = load_workload("qa", folder=GENERAL)
    counter = Counter(demo_tokens)
    prompt = workload.prompts[0]
    longer = lengthen(prompt, 32768, TextSource.starting_with(workload, seed=0), counter)
    assert 0.98 * 32768 <= demo_tokens(longer) <= 32768
    assert counter.calls <= 8


def test_lengthening_uneven_text_takes_at_most_3_counts_per_halving():
    def uneven(prompt: Prompt) -> int:
        content = prompt.turns[0][0].content
        return len(content) + 10**9 * content.count("#")

    dense = prompt_of("a", " ".join(["word"] * 2000) + " #" * 200 + " word" * 40_000)
    counter = Counter(uneven)
    longer = lengthen(QUESTION, 20_000, source_of(workload_of("w", dense)), counter)
    assert 10_000 < uneven(longer) <= 20_000  # one "#" more would be too much
    assert counter.calls <= 1 + 3 * 18  # 2 ** 18 characters


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_call_gives_the_same_prompt(seed):
    first, second = (lengthen(QUESTION, 900, source_of(POOL, seed=seed), words) for _ in range(2))
    assert first == second


def test_another_seed_gives_another_context():
    longer = (lengthen(QUESTION, 900, source_of(POOL, seed=seed), words) for seed in range(5))
    assert len({context_of(prompt, QUESTION) for prompt in longer}) > 1


def test_prompts_of_a_workload_are_lengthened_with_different_texts():
    workload = load_workload("summarize", folder=GENERAL)
    source = TextSource.starting_with(workload, seed=3)
    starts = {next(source.texts(prompt)) for prompt in workload.prompts}
    assert len(starts) == len(workload.prompts)


def test_only_the_first_user_message_changes():
    system = Message(role="system", content="Be brief.")
    history = (
        system,
        Message(role="user", content="Weather in Oslo?"),
        Message(role="assistant", content="", extra={"tool_calls": [{"id": "c1"}]}),
        Message(role="tool", content='{"sky": "clear"}', extra={"tool_call_id": "c1"}),
        Message(role="user", content="And is it warm?"),
    )
    follow_up = (Message(role="user", content="And tomorrow?"),)
    prompt = Prompt(
        id="p",
        turns=(history, follow_up),
        tools=({"type": "function"},),
        template_args={"enable_thinking": False},
        category="weather",
    )
    longer = lengthen(prompt, 400, source_of(POOL), words)
    assert 392 <= words(longer) <= 400
    assert longer.turns[0][1].content.endswith(f"\n\n{SEPARATOR}\n\nWeather in Oslo?")
    restored = (history[0], history[1], *longer.turns[0][2:])
    assert replace(longer, turns=(restored, *longer.turns[1:])) == prompt


def test_a_prompt_is_never_lengthened_with_its_own_text():
    document = "The bridge was closed in May."
    prompt = prompt_of("a", f"Summarise this.\n\n{document}")
    other = prompt_of("b", f"Translate this.\n\n{document}\n\nInto Greek, please.")
    source = source_of(workload_of("w", prompt, other))
    assert next(source.texts(prompt)) == "Translate this.\n\nInto Greek, please."


def test_answers_of_a_history_are_text_and_system_messages_are_not():
    roles = {"system": "Be brief.", "user": "Why?", "assistant": "Because.", "tool": "42"}
    other = Prompt(id="b", turns=(tuple(Message(role=r, content=c) for r, c in roles.items()),))
    source = source_of(workload_of("w", other))
    assert next(source.texts(QUESTION)) == "Why?\n\nBecause.\n\n42"


def test_used_up_text_continues_with_other_workloads_and_then_in_another_order():
    workload = workload_of("own", QUESTION, *(prompt_of(f"own {i}", f"own {i}") for i in range(6)))
    more = workload_of("more", *(prompt_of(f"more {i}", f"more {i}") for i in range(6)))
    texts = source_of(workload, more).texts(QUESTION)
    first, second = (list(islice(texts, 12)) for _ in range(2))
    for lap in (first, second):
        assert sorted(lap[:6]) == [f"own {i}" for i in range(6)]
        assert sorted(lap[6:]) == [f"more {i}" for i in range(6)]
    assert first != second
    assert 490 <= words(lengthen(QUESTION, 500, source_of(workload, more), words)) <= 500


def test_a_shipped_workload_is_its_own_first_source_and_counted_once():
    workload = load_workload("edit", folder=GENERAL)
    names = [w.name for w in TextSource.starting_with(workload, seed=0).workloads]
    assert names == ["edit", *(name for name in find_workloads(GENERAL) if name != "edit")]
    embedded = load_workload("edit", folder=DEMO)
    names = [w.name for w in TextSource.starting_with(embedded, seed=0).workloads]
    assert names == ["demo edit", *find_workloads(GENERAL)]


def test_a_long_prompt_is_unchanged_after_one_count():
    for num_tokens in (8, 9):  # 9 tokens; 8 is less, 9 is just met
        counter = Counter(words)
        assert lengthen(QUESTION, num_tokens, source_of(POOL), counter) is QUESTION
        assert counter.calls == 1


def test_a_context_too_short_for_the_wrapper_leaves_the_prompt_unchanged():
    assert lengthen(QUESTION, 12, source_of(POOL), words) is QUESTION  # 9 + 3, and no text
    assert words(lengthen(QUESTION, 13, source_of(POOL), words)) == 13


def test_a_first_turn_without_a_user_message_is_unchanged():
    prompt = Prompt(id="p", turns=((Message(role="tool", content="42"),),))
    assert lengthen(prompt, 500, source_of(POOL), words) is prompt


@pytest.mark.parametrize("num_tokens", [0, -512])
def test_a_context_of_no_tokens_is_refused(num_tokens):
    with pytest.raises(UsageError, match=f"{num_tokens} tokens.*1"):
        lengthen(QUESTION, num_tokens, source_of(POOL), words)


def test_a_single_prompt_cannot_be_lengthened():
    source = source_of(workload_of("w", QUESTION))
    with pytest.raises(WorkloadError, match="prompt q"):
        lengthen(QUESTION, 500, source, words)


def ends(text: str, prompt: Prompt, num_tokens: int) -> str:
    """The last characters of the context if `text` is all there is, a token per character."""
    longer = lengthen(
        prompt, num_tokens, source_of(workload_of("w", prompt_of("a", text))), characters
    )
    assert 0.98 * num_tokens <= characters(longer) <= num_tokens
    return context_of(longer, prompt)


def test_text_ends_with_a_paragraph_else_a_sentence_else_a_word():
    def filled(unit: str) -> Iterator[str]:
        return islice(iter(lambda: unit, ""), 2000 // len(unit))

    paragraphs = "\n\n".join(filled("Twenty letters. Here."))
    sentences = " ".join(filled("Twenty letters, here."))
    word_list = " ".join(filled("letters"))
    assert ends(paragraphs, QUESTION, 1500).endswith("letters. Here.")
    for num_tokens in range(1500, 1520):
        assert ends(sentences, QUESTION, num_tokens).endswith("letters, here.")
        assert ends(word_list, QUESTION, num_tokens).endswith(" letters")


def test_text_without_spaces_is_cut_at_the_exact_length():
    for num_tokens in (*range(31, 50), 1500):  # 30 without text; below 50 each one counts
        text = ends("\u6587" * 2000, prompt_of("q", "Why?"), num_tokens)
        assert re.fullmatch("\u6587+", text)
