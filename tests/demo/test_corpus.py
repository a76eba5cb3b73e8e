"""The generator of the bundled pair's text: the same everywhere, correct, and varied."""

import ast
import re

import pytest

from tools.demo.corpus import REGISTERS, corpus_sha256, sample
from tools.demo.corpus.code import TASKS
from tools.demo.corpus.grammar import Dice, fill, joined, prose
from tools.demo.evaluation import code_blocks


def test_the_corpus_is_the_one_the_shipped_models_were_trained_on(card: dict) -> None:
    assert corpus_sha256(card["seed"]) == card["corpus_sha256"]


@pytest.mark.parametrize("register", REGISTERS)
def test_a_sample_depends_only_on_its_arguments(register: str) -> None:
    assert sample(register, 7, 0) == sample(register, 7, 0)
    assert sample(register, 7, 0) != sample(register, 8, 0)
    assert sample(register, 7, 0) != sample(register, 7, 1)


@pytest.mark.parametrize("register", REGISTERS)
def test_most_prompts_of_a_register_are_different(register: str) -> None:
    prompts = {sample(register, index, 0).turns[0][0] for index in range(500)}
    assert len(prompts) >= 450


@pytest.mark.parametrize("register", ["chat", "creative", "qa"])
def test_prompt_templates_are_completely_filled_in(register: str) -> None:
    for index in range(300):
        for message in sample(register, index, 0).messages():
            assert not re.search(r"[\[\]{}|]|a\* ", message["content"])


@pytest.mark.parametrize("register", ["code", "edit"])
def test_every_code_answer_is_valid_python(register: str) -> None:
    blocks = [
        block
        for index in range(600)
        for _, answer in sample(register, index, 0).turns
        for block in code_blocks(answer)
    ]
    assert len(blocks) > 100
    for block in blocks:
        ast.parse(block)


def test_generated_functions_can_be_defined_and_run() -> None:
    for index in range(200):
        for name, make in TASKS.items():
            function = make(Dice("run", name, index)).function
            scope: dict = {}
            exec(function.source(hints=True, docstring=True), scope)
            assert callable(scope[function.name])
            if name == "list":
                scope[function.name]([-3, 0, 2, 5, 30])


def test_a_generated_story_keeps_the_name_of_its_hero() -> None:
    stories = [sample("creative", index, 0) for index in range(200)]
    whole = [s for s in stories if s.category == "story-lost" and len(s.turns) == 1]
    assert whole
    for story in whole:
        first, second = story.turns[0][1].split("\n\n")
        names = re.findall(r"\b[A-Z][a-z]+\b", first)
        assert any(name in second for name in names)


def test_generated_edits_change_the_given_text() -> None:
    """Rarely a typo swaps two equal letters, or a number is replaced by itself."""
    conversations = [sample("edit", index, 0) for index in range(300)]
    changed = [c for c in conversations if c.category not in ("first", "last")]
    same = [c for c in changed if c.turns[0][1] in c.turns[0][0]]
    assert len(same) <= 0.02 * len(changed)


def test_prompt_templates_fill_choices_slots_and_articles() -> None:
    text = fill("a* {thing} and a* [hat|hat]", Dice("x"), {"thing": "apple"})
    assert text == "an apple and a hat"


def test_a_sentence_begins_with_a_capital_except_after_a_quoted_question() -> None:
    text = prose('she left. "why?" he asked. "go." nobody went.', Dice("x"), {})
    assert text == 'She left. "Why?" he asked. "Go." Nobody went.'


def test_corpus_lists_are_joined_with_commas_and_one_and() -> None:
    assert joined(["a"]) == "a"
    assert joined(["a", "b", "c"]) == "a, b and c"


def test_dice_draw_distinct_items() -> None:
    assert sorted(Dice("x").some([1, 2, 3, 4], 4)) == [1, 2, 3, 4]
