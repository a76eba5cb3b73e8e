"""Edit: a text or a function is given, and a small change is asked for."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from tools.demo.corpus.code import TASKS, Task, block, renamed_words
from tools.demo.corpus.conversation import CorpusConversation
from tools.demo.corpus.grammar import Dice, fill, prose


class Change(NamedTuple):
    """A request, the text before it and the text after it."""

    kind: str
    topic: str
    ask: str
    before: str
    after: str


_NAMES = (
    "Anna", "Ben", "Carla", "David", "Eva", "Frank", "Greta", "Henry", "Ida", "Jack", "Kate",
    "Luis", "Maria", "Nick", "Olga", "Paul", "Rita", "Simon", "Tina", "Walter",
)  # fmt: skip
_PLACES = (
    "the library", "the kitchen", "the garden", "the market", "the office", "the station",
    "the museum", "the school", "the park", "the harbour", "the theatre", "the bakery",
)  # fmt: skip
# No adjective and no noun begins with a vowel, so that "a" stays right when one is replaced.
_ADJECTIVES = (
    "golden", "new", "red", "small", "large", "quiet", "broken", "bright", "cheap", "famous",
    "dusty", "warm",
)  # fmt: skip
_TIMES = (
    "every morning", "on Mondays", "in the evening", "after lunch", "twice a week", "before work",
    "at night", "in summer", "on Sundays", "once a month",
)  # fmt: skip
# Each is a verb in the present, the same in the past, and a thing.
_VERBS = (
    ("reads", "read", "book"), ("buys", "bought", "lamp"), ("writes", "wrote", "letter"),
    ("paints", "painted", "chair"), ("finds", "found", "key"), ("sells", "sold", "bicycle"),
    ("cleans", "cleaned", "window"), ("carries", "carried", "box"), ("opens", "opened", "door"),
    ("brings", "brought", "basket"), ("repairs", "repaired", "clock"), ("draws", "drew", "map"),
    ("forgets", "forgot", "wallet"), ("shows", "showed", "picture"), ("keeps", "kept", "notebook"),
    ("wears", "wore", "hat"), ("plays", "played", "guitar"), ("drives", "drove", "truck"),
)  # fmt: skip
_ENDS = (
    ("It VERB {n} euros.", "costs", "cost"),
    ("It VERB {n} minutes.", "takes", "took"),
    ("{n} people VERB outside.", "wait", "waited"),
    ("The way home VERB {n} kilometres long.", "is", "was"),
    ("The weather VERB [cold|fine|terrible].", "is", "was"),
    ("Everybody VERB it.", "likes", "liked"),
    ("Nobody VERB why.", "knows", "knew"),
)
_SYSTEMS = (None, None, None, "You are a careful editor.", "Return only the changed text.")


def sample(dice: Dice) -> CorpusConversation:
    """One conversation of the edit register; some ask for a second change."""
    make = dice.pick(_KINDS)
    change = make(dice)
    layout = dice.pick(("{ask}\n\n{before}", "{before}\n\n{ask}", "{ask}\n{before}"))
    user = layout.format(ask=change.ask, before=change.before)
    turns = [(user, change.after)]
    if "```" not in change.after and dice.chance(0.35):
        renamed = _names_again(change.after, dice)
        if renamed is not None:
            turns.append(renamed)
    return CorpusConversation(
        category=change.kind,
        topic=change.topic,
        phrasing=f"{change.kind} {layout}",
        turns=tuple(turns),
        system=dice.pick(_SYSTEMS),
    )


def _sentences(dice: Dice, *, number: bool = False) -> tuple[list[tuple[str, str]], str]:
    """Two or three sentences, each in the present and in the past, and the person's name."""
    name, other = dice.some(_NAMES, 2)
    first, second = dice.some(_VERBS, 2)
    place, time = dice.pick(_PLACES), dice.pick(_TIMES)
    parts = [
        (f"{name} VERB a {dice.pick(_ADJECTIVES)} {first[2]} [in|near] {place} {time}.", first)
    ]
    if dice.chance(0.7):
        parts.append((f"{other} VERB a {dice.pick(_ADJECTIVES)} {second[2]} there.", second))
    ending = dice.pick([end for end in _ENDS if "{n}" in end[0] or not number])
    parts.append((ending[0], (ending[1], ending[2], "")))
    sentences = []
    for template, (present, past, _) in parts:
        text = fill(template, dice, {"n": str(2 + dice.below(97))})
        sentences.append((text.replace("VERB", present), text.replace("VERB", past)))
    return sentences, name


def _present(sentences: list[tuple[str, str]]) -> str:
    return " ".join(now for now, _ in sentences)


def _past(sentences: list[tuple[str, str]]) -> str:
    return " ".join(sentence for _, sentence in sentences)


def _replace_word(dice: Dice) -> Change:
    sentences, _ = _sentences(dice)
    before = _present(sentences)
    nouns = tuple(noun for _, _, noun in _VERBS)
    old = dice.pick([w for w in (*_ADJECTIVES, *nouns) if f" {w} " in before])
    new = dice.pick([w for w in (_ADJECTIVES if old in _ADJECTIVES else nouns) if w not in before])
    asks = (
        'Replace the word "{old}" with "{new}".',
        'Change "{old}" to "{new}".',
        'Use "{new}" instead of "{old}".',
        'Put "{new}" where it says "{old}".',
    )
    ask = dice.pick(asks).format(old=old, new=new)
    return Change("replace", old, ask, before, renamed_words(before, {old: new}))


def _tense(dice: Dice) -> Change:
    sentences, _ = _sentences(dice)
    if dice.chance(0.6):
        ask = (
            "[Put this into the past tense|Change the tense to the past|Rewrite this in the past]."
        )
        return Change(
            "past", sentences[0][0], fill(ask, dice, {}), _present(sentences), _past(sentences)
        )
    ask = (
        "[Put this into the present tense|Change the tense to the present"
        "|Rewrite this in the present]."
    )
    return Change(
        "present", sentences[0][0], fill(ask, dice, {}), _past(sentences), _present(sentences)
    )


def _names(dice: Dice) -> Change:
    sentences, old = _sentences(dice)
    before = _present(sentences)
    new = dice.pick([name for name in _NAMES if name not in before])
    ask = "[Change the name {old} to {new}|Call {old} {new}|Rename {old} to {new}]."
    after = renamed_words(before, {old: new})
    return Change("name", f"{old} {new}", fill(ask, dice, {"old": old, "new": new}), before, after)


def _names_again(text: str, dice: Dice) -> tuple[str, str] | None:
    """A second request that changes a name in the answer to the first."""
    present = [name for name in _NAMES if name in text]
    if not present:
        return None
    old, new = dice.pick(present), dice.pick([name for name in _NAMES if name not in text])
    ask = "[Now change|Good. Now change|And change] the name {old} to {new}."
    return prose(ask, dice, {"old": old, "new": new}), renamed_words(text, {old: new})


def _typo(dice: Dice) -> Change:
    sentences, name = _sentences(dice)
    after = _present(sentences)
    words = [
        w for w in after.rstrip(".").split(" ") if len(w) > 4 and w.isalpha() and w[0].islower()
    ]
    before = after
    for word in dice.some(words, min(len(words), 1 + dice.below(2))):
        at = 1 + dice.below(len(word) - 2)
        swapped = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        doubled = word[:at] + word[at] + word[at:]
        dropped = word[:at] + word[at + 1 :]
        before = before.replace(word, dice.pick((swapped, doubled, dropped)), 1)
    ask = "[Fix the spelling|Correct the typos|Please fix the spelling mistakes|Correct this text]."
    return Change("typo", name, fill(ask, dice, {}), before, after)


def _number(dice: Dice) -> Change:
    sentences, name = _sentences(dice, number=True)
    before = _present(sentences)
    old = next(word for word in before.split() if word.isdigit())
    new = str(2 + dice.below(97))
    ask = (
        "[Change the number to {new}|Replace {old} by {new}|It should say {new} instead of {old}]."
    )
    after = renamed_words(before, {old: new})
    return Change("number", name, fill(ask, dice, {"old": old, "new": new}), before, after)


def _shape(dice: Dice) -> Change:
    sentences, name = _sentences(dice)
    lines = [now for now, _ in sentences]
    kind = dice.pick(("bullets", "last", "first"))
    if kind == "bullets":
        ask = (
            "[Make this a bulleted list|Turn the sentences into bullets"
            "|Put each sentence on a line with a dash]."
        )
        after = "\n".join(f"- {line}" for line in lines)
    elif kind == "last":
        ask, after = "[Remove|Delete|Leave out] the last sentence.", " ".join(lines[:-1])
    else:
        ask, after = "[Keep only|Return only|Give me only] the first sentence.", lines[0]
    return Change(kind, name, fill(ask, dice, {}), " ".join(lines), after)


def _function(dice: Dice) -> Task:
    return dice.pick(tuple(TASKS.values()))(dice)


def _rename_variable(dice: Dice) -> Change:
    function, topic, _ = _function(dice)
    old = dice.pick([name for name, _ in function.params])
    new = dice.pick([n for n in ("data", "source", "given", "entries", "amounts", "argument", "z")])
    ask = (
        "[Rename the variable {old} to {new}|Rename {old} to {new}"
        "|Use the name {new} instead of {old}]."
    )
    source = function.source(hints=dice.chance(0.3), docstring=False)
    after = renamed_words(source, {old: new})
    ask = fill(ask, dice, {"old": old, "new": new})
    return Change("rename-variable", topic, ask, block(source), block(after))


def _rename_function(dice: Dice) -> Change:
    function, topic, _ = _function(dice)
    new = dice.pick(("helper", "run", "work", "step", "task", "main", "evaluate", "process"))
    ask = (
        "[Rename the function to {new}|Call the function {new}"
        "|Change the function's name to {new}]."
    )
    source = function.source(hints=dice.chance(0.3), docstring=dice.chance(0.3))
    after = renamed_words(source, {function.name: new})
    return Change(
        "rename-function",
        topic,
        fill(ask, dice, {"new": new}),
        block(source),
        block(after),
    )


def _docstring(dice: Dice) -> Change:
    function, topic, _ = _function(dice)
    hints = dice.chance(0.4)
    ask = "[Add a docstring|Please add a docstring|Write a docstring for this function]."
    before = block(function.source(hints=hints, docstring=False))
    after = block(function.source(hints=hints, docstring=True))
    return Change("docstring", topic, fill(ask, dice, {}), before, after)


def _hints(dice: Dice) -> Change:
    function, topic, _ = _function(dice)
    docstring = dice.chance(0.4)
    ask = "[Add type hints|Please add type hints|Give this function type hints]."
    before = block(function.source(hints=False, docstring=docstring))
    after = block(function.source(hints=True, docstring=docstring))
    return Change("type-hints", topic, fill(ask, dice, {}), before, after)


def _bug(dice: Dice) -> Change:
    function, topic, _ = _function(dice)
    good = function.source(hints=False, docstring=dice.chance(0.3))
    broken = replace(
        function, body=(*function.body[:-1], function.body[-1].replace("return ", "retrun "))
    )
    bad = good.replace("):", ")", 1)
    if "retrun" in broken.body[-1] and dice.chance(0.5):
        bad = good.replace(function.body[-1], broken.body[-1])
    ask = "[Fix the syntax error|There is a syntax error, please fix it|This does not run. Fix it]."
    return Change("bug", topic, fill(ask, dice, {}), block(bad), block(good))


_KINDS: tuple[Callable[[Dice], Change], ...] = (
    _replace_word, _tense, _names, _typo, _number, _shape, _rename_variable, _rename_function,
    _docstring, _hints, _bug,
)  # fmt: skip
