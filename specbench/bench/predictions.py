"""What an answer may resemble, guessed from what is asked."""

import re
from collections.abc import Sequence

from specbench.records import Message

_FENCED = re.compile(r"^(```+|~~~+)[^\n]*\n.*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)


def quoted_text(messages: Sequence[Message]) -> str:
    """What the last user message is about: its largest fenced block, else all of it.

    The fences belong to it, as an answer has them, too. Without a user message: nothing.
    """
    said = [message.content for message in messages if message.role == "user"]
    if not said:
        return ""
    blocks = [match.group() for match in _FENCED.finditer(said[-1])]
    return max(blocks, key=len, default=said[-1])
