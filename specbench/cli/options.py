"""Options for typer: those of single commands, and those made from fields of settings."""

import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, fields, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from specbench.cli.completion import completion_of
from specbench.doc import Doc, noted
from specbench.settings.option import (
    Option,
    bare_type,
    choices_of,
    field_types,
    is_group,
)
from specbench.settings.words import one_of, parse_names

RUNS_DIR = Path("reports")
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Folder of stored runs.", metavar="DIR")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", help="Print every K, what columns mean and the servers' sessions."),
]
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="[RUN]",
        help="Resume an interrupted run with its original settings.",
        show_default="latest",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan without measuring.")]
SkipMemoryCheck = Annotated[
    bool,
    typer.Option(
        "--skip-memory-check", help="Start even if the models seem too large for the memory."
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS]",
        help="Measure on the nodes of a Ray cluster: host:port, auto (the one this machine is "
        "part of) or local (two workers here).",
        show_default=False,
    ),
]
GpusPerTask = Annotated[
    int | None,
    typer.Option(
        "--gpus-per-task",
        min=0,
        help="With --ray: GPUs per task.",
        show_default="1 if the nodes have any",
    ),
]
AllowDifferent = Annotated[
    str | None,
    typer.Option(
        help="Compare even if these differ: K, hardware, prompts, model ...; comma-separated.",
        show_default=False,
        metavar="KEYS",
    ),
]


def allowed_words(text: str | None, words: Collection[str]) -> tuple[str, ...]:
    """The words of --allow-different; UsageError for an unknown one."""
    return parse_names("--allow-different", text, words) if text else ()


def print_json(document: object) -> None:
    """Prints the document of --json. ValueError for NaN and infinity, which JSON does not have."""
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


_KEYWORD, _NO_DEFAULT = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty


class _Input(NamedTuple):
    """A parameter of a command, or a field of a group of settings that a parameter takes."""

    name: str
    hint: Any
    default: Any  # or _NO_DEFAULT


def with_option_per_field(command: Callable[..., None], **shown: str) -> Callable[..., None]:
    """Turn a command that takes groups of settings into one with an option for each field.

    Typer reads options only from a function's signature. `shown` maps a field to the default
    that help prints instead of the one in the settings.
    """
    hints = get_type_hints(command, include_extras=True)
    inputs = [
        _Input(parameter.name, hints[parameter.name], parameter.default)
        for parameter in inspect.signature(command).parameters.values()
    ]

    @wraps(command)
    def flat_command(**arguments: Any) -> None:
        command(**_values(inputs, arguments))

    parameters = list(_parameters(inputs, shown))
    flat_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat_command.__annotations__ = {p.name: p.annotation for p in parameters}
    return flat_command


def _parameters(
    inputs: list[_Input], shown: Mapping[str, str], panel: str | None = None
) -> Iterator[inspect.Parameter]:
    for name, hint, default in inputs:
        kind = bare_type(hint)
        if (option := noted(hint, Option)) is not None:
            option = replace(option, shown=shown.get(name, option.shown))
            heading = _heading(kind) if is_group(kind) else panel
            annotation, typed_default = _as_typer(name, kind, option, default, heading)
            yield inspect.Parameter(name, _KEYWORD, default=typed_default, annotation=annotation)
        elif is_group(hint):
            group_inputs = _inputs_of(hint, default)
            holds_groups = any(is_group(bare_type(inner.hint)) for inner in group_inputs)
            yield from _parameters(group_inputs, shown, None if holds_groups else _heading(hint))
        elif hasattr(hint, "__metadata__") and not noted(hint, Doc):  # declared with typer.Option
            for declared in hint.__metadata__:
                declared.autocompletion = declared.autocompletion or completion_of(name)
            yield inspect.Parameter(name, _KEYWORD, default=default, annotation=hint)


def _values(inputs: list[_Input], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The command's parameters, read from typer's arguments; UsageError for a wrong one."""
    values = {}
    for name, hint, default in inputs:
        if (option := noted(hint, Option)) is not None:
            values[name] = _value(name, bare_type(hint), option, default, arguments[name])
        elif is_group(hint):
            inner = _values(_inputs_of(hint, default), arguments)
            values[name] = hint(**inner) if default is _NO_DEFAULT else replace(default, **inner)
        elif name in arguments:
            values[name] = arguments[name]
    return values


def _inputs_of(group: Any, default: Any) -> list[_Input]:
    """The fields of a group of settings. Their defaults are those of `default` if it is a group."""
    hints = field_types(group)
    inputs = []
    for field in fields(group):
        value = getattr(default, field.name, field.default)
        if value is MISSING:
            factory = field.default_factory
            value = _NO_DEFAULT if factory is MISSING else factory()
        inputs.append(_Input(field.name, hints[field.name], value))
    return inputs


def _heading(group: type) -> str:
    """Heading of a group's options in help: the first sentence of its docstring."""
    return (inspect.getdoc(group) or "").partition(".")[0]


def _as_typer(
    name: str, kind: Any, option: Option, default: Any, panel: str | None
) -> tuple[Any, Any]:
    """The annotation that typer expects, and the default in the form that a user types."""
    if option.is_repeated:
        kind, default = list[str] | None, None
    elif option.read is not None or choices_of(kind):
        kind, default = str | None, _default_text(default)
    if option.is_argument:
        parameter = typer.Argument(
            help=option.help,
            show_default=option.shown,
            metavar=option.placeholder,
            autocompletion=completion_of(name),
        )
        return Annotated[kind, parameter], default
    parameter = typer.Option(
        *option.names_of(name),
        rich_help_panel=panel,
        metavar=option.placeholder,
        help=option.help,
        min=option.min,
        max=option.max,
        show_default=option.shown,
        autocompletion=completion_of(name),
    )
    return Annotated[kind, parameter], default


def _value(name: str, kind: Any, option: Option, default: Any, argument: Any) -> Any:
    if option.is_repeated and option.read is not None:
        return option.read(argument or [])
    if argument is None:
        return default
    if choices := choices_of(kind):
        return one_of(option.names_of(name)[0], argument, *choices)
    return argument if option.read is None else option.read(argument)


def _default_text(default: Any) -> str | None:
    """A default as a user would type it; None if that is impossible."""
    if isinstance(default, str):
        return default
    if isinstance(default, tuple) and default:
        return ",".join(f"{part:g}" if isinstance(part, float) else str(part) for part in default)
    return None
