"""Code: small Python functions and classes to write; every block parses and runs."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tools.demo.corpus.conversation import CorpusConversation
from tools.demo.corpus.grammar import Dice, fill, joined, prose


@dataclass(frozen=True, kw_only=True)
class Function:
    """A Python function in parts, so that it can be shown with or without hints."""

    name: str
    params: tuple[tuple[str, str], ...]  # (name, type)
    returns: str
    body: tuple[str, ...]
    do: str
    needs: str | None = None
    say: str = ""

    def source(self, *, hints: bool, docstring: bool) -> str:
        params = ", ".join(f"{name}: {kind}" if hints else name for name, kind in self.params)
        arrow = f" -> {self.returns}" if hints else ""
        doc = [f'"""{self.do.capitalize()}."""'] if docstring else []
        lines = [f"def {self.name}({params}){arrow}:", *(f"    {b}" for b in (*doc, *self.body))]
        return "\n".join([f"import {self.needs}\n\n", *lines] if self.needs else lines)


class Task(NamedTuple):
    """A function to ask for, the topic it belongs to, and a wish about its style."""

    function: Function
    topic: str
    wish: str = ""


_LISTS = ("numbers", "values", "items", "scores", "prices", "ages", "readings", "points")
_PREDICATES = (
    ("even", "{x} % 2 == 0"),
    ("odd", "{x} % 2 == 1"),
    ("positive", "{x} > 0"),
    ("negative", "{x} < 0"),
    ("zero", "{x} == 0"),
    ("larger than {n}", "{x} > {n}"),
    ("smaller than {n}", "{x} < {n}"),
    ("at least {n}", "{x} >= {n}"),
    ("at most {n}", "{x} <= {n}"),
    ("divisible by {n}", "{x} % {n} == 0"),
    ("equal to {n}", "{x} == {n}"),
    ("different from {n}", "{x} != {n}"),
)
# (what it does, function name, return type, loop body, comprehension body)
_OPERATIONS = (
    ("keep the {what} that are {is}", "keep", "list[int]",
     "result = []\nfor {x} in {xs}:\n    if {test}:\n        result.append({x})\nreturn result",
     "return [{x} for {x} in {xs} if {test}]"),
    ("remove the {what} that are {is}", "remove", "list[int]",
     "result = []\nfor {x} in {xs}:\n    if not ({test}):\n        result.append({x})\n"
     "return result",
     "return [{x} for {x} in {xs} if not ({test})]"),
    ("count the {what} that are {is}", "count", "int",
     "count = 0\nfor {x} in {xs}:\n    if {test}:\n        count += 1\nreturn count",
     "return sum(1 for {x} in {xs} if {test})"),
    ("add up the {what} that are {is}", "sum", "int",
     "total = 0\nfor {x} in {xs}:\n    if {test}:\n        total += {x}\nreturn total",
     "return sum({x} for {x} in {xs} if {test})"),
    ("check whether all {what} are {is}", "all", "bool",
     "for {x} in {xs}:\n    if not ({test}):\n        return False\nreturn True",
     "return all({test} for {x} in {xs})"),
    ("check whether some {what} are {is}", "any", "bool",
     "for {x} in {xs}:\n    if {test}:\n        return True\nreturn False",
     "return any({test} for {x} in {xs})"),
    ("double the {what} that are {is}", "double", "list[int]",
     "result = []\nfor {x} in {xs}:\n    if {test}:\n        result.append(2 * {x})\n"
     "    else:\n        result.append({x})\nreturn result",
     "return [2 * {x} if {test} else {x} for {x} in {xs}]"),
    ("find the first of the {what} that is {is}", "first", "int | None",
     "for {x} in {xs}:\n    if {test}:\n        return {x}\nreturn None",
     "return next(({x} for {x} in {xs} if {test}), None)"),
)  # fmt: skip
_UNITS = (
    ("minutes", "hours", "/ 60"), ("hours", "minutes", "* 60"), ("hours", "days", "/ 24"),
    ("days", "weeks", "/ 7"), ("metres", "kilometres", "/ 1000"),
    ("miles", "kilometres", "* 1.609"), ("kilometres", "miles", "/ 1.609"),
    ("inches", "centimetres", "* 2.54"),
    ("grams", "kilograms", "/ 1000"), ("pounds", "kilograms", "* 0.4536"),
    ("feet", "metres", "* 0.3048"), ("litres", "gallons", "/ 3.785"),
    ("celsius", "fahrenheit", "* 9 / 5 + 32"), ("celsius", "kelvin", "+ 273.15"),
    ("degrees", "turns", "/ 360"), ("bytes", "kilobytes", "/ 1024"), ("cents", "euros", "/ 100"),
)  # fmt: skip


@cache
def _algorithms() -> list[dict[str, Any]]:
    text = Path(__file__).with_name("code.yaml").read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = yaml.safe_load(text)
    return entries


def list_task(dice: Dice) -> Task:
    """A function over a list of numbers, with a loop or in one line."""
    do, verb, returns, loop, short = dice.pick(_OPERATIONS)
    adjective, test = dice.pick(_PREDICATES)
    xs, n = dice.pick(_LISTS), str(2 + dice.below(19))
    x = dice.pick((xs[:-1], xs[0], "x"))
    slots = {"n": n, "x": x, "xs": xs, "what": xs}
    slots |= {"test": fill(test, dice, slots), "is": fill(adjective, dice, slots)}
    word = adjective.split()[0]
    name = dice.pick((f"{verb}_{word}", f"{verb}_{word}_{xs}"))
    is_loop = dice.chance(0.6)
    style = ("", " Use a loop.") if is_loop else (" Use a comprehension.", " Keep it to one line.")
    body = _formatted(loop if is_loop else short, slots)
    function = Function(
        name=name,
        params=((xs, "list[int]"),),
        returns=returns,
        body=tuple(body.split("\n")),
        do=fill(do, dice, slots),
    )
    return Task(function, f"{verb} {word}", dice.pick(style))


def algorithm_task(dice: Dice) -> Task:
    """One of the written functions with its names changed."""
    entry = dice.pick(_algorithms())
    name = dice.pick(entry["names"])
    renamed = {old: dice.pick(new) for old, new in entry["vars"].items()}
    if entry["names"][0] in entry["body"]:
        renamed[entry["names"][0]] = name
    body = renamed_words(entry["body"], renamed)
    function = Function(
        name=name,
        params=tuple((renamed.get(p, p), kind) for p, kind in entry["params"].items()),
        returns=str(entry["returns"]),
        body=tuple(body.split("\n")),
        do=entry["do"],
        needs=entry.get("needs"),
        say=entry["say"],
    )
    return Task(function, entry["do"])


def unit_task(dice: Dice) -> Task:
    """A conversion between two units."""
    source, target, formula = dice.pick(_UNITS)
    x = dice.pick((source, "value", "amount", "x"))
    function = Function(
        name=dice.pick((f"{source}_to_{target}", f"to_{target}", f"convert_{source}")),
        params=((x, "float"),),
        returns="float",
        body=(f"return {x} {formula}",),
        do=f"convert {source} to {target}",
        say=f"It takes {source} and returns {target}.",
    )
    return Task(function, f"{source} to {target}")


def renamed_words(source: str, names: dict[str, str]) -> str:
    """The source with whole words replaced, all at once."""
    if not names:
        return source
    pattern = r"\b(" + "|".join(re.escape(name) for name in names) + r")\b"
    return re.sub(pattern, lambda match: names[match[1]], source)


def block(source: str) -> str:
    """A fenced Python block."""
    return f"```python\n{source}\n```"


def _formatted(template: str, slots: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: slots[match[1]], template)


TASKS: dict[str, Callable[[Dice], Task]] = {
    "list": list_task,
    "algorithm": algorithm_task,
    "unit": unit_task,
}


_ENTITIES = (
    "Book", "Car", "Student", "Song", "Movie", "Player", "Order", "House", "Plant", "Employee",
    "City", "Recipe", "Sensor", "Ticket", "Account", "Robot", "Message", "Camera", "Teacher",
    "Ship",
)  # fmt: skip
_FIELDS = (
    ("name", "str"), ("age", "int"), ("price", "float"), ("title", "str"), ("year", "int"),
    ("weight", "float"), ("color", "str"), ("speed", "float"), ("owner", "str"), ("size", "int"),
    ("rating", "float"), ("level", "int"), ("address", "str"), ("code", "str"), ("height", "float"),
    ("score", "int"), ("city", "str"), ("active", "bool"), ("country", "str"), ("width", "float"),
)  # fmt: skip

_ASKS = (
    "Write a [Python function|function] that will {do}.",
    "How do I {do} in Python?",
    "I need a function [called|named] {name} to {do}.",
    "Can you write code to {do}?",
    "Please {do} in Python.",
    "Give me a [short|simple] function to {do}.",
    "Show me how to {do}. Call it {name}.",
    "Python: {do}.",
    "[For my homework|At work] I have to {do}. Can you help?",
    "What does a function look like that can {do}?",
)
_INTROS = (
    "Here is [one way to do it|a function for that|the function]:",
    "[Sure|Of course|Certainly], here is {name}:",
    "This function will {do}:",
    "You can write it like this:",
)


def sample(dice: Dice) -> CorpusConversation:
    """One conversation of the code register."""
    kind = dice.pick(("list", "list", "algorithm", "algorithm", "algorithm", "unit", "class"))
    if kind == "class":
        return _class(dice)
    return _function_talk(TASKS[kind](dice), kind, dice)


def _function_talk(task: Task, kind: str, dice: Dice) -> CorpusConversation:
    function, topic, wishes = task
    ask = dice.pick(_ASKS)
    hints, docstring, bare = dice.chance(0.35), dice.chance(0.4), dice.chance(0.15)
    wishes += fill(" [With type hints, please|Use type hints].", dice, {}) if hints else ""
    wishes += fill(" [Add a docstring|Include a docstring].", dice, {}) if docstring else ""
    slots = {"do": function.do, "name": function.name}
    user = prose(ask + wishes, dice, slots)
    if "{name}" not in ask:  # a name cannot be guessed
        user += fill(" [Name it|Call it|The name is] {name}.", dice, slots)
    code = block(function.source(hints=hints, docstring=docstring))
    if bare:
        answer = code
    else:
        intro = prose(dice.pick(_INTROS), dice, slots)
        answer = "\n".join([intro, code, function.say]).strip()
    turns = [(user, answer)]
    if dice.chance(0.4):
        turns.append(_function_follow_up(function, hints, docstring, dice))
    return CorpusConversation(
        category=kind,
        topic=topic,
        phrasing=f"{ask} hints={hints} docstring={docstring}",
        turns=tuple(turns),
        system="Answer with code only." if bare else None,
    )


def _function_follow_up(
    function: Function, hints: bool, docstring: bool, dice: Dice
) -> tuple[str, str]:
    new_name = dice.pick(("run", "process", "solve", "compute", "work_out", "apply", "my_function"))
    options = [f"[Rename it to|Please call it|Change the name to] {new_name}."]
    if not hints:
        options.append("[Now add type hints|Can you add type hints?|Add type hints, please]")
    if not docstring:
        options.append("[Now add a docstring|Please add a docstring|It needs a docstring]")
    wish = dice.pick(options)
    if new_name in wish:
        changed = replace(
            function,
            name=new_name,
            body=tuple(renamed_words(line, {function.name: new_name}) for line in function.body),
        )
        code = changed.source(hints=hints, docstring=docstring)
    else:
        code = function.source(hints=hints or "hints" in wish, docstring=docstring or "doc" in wish)
    user = prose(wish, dice, {})
    return user if user[-1] in ".?" else f"{user}.", block(code)


def _class(dice: Dice) -> CorpusConversation:
    entity = dice.pick(_ENTITIES)
    fields = dice.some(_FIELDS, dice.pick((2, 3, 3, 4)))
    names = [name for name, _ in fields]
    slots = {"entity": entity, "fields": joined(names)}
    asks = (
        "Write a{data} class {entity} with {fields}.",
        "I need a{data} class named {entity}. It has the fields {fields}.",
        "Can you make a{data} class for a* {entity} with {fields}?",
        "Define a {entity} as a{data} class. Fields: {fields}.",
    )
    ask = dice.pick(asks)
    is_dataclass, describes = dice.chance(0.5), dice.chance(0.5)
    extra = fill(" [Add|Include] a describe method.", dice, {}) if describes else ""
    slots["data"] = " data" if is_dataclass else ""
    user = prose(ask + extra, dice, slots)
    intro = prose("[Here is|This is|Sure, here is] the class {entity}:", dice, slots)
    source = _class_source(entity, fields, is_dataclass, describes)
    return CorpusConversation(
        category="class",
        topic=entity,
        phrasing=f"{ask} {is_dataclass} {describes}",
        turns=((user, f"{intro}\n{block(source)}"),),
    )


def _class_source(
    entity: str, fields: Sequence[tuple[str, str]], is_dataclass: bool, describes: bool
) -> str:
    if is_dataclass:
        lines = ["from dataclasses import dataclass", "", "", "@dataclass", f"class {entity}:"]
        lines += [f"    {name}: {kind}" for name, kind in fields]
    else:
        lines = [f"class {entity}:"]
        lines += [f"    def __init__(self, {', '.join(name for name, _ in fields)}):"]
        lines += [f"        self.{name} = {name}" for name, _ in fields]
    if describes:
        shown = ", ".join(f"{{self.{name}}}" for name, _ in fields)
        lines += ["", "    def describe(self):", f'        return f"{entity}: {shown}"']
    return "\n".join(lines)
