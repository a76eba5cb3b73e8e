"""Creative: stories whose theme, names, things and numbers are carried to the end, and poems."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tools.demo.corpus.conversation import CorpusConversation
from tools.demo.corpus.grammar import Dice, Slots, fill, prose

_PRONOUNS = {
    "she": {"he": "she", "him": "her", "his": "her"},
    "he": {"he": "he", "him": "him", "his": "his"},
}
_SETTINGS = {
    "sea": "by the sea",
    "forest": "in a forest",
    "mountain": "in the mountains",
    "city": "in a city",
    "desert": "in the desert",
    "village": "in a village",
}
_STORY_ASKS = (
    "Write a [short story|story|little story] about {about}.",
    "Tell me a story about {about}.",
    "I would like to [hear|read] a story about {about}.",
    "Can you make up a tale about {about}?",
    "Invent a [bedtime story|fairy tale|short tale] about {about}.",
    "Please write something about {about}.",
)
_DETAILS = (
    "",
    " [The hero is called|The main person is|Name the hero] {hero}.",
    " [Set it|It should take place|It happens] {setting}.",
    " [There should be|Include|Please mention] a* {material} {thing}.",
    " {hero} should live in {home}.",
    " [Bring in|Do not forget] a* {beast} called {friend}.",
    " Part of it should happen at {far}.",
    " The hero, {hero}, is a* {trade}.",
)
_MOODS = (
    "",
    "",
    " [Make it|It should be|Give it] a {mood} [story|one].",
    " I want a {mood} ending.",
)
_POEM_ASKS = (
    "Write a [poem|short poem] about a* {material} {thing}.",
    "Can you write a poem for {hero}, who is a* {trade}?",
    "I need a poem about {home} and {far}.",
    "Please write some verses about {weather} {setting}.",
    "A poem about {hero} and a* {thing}, please.",
    "Make a rhyme about a* {trade} and a* {beast}.",
)
_SYSTEMS = (
    None,
    None,
    None,
    "You are a storyteller.",
    "You are a [poet|writer] of [quiet|old] tales.",
)


@cache
def _data() -> dict[str, Any]:
    text = Path(__file__).with_name("creative.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.safe_load(text)
    return data


def sample(dice: Dice) -> CorpusConversation:
    """One conversation of the creative register."""
    theme = dice.pick(tuple(_SETTINGS))
    slots = _world(theme, dice)
    kind = dice.pick(("story", "story", "story", "continue", "poem"))
    if kind == "poem":
        return _poem(theme, slots, dice)
    return _story(theme, slots, dice) if kind == "story" else _continued(theme, slots, dice)


def _world(theme: str, dice: Dice) -> dict[str, str | list[str]]:
    """The values of a story's slots, drawn once; sounds and comparisons are lists to draw from."""
    data = _data()
    world = data["themes"][theme]
    hero_is, friend_is = dice.pick(("she", "he")), dice.pick(("she", "he"))
    hero = dice.pick(data[hero_is])
    friend = dice.pick([name for name in data[friend_is] if name != hero])
    slots: dict[str, str | list[str]] = {
        name: dice.pick(world[f"{name}s"])
        for name in ("trade", "home", "far", "weather", "beast", "thing", "road")
    }
    slots |= {"sound": world["sounds"], "image": world["images"]}
    slots |= {"hero": hero, **_PRONOUNS[hero_is]}
    slots |= {"friend": friend, **{f"f_{k}": v for k, v in _PRONOUNS[friend_is].items()}}
    slots |= {name: dice.pick(data[f"{name}s"]) for name in ("material", "number", "mood")}
    slots["setting"] = _SETTINGS[theme]
    return slots


def _beats(plot: dict[str, Any], slots: Slots, dice: Dice) -> list[str]:
    return [prose(dice.pick(beat), dice, slots) for beat in plot["beats"]]


def _ending(slots: Slots, dice: Dice) -> str:
    return prose(dice.pick(_data()["endings"][slots["mood"]]), dice, slots)


def _story(theme: str, slots: Slots, dice: Dice) -> CorpusConversation:
    name = dice.pick(tuple(_data()["plots"]))
    plot = _data()["plots"][name]
    ask, detail = dice.pick(_STORY_ASKS), dice.pick(_DETAILS)
    about = fill(dice.pick(plot["about"]), dice, slots)
    user = prose(ask + detail + dice.pick(_MOODS), dice, {**slots, "about": about})
    beats = [*_beats(plot, slots, dice), _ending(slots, dice)]
    if dice.chance(0.35):
        stop = 3 + dice.below(2)
        go_on = "[Go on.|Please continue.|And then?|What happens next?]"
        first, rest = beats[:stop], beats[stop:]
        turns = [(user + " Start with the first half.", " ".join(first))]
        turns.append((prose(go_on, dice, {}), " ".join(rest)))
    else:
        turns = [(user, "\n\n".join([" ".join(beats[:3]), " ".join(beats[3:])]))]
    return CorpusConversation(
        category=f"story-{name}",
        topic=f"{name} {theme}",
        phrasing=ask + detail,
        turns=tuple(turns),
        system=_system(dice),
    )


def _continued(theme: str, slots: Slots, dice: Dice) -> CorpusConversation:
    name = dice.pick(tuple(_data()["plots"]))
    beats = _beats(_data()["plots"][name], slots, dice)
    shown = 1 + dice.below(3)
    ask = dice.pick(
        (
            "Continue this story: {text}",
            "How does this go on? {text}",
            "Please finish my story. {text}",
            "Here is the beginning of a story: {text} Write the rest.",
            "Give this story a {mood} ending: {text}",
        )
    )
    user = fill(ask, dice, {"text": " ".join(beats[:shown]), "mood": slots["mood"]})
    return CorpusConversation(
        category="continue",
        topic=f"{name} {theme} {shown}",
        phrasing=ask,
        turns=((user, " ".join([*beats[shown:], _ending(slots, dice)])),),
        system=_system(dice),
    )


def _poem(theme: str, slots: Slots, dice: Dice) -> CorpusConversation:
    couplets = _data()["couplets"]
    ask = dice.pick(_POEM_ASKS)
    middle = dice.some(couplets["middle"], 2 + dice.below(2))
    lines = [dice.pick(couplets["open"]), *middle, dice.pick(couplets["close"])]
    return CorpusConversation(
        category="poem",
        topic=f"poem {theme} {slots['thing']}",
        phrasing=ask,
        turns=(
            (prose(ask, dice, slots), "\n".join(_couplet(line, slots, dice) for line in lines)),
        ),
        system=_system(dice),
    )


def _couplet(lines: list[str], slots: Slots, dice: Dice) -> str:
    first, second = (fill(line, dice, slots) for line in lines)
    return f"{first[0].upper()}{first[1:]}\n{second}"


def _system(dice: Dice) -> str | None:
    system = dice.pick(_SYSTEMS)
    return None if system is None else fill(system, dice, {})
