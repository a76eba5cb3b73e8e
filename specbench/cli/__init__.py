"""The command line: one file per command. --help imports only typer.

Read `measure.py` first; `options.py` turns settings into options.
"""

import errno
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Annotated, Any, TextIO

import typer

from specbench import __version__
from specbench.cli.baseline import baseline
from specbench.cli.check import check
from specbench.cli.doctor import doctor
from specbench.cli.export import export
from specbench.cli.help import EXAMPLES, NEXT, Commands, GroupedCommand
from specbench.cli.history import history
from specbench.cli.import_results import import_results
from specbench.cli.init import init
from specbench.cli.inspect_rounds import inspect_rounds
from specbench.cli.listing import list_things
from specbench.cli.measure import run, sweep_k
from specbench.cli.options import with_option_per_field
from specbench.cli.pair import pair
from specbench.cli.recommend import recommend
from specbench.cli.report import report
from specbench.cli.schema import schema
from specbench.cli.verify import verify
from specbench.cli.watch import watch
from specbench.errors import DeviceLostError, ExitCode, SpecbenchError, UsageError, first_line
from specbench.models import library_output
from specbench.untrusted import plain
from specbench.whole_file import REMEDIES, reason_of

# Caused by the path that the user gave, not by a bug.
_PATH_ERRORS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR),
    *(errno.ELOOP, errno.EIO, errno.ESTALE),
)

_UP = "\x1b[A"  # cursor up: progress bars of libraries print it, as well as carriage returns
_RECORDED = ("run", "sweep-k", "pair", "import")  # their arguments are stored

app = typer.Typer(
    name="specbench",
    cls=Commands,
    help=(
        "Does speculative decoding pay off for your target, your GPU and "
        "your text - and with which draft, method and K?"
    ),
    context_settings={
        "help_option_names": ["-h", "--help"],
        "color": False,  # plain_streams would print the codes of typer's own messages
    },
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Measure": {
        "run": with_option_per_field(run),
        "sweep-k": with_option_per_field(sweep_k, draft="0..8"),
        "pair": with_option_per_field(pair),
        "verify": with_option_per_field(verify),
        "inspect": with_option_per_field(inspect_rounds),
        "watch": with_option_per_field(watch),
    },
    "Read results": {
        "report": with_option_per_field(report),
        "recommend": with_option_per_field(recommend),
        "history": with_option_per_field(history),
        "check": with_option_per_field(check),
        "baseline": with_option_per_field(baseline),
        "schema": with_option_per_field(schema),
    },
    "Deploy and exchange": {
        "export": with_option_per_field(export),
        "import": with_option_per_field(import_results),
    },
    "Set up": {
        "init": with_option_per_field(init),
        "doctor": with_option_per_field(doctor),
        "list": with_option_per_field(list_things),
    },
}
for _group, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        _epilog = f"Example: {EXAMPLES[_name]}"
        app.command(_name, cls=GroupedCommand, epilog=_epilog, rich_help_panel=_group)(_command)


class _PlainStream:
    """A stream that replaces control characters with visible ones; rich can unwrap it.

    Progress bars of libraries may still return to the beginning of a line.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        start = "\r" if text.startswith("\r") else ""
        shown = text if not text.replace(_UP, "").strip("\n") else start + plain(text[len(start) :])
        self.rich_proxied_file.write(shown)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def plain_streams() -> Iterator[None]:
    """Replace control characters in all output within the `with` block."""
    streams = _PlainStream(sys.stdout), _PlainStream(sys.stderr)
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        sys.stdout, sys.stderr = (stream.rich_proxied_file for stream in streams)


@app.callback(invoke_without_command=True)
def _without_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    help_all: Annotated[
        bool, typer.Option("--help-all", help="Show every option of every command.")
    ] = False,
) -> None:
    if version:
        typer.echo(f"specbench {__version__}")
    elif help_all:
        group: Any = context.command
        typer.echo(context.get_help())
        for name, command in group.commands.items():
            options = {"parent": context, "resilient_parsing": True}
            typer.echo(f"\n{command.make_context(name, ['--help-all'], **options).get_help()}")
    elif context.invoked_subcommand is None:
        typer.echo(NEXT.format(version=__version__))
    else:
        return
    raise typer.Exit


def main() -> None:
    """The entry point. Prints a message for a SpecbenchError, for disk and path errors, and for a
    GPU without memory. Any other exception is a bug and prints its traceback.

    Typer handles Ctrl-C (exit code 130) and closed pipes, as in `| head`.
    """
    library_output.silence()
    with plain_streams():
        _run()


def _run() -> None:
    try:
        app(args=prepare_arguments(sys.argv[1:]), prog_name=app.info.name)
    except SpecbenchError as error:
        typer.echo(f"error: {error}", err=True)
        is_lost = isinstance(error, DeviceLostError)
        sys.exit(ExitCode.INCOMPLETE if is_lost else ExitCode.USER_ERROR)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in REMEDIES:
            file = error.filename or "standard output"  # only its errors have no file name
            reason = f"{reason_of(error)}, and repeat the command"
            typer.echo(f"error: {file}: cannot be written: {reason}", err=True)
            sys.exit(ExitCode.USER_ERROR)
        if isinstance(error, OSError) and error.errno in _PATH_ERRORS and error.filename:
            typer.echo(f"error: {error.filename}: {error.strerror}", err=True)
            sys.exit(ExitCode.USER_ERROR)
        if type(error).__name__ == "OutOfMemoryError":  # torch's, and torch is not imported here
            remedy = "choose a smaller model or --dtype, or end other programs on the GPU"
            typer.echo(f"error: {first_line(error)}; {remedy}", err=True)
            sys.exit(ExitCode.USER_ERROR)
        import traceback

        traceback.print_exc()
        typer.echo("error: this is a bug in specbench; please report the lines above", err=True)
        sys.exit(ExitCode.BUG)


def prepare_arguments(arguments: list[str]) -> list[str]:
    """The arguments for the parser. Raises UsageError for text that cannot be stored."""
    if arguments and arguments[0] in _RECORDED:
        for word in arguments:
            try:
                word.encode()
            except UnicodeEncodeError:  # half of a surrogate pair represents a byte
                reason = "not UTF-8 text, but everything stored must be"
                raise UsageError(f"{word!r}: {reason}") from None
    return _with_latest(arguments)


def _with_latest(arguments: list[str]) -> list[str]:
    """`--resume` without a value means the newest run, `--ray` the cluster of this machine."""
    defaults = {"--resume": "latest", "--ray": "auto"}
    completed = []
    for argument, next_argument in pairwise([*arguments, "-"]):
        completed.append(argument)
        if argument in defaults and next_argument.startswith("-"):
            completed.append(defaults[argument])
    return completed
