"""Reads one row of a prompt file as a Prompt, in our format or in that of a known set.

    {"turns": ["...", "..."], "system": "..."}             Spec-Bench, MT-bench, ours
    {"messages": [{"role": "user", "content": "..."}]}     OpenAI chat, ours for tool use
    {"conversations": [{"from": "human", "value": "..."}]} ShareGPT
    {"prompt": "..."}                                      HumanEval and plain lists

KNOWN_SETS has the others. In addition: id (or question_id), category, tools, template_args,
prediction, replay, and the settings of its requests (SETTINGS). A prediction is a text that
the first answer may resemble, or a list of such texts or nulls, one per turn; the method
`previous_turn` drafts from it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, NoReturn

from specbench.inputs.prompt_rows import (
    Refuse,
    Row,
    filled,
    flag,
    items,
    kind,
    mapping,
    objects,
    row_object,
    text,
    without_nulls,
)
from specbench.records import Message, Prompt, RequestSettings, Role
from specbench.settings.words import nearest

SETTINGS = tuple(field.name for field in fields(RequestSettings))
_OURS = ("thinking", "extra_body")  # a column of a published set may have these names
API_SETTINGS = tuple(name for name in SETTINGS if name not in _OURS)
_FORMATS = ("json_object", "json_schema")
_TOOL_CHOICES = ("none", "auto", "required")
# Fields that the run sets, so that it measures what was requested.
_OF_RUN = (
    *("model", "messages", "prompt", "stream", "stream_options", "n", "tools"),
    *("max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "seed"),
    *("chat_template_kwargs", *API_SETTINGS),
)


def _given_settings(entry: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    """The settings among the fields of a row; without `strict` only those of OpenAI's API, and
    ours if they have the right type."""
    types = {"thinking": bool, "extra_body": dict}
    return {
        name: entry[name]
        for name in SETTINGS
        if name in entry and (strict or isinstance(entry[name], types.get(name, object)))
    }


def read_settings(
    given: Mapping[str, Any], refuse: Refuse, defaults: Mapping[str, Any]
) -> RequestSettings:
    """The settings, checked. Those of a row override `defaults`; `refuse` raises the errors."""
    values = {**defaults, **given}
    readers: dict[str, Callable[[Any, str, Refuse], Any]]
    readers = {"stop": _stop, "response_format": _response_format, "thinking": flag}
    readers |= {"reasoning_effort": filled, "tool_choice": _tool_choice, "extra_body": _extra_body}
    return RequestSettings(**{name: readers[name](values[name], name, refuse) for name in values})


def _stop(value: Any, name: str, refuse: Refuse) -> tuple[str, ...]:
    strings = [value] if isinstance(value, str) else items(value, name, refuse)
    if not all(text(string, name, refuse) for string in strings):
        refuse(f"{name}: is empty")
    return tuple(strings)


def _response_format(value: Any, name: str, refuse: Refuse) -> Mapping[str, Any] | None:
    """The format; None for text, which is any answer."""
    form = mapping(value, name, refuse)
    if form.get("type") == "text":
        return None
    if form.get("type") not in _FORMATS:
        refuse(f"{name}.type: {form.get('type')!r}; allowed: {', '.join(_FORMATS)}, text")
    if form["type"] == "json_schema":
        schema = mapping(form.get("json_schema"), f"{name}.json_schema", refuse)
        mapping(schema.get("schema"), f"{name}.json_schema.schema", refuse)
    return form


def _tool_choice(value: Any, name: str, refuse: Refuse) -> Any:
    if not isinstance(value, dict) and value not in _TOOL_CHOICES:
        allowed = ", ".join(_TOOL_CHOICES)
        refuse(f"{name}: {value!r}; allowed: {allowed}, or an object with a function")
    return value


def _extra_body(value: Any, name: str, refuse: Refuse) -> Mapping[str, Any]:
    body = mapping(value, name, refuse)
    if taken := [key for key in body if key in _OF_RUN]:
        refuse(f"{name}: {taken[0]} is set by the run or by its own key; leave it out here")
    return body


OWN_FORMS = ("messages", "conversations", "turns", "prompt")
OWN_KEYS = (
    *("id", "question_id", "category", "system", "tools", "template_args", "prediction"),
    "replay",
    *SETTINGS,
    *OWN_FORMS,
)

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",  # OpenAI's newer name
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "tool": "tool",
    "observation": "tool",
}
_TEXT_PARTS = ("text", "input_text", "output_text")
_ENDPOINTS = ("/chat/completions", "/completions", "/responses")
# Keys of a request's body: those read into a Prompt, and those that change no output.
_READ_OF_BODY = {"messages", "prompt", "input", "instructions", "tools", "chat_template_kwargs"}
_READ_OF_BODY.update(API_SETTINGS)
_NO_SETTINGS = {"model", "stream", "stream_options", "user", "metadata", "store"}
# Settings in rows that are requests themselves. Such rows may have any other columns.
_NOT_APPLIED = {
    *("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "max_completion_tokens"),
    *("max_output_tokens", "output_tokens", "frequency_penalty", "presence_penalty"),
    *("repetition_penalty", "logit_bias", "reasoning"),
}
# In SPEED-Bench, in place of texts from other sets.
_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED"

_Messages = tuple[Message, ...]


class KnownSet(NamedTuple):
    """A layout of rows that have all `fields`; `read` makes turns from the first one."""

    name: str
    fields: tuple[str, ...]
    read: "Callable[[Mapping[str, Any], KnownSet, Refuse], list[_Messages]]"
    id: tuple[str, ...] = ("id", "question_id")  # the first that a row has; else its number
    then: str = ""  # a field whose text follows the prompt, if a row has it
    is_whole: bool = False  # a row has no other fields
    is_request: bool = False  # the row is the body of an API call
    may_skip: bool = False  # rows without a question are left out

    def fits(self, entry: Mapping[str, Any]) -> bool:
        """Whether the row has the fields of this set."""
        has_all = all(field in entry for field in self.fields)
        return has_all and (not self.is_whole or len(entry) == len(self.fields))


class SkippedRow(Exception):
    """A row without a question, in a set known to have such rows; its text is the reason."""


def read_prompt(
    content: bytes,
    row: Row,
    taken: Mapping[str, int],
    *,
    strict: bool,
    field: str | None = None,
    defaults: Mapping[str, Any] | None,
) -> Prompt:
    """The prompt of a row; `strict` refuses keys that our own format does not have.

    `taken`: the ids before it, and their lines. `field` is read as the prompt, even if the row
    looks like one of a known set. `defaults`: settings of the workload's requests; None ignores
    those of rows. Trailing assistant messages are dropped: the target generates them. Without an id
    the row's number is the id. WorkloadError, and SkippedRow unless `strict`.
    """
    entry, not_applied = row_object(content, row), None
    body = entry
    if strict:
        _refuse_unknown(entry, row)
    if field is None:
        known = _known_set(entry)
        if known is not None and known.is_request:
            body, not_applied = _request(entry, known, row)
            known = _known_set(body)
    else:
        value = _field_of(entry, field)
        known = None if value is None else _named_set(field, value)
    if known is None:
        row.fail(_unknown(entry, field))
    entry = body
    refuse = _skip if known.may_skip and not strict else row.fail
    turns = _turns(entry, known, row, refuse)
    if strict and "replay" in entry:
        flag(entry["replay"], "replay", row.fail)
    if entry.get("replay") is True:
        turns = tuple(_replayed(turns, row.fail))
    id_ = _id(entry, known, row)
    if id_ in taken:
        refuse(f"a repeated id; {id_!r} is already on line {taken[id_]}")
    args_key = "template_args" if "template_args" in entry else "chat_template_kwargs"
    template_args = mapping(entry.get(args_key, {}), args_key, row.fail)
    settings = RequestSettings()
    if defaults is not None:
        settings = read_settings(_given_settings(entry, strict=strict), row.fail, defaults)
    if settings.tool_choice is not None and "tools" not in entry:
        row.fail("tool_choice: the row has no tools; add them or leave tool_choice out")
    return Prompt(
        id=id_,
        turns=turns,
        tools=tuple(objects(entry.get("tools", []), "tools", row.fail)),
        template_args={**settings.template_args, **template_args},
        settings=settings,
        not_applied=not_applied or tuple(key for key in entry if key in _NOT_APPLIED),
        category=text(entry.get("category", ""), "category", row.fail),
        predictions=_predictions(entry.get("prediction"), len(turns), row.fail),
    )


def _refuse_unknown(entry: Mapping[str, Any], row: Row) -> None:
    for key in entry:
        if key not in OWN_KEYS:
            hint = nearest(key, OWN_KEYS)
            row.fail(f"unknown key {key!r}{hint}; allowed: {', '.join(OWN_KEYS)}")
    given = [key for key in OWN_FORMS if key in entry]
    if len(given) > 1:
        row.fail(f"gives {' and '.join(given)}; keep only one of them")


def _unknown(entry: Mapping[str, Any], field: str | None) -> str:
    """The error of a row without a prompt: the fields that it has."""
    seen = []
    for key, value in entry.items():
        inner = value if isinstance(value, dict) else {}
        seen += [f"{key}.{name}" for name in inner] or [key]
    has = f"it has: {', '.join(seen) or 'none'}"
    if field is not None:
        return f"--prompt-field {field}: no such field{nearest(field, seen)}; {has}"
    fields = {known.fields[0] for known in KNOWN_SETS}
    for key in seen:
        if key not in fields and (near := nearest(key, fields)):
            return f"no field known to hold a prompt; {has}; {key!r}{near}"
    known = ", ".join(dict.fromkeys(" + ".join(known.fields) for known in KNOWN_SETS))
    return f"no field known to hold a prompt ({known}); {has}; name one of them with --prompt-field"


def _request(
    entry: Mapping[str, Any], known: KnownSet, row: Row
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """A line of an OpenAI batch file as one of our rows, and the settings that are not applied."""
    url = str(entry.get("url", _ENDPOINTS[0]))
    if not url.endswith(_ENDPOINTS):
        row.fail(f"url {url!r} does not ask for text; {', '.join(_ENDPOINTS)} do")
    body = without_nulls(mapping(entry["body"], "body", row.fail))
    request = {key: body[key] for key in _READ_OF_BODY - {"input", "instructions"} if key in body}
    if "input" in body:  # of /v1/responses
        request["prompt" if isinstance(body["input"], str) else "messages"] = body["input"]
    if "instructions" in body:
        request["system"] = body["instructions"]
    not_applied = tuple(key for key in body if key not in _READ_OF_BODY | _NO_SETTINGS)
    return {**request, "id": _id(entry, known, row)}, not_applied


def _id(entry: Mapping[str, Any], known: KnownSet, row: Row) -> str:
    given = [key for key in known.id if key in entry]
    value = entry[given[0]] if given else row.number
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        row.fail(f"{given[0]}: expected text or a whole number, not {kind(value)}")
    return str(value)


def _turns(
    entry: Mapping[str, Any], known: KnownSet, row: Row, refuse: Refuse
) -> tuple[_Messages, ...]:
    turns = known.read(entry, known, refuse)
    if any(_PLACEHOLDER in message.content for turn in turns for message in turn):
        row.fail(
            f"{known.fields[0]} holds a placeholder of SPEED-Bench's public files in place of a "
            "prompt; let the set's own prepare script write the whole file first"
        )
    if entry.get("system") and turns[0][0].role != "system":
        system = Message(role="system", content=text(entry["system"], "system", refuse))
        turns[0] = (system, *turns[0])
    return tuple(turns)


def _one_prompt(entry: Mapping[str, Any], known: KnownSet, refuse: Refuse) -> list[_Messages]:
    """A single user message."""
    field = known.fields[0]
    more = text(entry.get(known.then, ""), known.then, refuse) if known.then else ""
    question = filled(_field_of(entry, field), field, refuse)
    return [_question(f"{question}\n\n{more}" if more else question)]


def _prompts(entry: Mapping[str, Any], known: KnownSet, refuse: Refuse) -> list[_Messages]:
    """A list of user messages, one per turn."""
    field = known.fields[0]
    return [
        _question(filled(question, field, refuse))
        for question in items(_field_of(entry, field), field, refuse)
    ]


def _conversation(entry: Mapping[str, Any], known: KnownSet, refuse: Refuse) -> list[_Messages]:
    """Messages up to the one to answer."""
    field = known.fields[0]
    return [_history(_field_of(entry, field), field, refuse)]


def _questions(entry: Mapping[str, Any], known: KnownSet, refuse: Refuse) -> list[_Messages]:
    """A turn per user message, a system message with the first; a dialogue is one turn."""
    (messages,) = _conversation(entry, known, refuse)
    is_led = messages[0].role == "system"
    if any(message.role != "user" for message in messages[is_led:]):
        return [messages]
    return [messages[: is_led + 1], *((message,) for message in messages[is_led + 1 :])]


def _replayed(turns: tuple[_Messages, ...], refuse: Refuse) -> Iterator[_Messages]:
    """A turn per recorded answer of a history; each later turn begins with the answer before it."""
    if len(turns) > 1:
        refuse("replay needs recorded answers: add messages or conversations")
    turn: list[Message] = []
    for message in turns[0]:
        if message.role == "assistant" and turn and turn[-1].role in ("user", "tool"):
            yield tuple(turn)
            turn = []
        turn.append(message)
    yield tuple(turn)


def _question(content: str) -> _Messages:
    return (Message(role="user", content=content),)


def _skip(reason: str) -> NoReturn:
    raise SkippedRow(reason)


def _predictions(value: Any, num_turns: int, refuse: Refuse) -> tuple[str | None, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value] + [None] * (num_turns - 1)
    texts = items(value, "prediction", refuse)
    if len(texts) != num_turns:
        refuse(f"prediction: {len(texts)} texts for {num_turns} turns; expected one per turn")
    return tuple(None if t is None else filled(t, "prediction", refuse) for t in texts)


def _history(value: Any, key: str, refuse: Refuse) -> tuple[Message, ...]:
    entries = objects(items(value, key, refuse), key, refuse)
    messages = [_message(entry, refuse) for entry in entries]
    while messages and messages[-1].role == "assistant":
        messages.pop()
    if not messages or messages[-1].role == "system":
        refuse(f"{key}: no user message to answer")
    return tuple(messages)


def _message(entry: Mapping[str, Any], refuse: Refuse) -> Message:
    role_key, content_key = ("from", "value") if "from" in entry else ("role", "content")
    name = entry.get(role_key)
    if not isinstance(name, str) or name not in _ROLES:
        refuse(f"unknown {role_key} {name!r} of a message; allowed: {', '.join(_ROLES)}")
    content, name_of_content = entry.get(content_key), f"{content_key} of a message"
    if content is None and "tool_calls" in entry:
        content = ""
    if isinstance(content, list):
        content = _joined(objects(content, name_of_content, refuse), refuse)
    read = filled if _ROLES[name] == "user" else text
    return Message(
        role=_ROLES[name],
        content=read(content, name_of_content, refuse),
        extra={key: entry[key] for key in entry if key not in (role_key, content_key)},
    )


def _joined(parts: Sequence[Mapping[str, Any]], refuse: Refuse) -> str:
    """Content in parts as one text, one part per line, as vLLM passes it to text templates."""
    for part in parts:
        if part.get("type") not in _TEXT_PARTS:
            refuse(
                f"a part of type {part.get('type')!r} in a message; only text is measured: leave "
                "such rows out"
            )
    return "\n".join(text(part.get("text"), "a part of a message", refuse) for part in parts)


# The first one that fits is used, so a conversation precedes the text that it began with.
KNOWN_SETS = (
    KnownSet("SPEED-Bench, prepared", ("messages", "question_id"), _questions),
    KnownSet("OpenAI chat", ("messages",), _conversation),
    KnownSet("ShareGPT", ("conversations",), _conversation, may_skip=True),
    KnownSet("MT-bench, Spec-Bench, SPEED-Bench", ("turns",), _prompts),
    KnownSet(
        "OpenAI batch", ("body", "custom_id"), _one_prompt, id=("custom_id",), is_request=True
    ),
    KnownSet("HumanEval", ("prompt", "task_id", "entry_point"), _one_prompt, id=("task_id",)),
    KnownSet("vLLM custom, plain lists", ("prompt",), _one_prompt),
    KnownSet("Alpaca", ("instruction", "input", "output"), _one_prompt, then="input"),
    KnownSet("GSM8K", ("question", "answer"), _one_prompt, is_whole=True),
    KnownSet("plain text", ("text",), _one_prompt),
)


def _known_set(entry: Mapping[str, Any]) -> KnownSet | None:
    return next((known for known in KNOWN_SETS if known.fits(entry)), None)


def _field_of(entry: Mapping[str, Any], path: str) -> Any:
    """The value of a field, or of one inside another: `body.messages`; None if it is missing."""
    if path in entry:
        return entry[path]
    first, _, rest = path.partition(".")
    inner = entry.get(first)
    return _field_of(inner, rest) if rest and isinstance(inner, dict) else None


def _named_set(field: str, value: Any) -> KnownSet:
    """The layout for --prompt-field, by the type of the field's value."""
    read = _one_prompt
    if isinstance(value, list):
        read = _conversation if value and all(isinstance(v, dict) for v in value) else _prompts
    return KnownSet("--prompt-field", (field,), read, id=())
