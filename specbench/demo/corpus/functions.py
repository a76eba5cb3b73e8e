"""Small Python functions in parts, for the registers code and edit."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from specbench.demo.corpus.grammar import Dice, fill


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
