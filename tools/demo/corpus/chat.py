"""Chat: advice, explanations, comparisons and ideas, with follow-up questions."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tools.demo.corpus.conversation import CorpusConversation
from tools.demo.corpus.grammar import Dice, fill, joined, prose

_ORDINALS = ("first", "second", "third", "fourth", "fifth")

_LEADS = (
    "",
    "",
    "",
    "Hello! ",
    "Hi there. ",
    "Good morning. ",
    "I could use some help. ",
    "My [sister|brother|neighbour|teacher] told me to ask you. ",
    "I have a [free|quiet] afternoon. ",
    "I am [new to this|not very patient]. ",
    "Quick question. ",
    "A friend of mine wants to know this. ",
)
_HOWTO_ASKS = (
    "How do I {task}?",
    "How can I {task}?",
    "I want to {task}. Where do I start?",
    "What is the best way to {task}?",
    "Can you [explain|tell me|show me] how to {task}?",
    "Please teach me how to {task}.",
    "I have never tried to {task}. What should I do?",
    "What are the steps to {task}?",
    "I would like to {task} [this weekend|tomorrow|with my family]. Any advice?",
    "Is it hard to {task}?",
)
_FORMS = {
    "prose": ("", "", " Explain it step by step.", " Please take your time."),
    "list": (
        " Answer with a numbered list.",
        " Please number the steps.",
        " A list would be great.",
    ),
    "brief": (" Keep it short.", " Be brief, please.", " One sentence is enough."),
    "three": (" Just the first three steps, please.", " Only tell me the first three steps."),
}
_SYSTEMS = {
    "prose": (None, None, None, "You are a [friendly|helpful|patient] assistant."),
    "list": (
        None,
        None,
        "You like clear lists.",
        "You are a [friendly|helpful|patient] assistant.",
    ),
    "brief": (None, None, "You are a busy assistant.", "You are a [friendly|helpful] assistant."),
    "three": (None, None, "You are a [friendly|helpful|patient] assistant."),
}
_OPENERS = (
    "[Sure|Of course|Certainly|Gladly]! Here is [a simple|an easy|a good] way to {task}.",
    "[That is easier than it looks|It is not hard|You can do it].",
    "To {task}, [go one step at a time|take your time|you need {need}].",
    "[Good idea|Good question|With pleasure]! You will need {need}.",
)
_CLOSERS = (
    "",
    "",
    "It takes {time}.",
    "[My advice|One tip|A small tip]: {tip}.",
    "[Good luck|Have fun|Enjoy it]!",
    "[Remember one thing|Keep in mind]: {tip}.",
)


@cache
def _data() -> dict[str, list[dict[str, Any]]]:
    text = Path(__file__).with_name("chat.yaml").read_text(encoding="utf-8")
    data: dict[str, list[dict[str, Any]]] = yaml.safe_load(text)
    return data


def sample(dice: Dice) -> CorpusConversation:
    """One conversation of the chat register."""
    kind = dice.pick(("howto", "howto", "howto", "howto", "explain", "compare", "suggest"))
    if kind == "howto":
        return _howto(dice)
    if kind == "explain":
        return _explain(dice)
    return _compare(dice) if kind == "compare" else _suggest(dice)


def _howto(dice: Dice) -> CorpusConversation:
    topic = dice.pick(_data()["howto"])
    ask = dice.pick(_HOWTO_ASKS)
    form = dice.pick(("prose", "prose", "list", "brief", "three"))
    slots = {name: topic[name] for name in ("task", "need", "time", "tip")}
    steps = [fill(step, dice, {}) for step in topic["steps"]]
    user = prose(dice.pick(_LEADS) + ask + dice.pick(_FORMS[form]), dice, slots)
    turns = [(user, _steps_as(form, steps, slots, dice))]
    if dice.chance(0.45):
        turns.append(_howto_follow_up(form, steps, slots, dice))
    system = dice.pick(_SYSTEMS[form])
    return CorpusConversation(
        category=f"howto-{form}",
        topic=topic["task"],
        phrasing=f"{ask} {form}",
        turns=tuple(turns),
        system=None if system is None else fill(system, dice, {}),
    )


def _steps_as(form: str, steps: list[str], slots: dict[str, str], dice: Dice) -> str:
    if form == "list":
        opener = fill("[Here are the steps|Sure, here is the list|These are the steps]:", dice, {})
        return "\n".join([opener, *(f"{n}. {s.capitalize()}." for n, s in enumerate(steps, 1))])
    if form == "brief":
        return prose(f"[In short|Briefly]: {joined(steps, 'and then')}.", dice, {})
    if form == "three":
        first, second, third = steps[:3]
        return prose(
            f"[First,|To begin,|Start like this:] {first}. [Second|Then|Next], {second}. "
            f"[Third|After that|Finally for now], {third}.",
            dice,
            {},
        )
    body = [
        f"[First|To begin|First of all], {steps[0]}.",
        f"[Then|Next,|After that,|Now] {steps[1]}.",
        f"[Then|When that is done,|The next step:|After a moment,] {steps[2]}.",
        f"[Next,|Now|From there,|After that,] {steps[3]}.",
        f"[Finally|At the end|Last of all], {steps[4]}.",
    ]
    return prose(" ".join([dice.pick(_OPENERS), *body, dice.pick(_CLOSERS)]), dice, slots)


def _howto_follow_up(
    form: str, steps: list[str], slots: dict[str, str], dice: Dice
) -> tuple[str, str]:
    shown = 3 if form == "three" else 5
    kind = dice.pick(("time", "need", "tip", "again", "again", "thanks"))
    if kind == "again":
        n = dice.below(shown)
        user = f"What was the {_ORDINALS[n]} step [again|once more]?"
        answer = f"The {_ORDINALS[n]} step [is|was] this: {steps[n]}."
    elif kind == "thanks":
        user = "[Thanks|Thank you|Thanks a lot|Great, thank you]!"
        answer = "You are welcome! [Good luck|Have fun|Let me know how it goes]."
    elif kind == "time":
        user = "How [long|much time] does it take?"
        answer = "[It takes|You need|Plan for|That takes] {time}."
    elif kind == "need":
        user = "What do I need [for it|for that|to have ready]?"
        answer = "[You need|Get|Have ready:] {need}."
    else:
        user = "[Do you have a tip|Any tips|What should I watch out for]?"
        answer = "[Yes|One thing|A good tip]: {tip}."
    return prose(user, dice, slots), prose(answer, dice, slots)


def _explain(dice: Dice) -> CorpusConversation:
    topic = dice.pick(_data()["explain"])
    asks = (
        "{question}?",
        "Can you [explain|tell me] {ask}?",
        "My [son|daughter|class] wants to know {ask}.",
        "I never understood {ask}. Do you know?",
        "Please explain {ask} [in simple words|to a child|briefly].",
        "I was wondering {ask}.",
    )
    ask = dice.pick(asks)
    first, second, third = topic["say"]
    slots = {"ask": topic["ask"], "question": topic["question"]}
    user = prose(dice.pick(_LEADS) + ask, dice, slots)
    answer = (
        f"[|Good question! |Here is the short answer. |That is a nice question. |Gladly. ]"
        f"{first}. [|In fact, |Besides, |Now ]{second}[. And |. |, and ]{third}."
        "[| That is all there is to it.| I hope that helps.| Does that make sense?]"
    )
    turns = [(user, prose(answer, dice, {}))]
    if dice.chance(0.4):
        follow = "[Can you say that in one sentence|And in one sentence|What is the short version]?"
        turns.append((prose(follow, dice, {}), prose(f"In short: {third}.", dice, {})))
    return CorpusConversation(
        category="explain", topic=topic["ask"], phrasing=ask, turns=tuple(turns)
    )


def _compare(dice: Dice) -> CorpusConversation:
    topic = dice.pick(_data()["compare"])
    asks = (
        "What is better, {a} or {b}?",
        "Should I choose {a} or {b}?",
        "I cannot decide between {a} and {b}. What do you think?",
        "{a} or {b}?",
        "Can you compare {a} and {b} for me?",
        "What speaks for {a} and what for {b}?",
    )
    ask = dice.pick(asks)
    swapped = dice.chance(0.5)
    slots = {
        "a": topic["b" if swapped else "a"],
        "b": topic["a" if swapped else "b"],
        "for_a": topic["for_b" if swapped else "for_a"],
        "for_b": topic["for_a" if swapped else "for_b"],
    }
    user = prose(dice.pick(_LEADS) + ask, dice, slots)
    answer = (
        "[It depends on what you need.|Both have their place.|That depends.|There is no wrong "
        "choice here.] {a} [is good for|suits|is the right choice for] {for_a}[, while|. On the "
        "other hand,|, but] {b} [is better for|is made for|is the one for] {for_b}."
    )
    turns = [(user, prose(answer, dice, slots))]
    if dice.chance(0.5):
        first = dice.chance(0.5)
        wish = "{for_a}" if first else "{for_b}"
        choice = "{a}" if first else "{b}"
        follow = f"[I care most about|What matters to me is|I mostly think of] {wish}."
        reply = f"[Then|In that case] [I would choose|take|my advice is] {choice}."
        turns.append((prose(follow, dice, slots), prose(reply, dice, slots)))
    return CorpusConversation(
        category="compare", topic=topic["a"], phrasing=ask, turns=tuple(turns)
    )


def _suggest(dice: Dice) -> CorpusConversation:
    topic = dice.pick(_data()["suggest"])
    count = dice.pick(("two", "three", "three", "four"))
    number = ("two", "three", "four").index(count) + 2
    asks = (
        "Can you give me {count} ideas for {what}?",
        "I need {count} ideas for {what}.",
        "Please suggest {count} things for {what}.",
        "What comes to your mind for {what}? {count} ideas, please.",
        "Do you have {count} ideas for {what}?",
    )
    ask = dice.pick(asks)
    slots = {"what": topic["what"], "count": count}
    ideas = dice.some(topic["ideas"], number)
    user = prose(dice.pick(_LEADS) + ask, dice, slots)
    opener = prose("[Here are {count} ideas|Sure, {count} ideas|Try these]:", dice, slots)
    if dice.chance(0.5):
        answer = "\n".join([opener, *(f"- {idea}" for idea in ideas)])
    else:
        answer = f"{opener} {joined(ideas)}."
    turns = [(user, answer)]
    if dice.chance(0.4):
        pick = dice.pick(ideas)
        follow = "Which one [would you choose|do you like best]?"
        reply = "[I would choose this one|My favourite is this|I like this one best]: " + pick + "."
        turns.append((prose(follow, dice, {}), prose(reply, dice, {})))
    return CorpusConversation(
        category="ideas", topic=topic["what"], phrasing=ask, turns=tuple(turns)
    )
