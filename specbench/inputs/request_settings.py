"""Reads the settings of a prompt's requests: of a row, and of a workload's card."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from specbench.inputs.prompt_rows import Refuse, filled, flag, items, mapping, text
from specbench.records import RequestSettings

SETTINGS = tuple(field.name for field in fields(RequestSettings))
_OURS = ("thinking", "extra_body")  # a column of a published set may have these names
API_SETTINGS = tuple(name for name in SETTINGS if name not in _OURS)
_FORMATS = ("json_object", "json_schema")
_TOOL_CHOICES = ("none", "auto", "required")
# Fields that the run decides, so that what is measured is what was asked for.
_OF_RUN = (
    *("model", "messages", "prompt", "stream", "stream_options", "n", "tools"),
    *("max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "seed"),
    *("chat_template_kwargs", *API_SETTINGS),
)


def given_settings(entry: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
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
    """Settings of those names, checked; `refuse` raises the error. A row's win over `defaults`."""
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
