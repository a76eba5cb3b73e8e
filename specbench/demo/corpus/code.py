"""Code: small Python functions and classes to write; every block parses and runs."""

from collections.abc import Sequence
from dataclasses import replace

from specbench.demo.corpus.conversation import CorpusConversation
from specbench.demo.corpus.functions import TASKS, Function, Task, block, renamed_words
from specbench.demo.corpus.grammar import Dice, fill, joined, prose

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
