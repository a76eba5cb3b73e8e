"""The command line that starts a server: the engine's own, or a user's template."""

import re
import shlex
from collections.abc import Sequence

from specbench.errors import UsageError

ARGS, PORT = "{args}", "{port}"
_PLACEHOLDER = re.compile(r"\{\w+\}")  # the braces of JSON have quotes within


def command_line(
    template: str | None, default: Sequence[str], args: Sequence[str], *, port: int
) -> list[str]:
    """The default with the flags at its end, or the template with the flags at {args}.

    Example of a template: `docker run --network host image {args}`, split as a shell would.
    UsageError if it cannot be parsed.
    """
    if template is None:
        return [*default, *args]
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise UsageError(f"--engine-command {template}: {error}") from None
    if not words:
        raise UsageError("--engine-command is empty; expected a command that starts a server")
    command: list[str] = []
    for word in words if ARGS in words else [*words, ARGS]:
        unknown = set(_PLACEHOLDER.findall(word)) - {PORT}
        if unknown and word != ARGS:
            raise UsageError(
                f"--engine-command {template}: unknown placeholder {min(unknown)} in {word!r}; "
                f"write {PORT} anywhere, and {ARGS}, as a separate word, for all flags"
            )
        command += args if word == ARGS else [word.replace(PORT, str(port))]
    return command
