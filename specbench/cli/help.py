"""Help as plain text: commands and options in groups, then an example."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from typer.core import TyperCommand, TyperGroup

from specbench.settings import SERVED, RunSettings, ServerSettings
from specbench.settings.option import leaves
from specbench.settings.words import spelling

EXAMPLES = {
    "run": "specbench run demo/draft --workload code",
    "sweep-k": "specbench sweep-k demo/draft --workload code -k 0..8 --time-budget 3m",
    "pair": "specbench pair ./models/target --draft ./models/draft --draft ngram",
    "verify": "specbench verify demo/draft",
    "inspect": 'specbench inspect demo/draft --prompt "Write a function that adds two numbers"',
    "watch": "specbench watch --base-url http://localhost:8000 --for 10m",
    "report": "specbench report latest",
    "recommend": "specbench recommend latest",
    "schema": "specbench schema run",
    "export": "specbench export demo/draft --engine vllm",
    "import": "specbench import results.json --pairing llama-3.1-8b/eagle3",
    "history": "specbench history",
    "check": "specbench check baseline.json latest",
    "baseline": "specbench baseline latest --output baseline.json",
    "list": "specbench list pairings",
    "doctor": "specbench doctor demo/draft",
    "init": "specbench init --target demo:target --draft demo:draft",
}

NEXT = """\
specbench {version}: does speculative decoding pay off for your model, GPU and text?

Three things to do next:
  specbench sweep-k demo/draft --time-budget 2m
      try it: the bundled pair needs no download
  specbench pair MODEL --draft DRAFT --dry-run
      does your draft fit your model and this memory? (folders or hub ids)
  specbench run --target MODEL --draft DRAFT
      measure them, with a verdict for chat, code and creative writing

specbench --help lists every command."""


_WITH_RARE = ("run", "sweep-k", "verify")  # their --help omits rare options and those of servers
_OF_SERVERS = {
    name
    for leaf in leaves(ServerSettings)
    if leaf.option is not None
    for name in leaf.option.names_of(leaf.name)
}
_RARE = {"--draft-p-min", "--ray", "--gpus-per-task", "--skip-memory-check", "--verbose"} | {
    name
    for leaf in leaves(RunSettings)
    if leaf.option is not None and leaf.option.is_rare
    for name in leaf.option.names_of(leaf.name)
}
_HIDDEN = "specbench.hidden_options"


class Commands(TyperGroup):
    """The commands, listed in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Each group under its heading, a line per command."""
        groups: dict[str, list[tuple[str, str]]] = {}
        widest = max(map(len, self.commands))
        for name, command in self.commands.items():
            summary = command.get_short_help_str(formatter.width - 6 - widest)
            group = getattr(command, "rich_help_panel", None) or "Commands"
            groups.setdefault(group, []).append((name.ljust(widest), summary))
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class GroupedCommand(TyperCommand):
    """A command whose help lists options in groups: the rare ones only with --help-all, those of
    servers also if one is named."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for parameter in self.params:
            if parameter.param_type_name == "argument":
                parameter.metavar = parameter.metavar or parameter.name.upper()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """--help-all is --help with all options."""
        words = tuple(args)  # the parser takes them out of the list
        if self.name in _WITH_RARE and "--help-all" not in args:
            ctx.meta[_HIDDEN] = _RARE - _OF_SERVERS if _names_server(words) else _RARE | _OF_SERVERS
        if "--help-all" in args:
            args = ["--help"]
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # UsageError, which typer does not export
            message = getattr(error, "message", "")
            if message.startswith("Got unexpected extra argument"):
                ctx.fail("".join([message, *_hints_to_repeat(self.params, words)]))
            if hasattr(error, "param_type") and hasattr(error, "message"):  # MissingParameter
                error.message = self.epilog
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then each group, then the options without a group."""
        panels: dict[str, list[tuple[str, str]]] = {}
        hidden, num_hidden = ctx.meta.get(_HIDDEN, set()), 0
        for parameter in self.get_params(ctx):
            if hidden.intersection(parameter.opts):
                num_hidden += 1
            else:
                panels.setdefault(panel_of(parameter), []).append(record_of(parameter, ctx))
        rest = panels.pop("Options", [])
        if num_hidden:
            servers = " Those of a server: --engine vllm --help." if hidden >= _OF_SERVERS else ""
            more = f"Show this message with {num_hidden} more options.{servers}"
            rest.append(("--help-all", more))
        for heading, records in (*panels.items(), ("Options", rest)):
            with formatter.section(heading):
                formatter.write_dl(records)


def _names_server(words: Sequence[str]) -> bool:
    """Whether the typed words name a serving engine, or the address of one."""
    values = [after for word, after in pairwise(words) if word == "--engine"]
    values += [word.partition("=")[2] for word in words if word.startswith("--engine=")]
    engines = (part for value in values for part in value.split(","))
    is_served = any(spelling(name) in SERVED for name in engines)
    return is_served or any(word.partition("=")[0] == "--base-url" for word in words)


def _hints_to_repeat(parameters: Iterable[Any], words: Sequence[str]) -> Iterator[str]:
    """A correction for each option that takes one value and got two."""
    names = {name for parameter in parameters if parameter.multiple for name in parameter.opts}
    for option, first, second in zip(words, words[1:], words[2:], strict=False):
        if option in names and not second.startswith("-"):
            yield f". Repeat the option for each value: {option} {first} {option} {second}"


def record_of(parameter: Any, ctx: Any) -> tuple[str, str]:
    """The names with a placeholder, then the help with bounds and default in words."""
    if parameter.param_type_name == "argument":
        typed = parameter.metavar + ("..." if parameter.nargs != 1 else "")
    else:
        names = sorted(parameter.opts, key=lambda name: name.startswith("--"))
        typed = " ".join([", ".join(names), *_placeholder(parameter)])
    return typed, " ".join([parameter.help or "", *_bounds(parameter), *_default(parameter, ctx)])


def _placeholder(parameter: Any) -> Iterator[str]:
    if parameter.is_flag:
        return
    kind = str(parameter.type_descriptor.annotation)
    usual = "FILE" if "Path" in kind else "NAME" if "str" in kind else "N"
    yield parameter.metavar or usual


def _bounds(parameter: Any) -> Iterator[str]:
    least, most = (getattr(parameter, name, None) for name in ("min", "max"))
    if most is not None:
        yield f"From {_number(least)} to {_number(most)}."
    elif least is not None:
        yield f"At least {_number(least)}."


def _default(parameter: Any, ctx: Any) -> Iterator[str]:
    if parameter.required:
        yield "Required."
    elif isinstance(parameter.show_default, str):
        yield f"Default: {parameter.show_default}."
    elif parameter.show_default and not getattr(parameter, "is_flag", False):
        value = parameter.get_default(ctx)
        if value is not None:
            yield f"Default: {_number(value)}."


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def panel_of(parameter: Any) -> str:
    """The heading above an option."""
    if parameter.param_type_name == "argument":
        return "Arguments"
    return getattr(parameter, "rich_help_panel", None) or "Options"
