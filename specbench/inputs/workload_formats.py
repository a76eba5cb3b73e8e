"""One line of a prompt file -> a Prompt: our own format and those of the field.

    {"turns": ["...", "..."], "system": "..."}             Spec-Bench, MT-bench, ours
    {"messages": [{"role": "user", "content": "..."}]}     OpenAI chat, ours for tool use
    {"conversations": [{"from": "human", "value": "..."}]} ShareGPT
    {"prompt": "..."}                                      HumanEval and plain lists

Beside these: id (or question_id), category, tools, template_args, prediction. Where a line has
several, the first of messages, conversations, turns, prompt counts. A prediction is a text that
the first answer may resemble, or a list of such texts or nulls, one a turn; the method
`previous_turn` drafts from it.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from specbench.errors import WorkloadError
from specbench.inputs.strict_yaml import nearest
from specbench.records import Message, Prompt, Role

PROMPT_KEYS = ("messages", "conversations", "turns", "prompt")
OWN_KEYS = (
    *("id", "question_id", "category", "system", "tools", "template_args", "prediction"),
    *PROMPT_KEYS,
)

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "tool": "tool",
    "observation": "tool",
}
_HALF_PAIR = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Where a prompt stands, for errors."""

    file: Path
    number: int

    def fail(self, reason: str) -> NoReturn:
        raise WorkloadError(f"{self.file}:{self.number}: {reason}")


def read_prompt(content: bytes, line: Line, *, strict: bool) -> Prompt:
    """The prompt on a line; `strict` refuses keys that our own format does not have.

    Trailing assistant messages are dropped: they are what the target shall answer itself.
    Without an id the line number is the id.
    """
    entry = _object(content, line)
    given = [key for key in PROMPT_KEYS if key in entry]
    if not given:
        line.fail(
            f"none of the keys {', '.join(PROMPT_KEYS)}; it has: {', '.join(entry) or 'none'}"
        )
    if strict:
        _refuse_unknown(entry, given, line)
    turns = _turns(entry, given[0], line)
    return Prompt(
        id=_id(entry, line),
        turns=turns,
        tools=tuple(_objects(entry.get("tools", []), "tools", line)),
        template_args=_mapping(entry.get("template_args", {}), "template_args", line),
        category=_text(entry.get("category", ""), "category", line),
        predictions=_predictions(entry.get("prediction"), len(turns), line),
    )


def _object(content: bytes, line: Line) -> Mapping[str, Any]:
    if content.lstrip().startswith(b"["):
        line.fail("a JSON list begins here; write one object per line (jq -c '.[]' FILE)")
    try:
        entry = json.loads(
            content.decode("utf-8-sig" if line.number == 1 else "utf-8"),
            object_pairs_hook=_without_duplicates,
            parse_constant=_not_finite,
            parse_float=_finite,
        )
        is_text = not _HALF_PAIR.search(json.dumps(entry, ensure_ascii=False))
    except UnicodeDecodeError:
        line.fail("not UTF-8 text")
    except json.JSONDecodeError as wrong:
        line.fail(f"not JSON: {wrong.msg} at column {wrong.colno}")
    except RecursionError:
        line.fail("nested too deeply")
    except ValueError as wrong:  # ours below, and numbers of thousands of digits
        line.fail(f"not usable JSON: {wrong}")
    if not isinstance(entry, dict):
        line.fail(f"an object is needed, not {_kind(entry)}")
    if not is_text:
        line.fail("holds half a surrogate pair, which is not text")
    return {key: value for key, value in entry.items() if value is not None}


def _without_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    entry = dict(pairs)
    if len(entry) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(k for k in keys if keys.count(k) > 1)!r} is given twice")
    return entry


def _not_finite(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _not_finite(digits)


def _refuse_unknown(entry: Mapping[str, Any], given: Sequence[str], line: Line) -> None:
    for key in entry:
        if key not in OWN_KEYS:
            hint = nearest(key, OWN_KEYS)
            line.fail(f"unknown key {key!r}{hint}; allowed: {', '.join(OWN_KEYS)}")
    if len(given) > 1:
        line.fail(f"gives {' and '.join(given)}; one of them is allowed")


def _id(entry: Mapping[str, Any], line: Line) -> str:
    value = entry.get("id", entry.get("question_id", line.number))
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        line.fail(f"id: text or a whole number is needed, not {_kind(value)}")
    return str(value)


def _turns(entry: Mapping[str, Any], key: str, line: Line) -> tuple[tuple[Message, ...], ...]:
    if key in ("messages", "conversations"):
        turns = [_history(entry[key], key, line)]
    else:
        texts = [entry[key]] if key == "prompt" else _list(entry[key], key, line)
        turns = [(Message(role="user", content=_filled(text, key, line)),) for text in texts]
    if entry.get("system") and turns[0][0].role != "system":
        system = Message(role="system", content=_text(entry["system"], "system", line))
        turns[0] = (system, *turns[0])
    return tuple(turns)


def _predictions(value: Any, num_turns: int, line: Line) -> tuple[str | None, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value] + [None] * (num_turns - 1)
    texts = _list(value, "prediction", line)
    if len(texts) != num_turns:
        line.fail(f"prediction: {len(texts)} texts for {num_turns} turns; expected one per turn")
    return tuple(None if t is None else _filled(t, "prediction", line) for t in texts)


def _history(items: Any, key: str, line: Line) -> tuple[Message, ...]:
    messages = [_message(item, line) for item in _objects(_list(items, key, line), key, line)]
    while messages and messages[-1].role == "assistant":
        messages.pop()
    if not messages or messages[-1].role == "system":
        line.fail(f"{key}: no user message to answer")
    return tuple(messages)


def _message(item: Mapping[str, Any], line: Line) -> Message:
    role_key, content_key = ("from", "value") if "from" in item else ("role", "content")
    name = item.get(role_key)
    if not isinstance(name, str) or name not in _ROLES:
        line.fail(f"unknown {role_key} {name!r} of a message; allowed: {', '.join(_ROLES)}")
    content = item.get(content_key)
    if content is None and "tool_calls" in item:
        content = ""
    read = _filled if _ROLES[name] == "user" else _text
    return Message(
        role=_ROLES[name],
        content=read(content, f"{content_key} of a message", line),
        extra={key: item[key] for key in item if key not in (role_key, content_key)},
    )


def _list(value: Any, what: str, line: Line) -> list[Any]:
    if not isinstance(value, list) or not value:
        line.fail(f"{what}: a list of at least one item is needed, not {_kind(value)}")
    return value


def _objects(value: Any, what: str, line: Line) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        line.fail(f"{what}: a list of objects is needed, not {_kind(value)}")
    return value


def _mapping(value: Any, what: str, line: Line) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        line.fail(f"{what}: an object is needed, not {_kind(value)}")
    return value


def _text(value: Any, what: str, line: Line) -> str:
    if not isinstance(value, str):
        line.fail(f"{what}: text is needed, not {_kind(value)}")
    return value


def _filled(value: Any, what: str, line: Line) -> str:
    text = _text(value, what, line)
    if not text.strip():
        line.fail(f"{what}: is empty")
    return text


def _kind(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text" if value else "empty text"
        case list():
            return "a list of something else" if value else "an empty list"
        case _:
            return "an object"
