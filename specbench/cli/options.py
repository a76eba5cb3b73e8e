"""Options as typer takes them: those of the settings, and those that are about no setting."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from specbench.settings.option import Option, bare_type, choices_of, is_group, option_of
from specbench.settings.words import one_of

Out = Annotated[Path, typer.Option("--runs-dir", help="Folder where runs are stored.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="[RUN]",
        help="Resume an interrupted run with its original settings.",
        show_default="latest",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan without measuring.")]
Force = Annotated[
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
GpusPerCell = Annotated[
    int | None,
    typer.Option(
        "--gpus-per-task",
        min=0,
        help="With --ray: GPUs per task.",
        show_default="1 if the nodes have any",
    ),
]

_KEYWORD, _NONE = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty


class _Asked(NamedTuple):
    """A parameter of a command, or a field of a group that is one."""

    name: str
    hint: Any
    default: Any  # _NONE where there is none


def spread(command: Callable[..., None], **shown: str) -> Callable[..., None]:
    """The command with an option for each field of its groups of settings; it gets the groups.

    Typer reads options from a function's signature alone. `shown`, by field: defaults that its help
    prints instead of the settings' own.
    """
    hints = get_type_hints(command, include_extras=True)
    asked = [
        _Asked(one.name, hints[one.name], one.default)
        for one in inspect.signature(command).parameters.values()
    ]

    @wraps(command)
    def spread_out(**said: Any) -> None:
        command(**_values(asked, said))

    parameters = list(_parameters(asked, shown))
    spread_out.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread_out.__annotations__ = {one.name: one.annotation for one in parameters}
    return spread_out


def _parameters(
    asked: list[_Asked], shown: Mapping[str, str], panel: str | None = None
) -> Iterator[inspect.Parameter]:
    for name, hint, default in asked:
        kind = bare_type(hint)
        if (option := option_of(hint)) is not None:
            option = replace(option, shown=shown.get(name, option.shown))
            own = _heading(kind) if is_group(kind) else panel
            annotation, words = _as_typer(name, kind, option, default, own)
            yield inspect.Parameter(name, _KEYWORD, default=words, annotation=annotation)
        elif is_group(hint):
            within = _asked_of(hint, default)
            holds_groups = any(is_group(bare_type(one.hint)) for one in within)
            yield from _parameters(within, shown, None if holds_groups else _heading(hint))
        elif hasattr(hint, "__metadata__"):  # typer's own; what has neither cannot be asked for
            yield inspect.Parameter(name, _KEYWORD, default=default, annotation=hint)


def _values(asked: list[_Asked], said: Mapping[str, Any]) -> dict[str, Any]:
    """What the words mean; UsageError says which word is wrong."""
    values = {}
    for name, hint, default in asked:
        if (option := option_of(hint)) is not None:
            values[name] = _value(name, bare_type(hint), option, default, said[name])
        elif is_group(hint):
            own = _values(_asked_of(hint, default), said)
            values[name] = hint(**own) if default is _NONE else replace(default, **own)
        elif name in said:
            values[name] = said[name]
    return values


def _asked_of(group: Any, default: Any) -> list[_Asked]:
    """The fields of a group; `default`: a group whose values are the defaults here."""
    hints = get_type_hints(group, include_extras=True)
    found = []
    for field in fields(group):
        own = getattr(default, field.name, field.default)
        if own is MISSING:
            factory = field.default_factory
            own = _NONE if factory is MISSING else factory()
        found.append(_Asked(field.name, hints[field.name], own))
    return found


def _heading(group: type) -> str:
    """What help prints above a group's options: the first sentence of its docstring."""
    return (inspect.getdoc(group) or "").partition(".")[0]


def _as_typer(
    name: str, kind: Any, option: Option, default: Any, panel: str | None
) -> tuple[Any, Any]:
    """The annotation that typer wants, and the default as it is typed."""
    metavar = "NAME" if choices_of(kind) else None
    if option.is_repeated:
        kind, default = list[str] | None, None
    elif option.read is not None or choices_of(kind):
        kind, default = str | None, _typed(default)
    if option.is_argument:
        made = typer.Argument(help=option.help, show_default=option.shown, metavar="PAIRING")
        return Annotated[kind, made], default
    made = typer.Option(
        *option.names_of(name),
        rich_help_panel=panel,
        metavar=metavar,
        help=option.help,
        min=option.min,
        max=option.max,
        show_default=option.shown,
    )
    return Annotated[kind, made], default


def _value(name: str, kind: Any, option: Option, default: Any, said: Any) -> Any:
    if option.is_repeated and option.read is not None:
        return option.read(said or [])
    if said is None:
        return default
    if choices := choices_of(kind):
        return one_of(option.names_of(name)[0], said, *choices)
    return said if option.read is None else option.read(said)


def _typed(default: Any) -> str | None:
    """The words that mean a default; None where there are none."""
    if isinstance(default, str):
        return default
    if isinstance(default, tuple) and default:
        return ",".join(f"{one:g}" if isinstance(one, float) else str(one) for one in default)
    return None
