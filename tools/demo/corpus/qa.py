"""Questions of fact: short answers from a finite table, and questions that follow from them."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tools.demo.corpus.conversation import CorpusConversation
from tools.demo.corpus.grammar import Dice, fill, prose


class QuizFact(NamedTuple):
    """One question in several wordings, with its answer in a word and in a sentence."""

    topic: str
    asks: tuple[str, ...]
    short: str
    full: str
    again: str  # how to ask the same of another topic: "And of Japan?"


_LEADS = (
    "", "", "", "", "Quick question: ", "Quiz time! ", "Do you know this? ", "Tell me: ",
    "I forgot. ", "For a crossword: ", "My son asks: ", "Help me with my homework. ",
)  # fmt: skip
_SHORT = (" One word, please.", " Just the answer.", " Short answer, please.", " In one word?")
_SYSTEMS = (None, None, None, "You answer questions of fact.", "You are a [quiz master|librarian].")
_BRIEF = ("Answer in one word.", "Give only the answer.", "Answer as briefly as you can.")


@cache
def _data() -> dict[str, list[Any]]:
    text = Path(__file__).with_name("qa.yaml").read_text(encoding="utf-8")
    data: dict[str, list[Any]] = yaml.safe_load(text)
    return data


def sample(dice: Dice) -> CorpusConversation:
    """One conversation of the qa register: one to three questions."""
    make = dice.pick(_KINDS)
    fact = make(dice)
    ask = dice.pick(fact.asks)
    by_system = dice.chance(0.2)
    is_short = by_system or dice.chance(0.3)
    wish = dice.pick(_SHORT) if is_short and not by_system else ""
    turns = [(prose(dice.pick(_LEADS) + ask + wish, dice, {}), _answer(fact, is_short))]
    last = fact
    for _ in range(dice.pick((0, 1, 1, 2))):
        following = make(dice) if dice.chance(0.6) else dice.pick(_KINDS)(dice)
        if following.topic == last.topic:
            continue
        goes_on = following.again and _shape(following) == _shape(last)
        question = following.again if goes_on else dice.pick(following.asks)
        turns.append((prose(question, dice, {}), _answer(following, is_short)))
        last = following
    system = dice.pick(_BRIEF) if by_system else dice.pick(_SYSTEMS)
    return CorpusConversation(
        category=make.__name__.strip("_"),
        topic=fact.topic,
        phrasing=f"{_shape(fact)} {fact.asks.index(ask)} {is_short}",
        turns=tuple(turns),
        system=None if system is None else fill(system, dice, {}),
    )


def _answer(fact: QuizFact, is_short: bool) -> str:
    return f"{fact.short}." if is_short else fact.full


def _shape(fact: QuizFact) -> str:
    return fact.topic.split()[0]


def _capital(dice: Dice) -> QuizFact:
    country, capital, _, _ = dice.pick(_data()["countries"])
    if dice.chance(0.3):
        return QuizFact(
            f"capital-of {capital}",
            (
                f"{capital} is the capital of which country?",
                f"Which country has {capital} as its capital?",
            ),
            country,
            f"{capital} is the capital of {country}.",
            f"And {capital}?",
        )
    return QuizFact(
        f"capital {country}",
        (
            f"What is the capital of {country}?",
            f"Which city is the capital of {country}?",
            f"Name the capital of {country}.",
            f"What is {country}'s capital called?",
        ),
        capital,
        f"The capital of {country} is {capital}.",
        f"And [the capital of|what about] {country}?",
    )


def _country(dice: Dice) -> QuizFact:
    country, _, continent, language = dice.pick(_data()["countries"])
    if dice.chance(0.5):
        return QuizFact(
            f"continent {country}",
            (
                f"On which continent is {country}?",
                f"Which continent does {country} belong to?",
                f"Where in the world is {country}?",
            ),
            continent,
            f"{country} is in {continent}.",
            f"And [where is|what about] {country}?",
        )
    return QuizFact(
        f"language {country}",
        (
            f"Which language is spoken in {country}?",
            f"What is the main language of {country}?",
            f"What do most people in {country} speak?",
        ),
        language,
        f"Most people in {country} speak {language}.",
        f"And in {country}?",
    )


def _element(dice: Dice) -> QuizFact:
    name, symbol, number = dice.pick(_data()["elements"])
    if dice.chance(0.5):
        return QuizFact(
            f"symbol {name}",
            (
                f"What is the chemical symbol of {name}?",
                f"Which symbol stands for {name}?",
                f"How is {name} written in chemistry?",
            ),
            symbol,
            f"The chemical symbol of {name} is {symbol}.",
            f"And [of|for] {name}?",
        )
    return QuizFact(
        f"number {name}",
        (
            f"What is the atomic number of {name}?",
            f"Which number does {name} have in the periodic table?",
            f"How many protons does {name} have?",
        ),
        str(number),
        f"The atomic number of {name} is {number}.",
        f"And [of|for] {name}?",
    )


def _animal(dice: Dice) -> QuizFact:
    animal, young, family, legs = dice.pick(_data()["animals"])
    a_animal, a_family = fill(f"a* {animal}", dice, {}), fill(f"a* {family}", dice, {})
    kind = dice.pick(("young", "young", "family", "legs"))
    if kind == "young":
        return QuizFact(
            f"young {animal}",
            (
                f"What is a young {animal} called?",
                f"What do you call the young of {a_animal}?",
                f"What is the word for the young of {a_animal}?",
            ),
            young.capitalize(),
            fill(f"A young {animal} is called a* {young}.", dice, {}),
            f"And a young {animal}?",
        )
    if kind == "family":
        return QuizFact(
            f"family {animal}",
            (f"What kind of animal is {a_animal}?", f"Which class of animals has the {animal}?"),
            family.capitalize(),
            fill(f"a* {animal} is {a_family}.", dice, {}).capitalize(),
            f"And {a_animal}?",
        )
    return QuizFact(
        f"legs {animal}",
        (f"How many legs does {a_animal} have?", f"What is the number of legs of {a_animal}?"),
        legs.capitalize(),
        fill(f"a* {animal} has {legs} legs.", dice, {}).capitalize(),
        f"And {a_animal}?",
    )


def _work(dice: Dice) -> QuizFact:
    work, author, verb = dice.pick(_data()["works"])
    return QuizFact(
        f"{verb} {work}",
        (f"Who {verb} {work}?", f"Do you know who {verb} {work}?", f"By whom is {work}?"),
        author,
        f"{author} {verb} {work}.",
        f"And who {verb} {work}?",
    )


def _word(dice: Dice) -> QuizFact:
    kind = dice.pick(("opposites", "opposites", "plurals", "pasts"))
    pair = dice.pick(_data()[kind])
    if kind == "opposites" and dice.chance(0.5):
        pair = pair[::-1]
    word, answer = pair
    name = {"opposites": "opposite", "plurals": "plural", "pasts": "past tense"}[kind]
    return QuizFact(
        f"{kind} {word}",
        (
            f'What is the {name} of "{word}"?',
            f'Give me the {name} of "{word}".',
            f'I need the {name} of "{word}".',
        ),
        answer.capitalize(),
        f'The {name} of "{word}" is "{answer}".',
        f'And of "{word}"?',
    )


def _count(dice: Dice) -> QuizFact:
    part, whole, number = dice.pick(_data()["counts"])
    return QuizFact(
        f"count {part} {whole}",
        (
            f"How many {part} are there in {whole}?",
            f"What is the number of {part} in {whole}?",
            f"How many {part} does {whole} have?",
        ),
        str(number),
        f"There are {number} {part} in {whole}.",
        f"And how many {part} in {whole}?",
    )


def _order(dice: Dice) -> QuizFact:
    kind = dice.pick(("months", "months", "days", "planets"))
    names = _data()[kind]
    place = dice.below(len(names) - 1)
    word, step = dice.pick((("after", 1), ("before", -1)))
    known, answer = (names[place], names[place + 1])[::step]
    noun = kind[:-1]
    return QuizFact(
        f"{word}-{kind} {known}",
        (
            f"Which {noun} comes {word} {known}?",
            f"What {noun} is right {word} {known}?",
            f"Name the {noun} {word} {known}.",
        ),
        answer,
        f"{answer} comes {word} {known}.",
        f"And {word} {known}?",
    )


def _sum(dice: Dice) -> QuizFact:
    a, b = 2 + dice.below(9), 2 + dice.below(9)
    word, value = dice.pick((("plus", a + b), ("times", a * b)))
    return QuizFact(
        f"{word} {a} {b}",
        (f"What is {a} {word} {b}?", f"How much is {a} {word} {b}?", f"Work out {a} {word} {b}."),
        str(value),
        f"{a} {word} {b} is {value}.",
        f"And {a} {word} {b}?",
    )


def _single(dice: Dice) -> QuizFact:
    question, short, full = dice.pick(_data()["singles"])
    return QuizFact(f"single {question}", (question,), short, full, "")


_KINDS: tuple[Callable[[Dice], QuizFact], ...] = (
    _capital, _capital, _country, _element, _animal, _work, _word, _word, _count, _order, _sum,
    _single,
)  # fmt: skip
