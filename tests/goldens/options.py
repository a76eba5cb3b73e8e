"""The options of every command: type, default, whether it is required."""

from pathlib import Path
from typing import Any, get_args

from typer.main import get_command

from specbench.cli import app


def all_facts(folder: Path) -> dict[str, dict[str, str]]:  # noqa: ARG001
    """Options by command, then by the names of an option or the name of an argument."""
    group: Any = get_command(app)
    return {
        name: {
            ", ".join(parameter.opts + parameter.secondary_opts): _in_one_line(parameter)
            for parameter in command.params
        }
        for name, command in group.commands.items()
    }


def _in_one_line(parameter: Any) -> str:
    annotation = parameter.type_descriptor.annotation
    default = str(parameter.default) if isinstance(parameter.default, Path) else parameter.default
    facts = [
        parameter.param_type_name,
        str(annotation) if get_args(annotation) else annotation.__name__,
        f"min {parameter.min}" if parameter.min is not None else "",
        f"max {parameter.max}" if parameter.max is not None else "",
        "required" if parameter.required else f"default {default!r}",
        "repeatable" if parameter.multiple or parameter.nargs != 1 else "",
        "hidden" if parameter.hidden else "",
    ]
    return ", ".join(filter(None, facts))
