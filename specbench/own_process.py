"""What a process of specbench's own needs to answer another one: its imports, and its output."""

import os
import sys
from typing import TextIO


def child_environment() -> dict[str, str]:
    """The environment of a Python process that imports what this one does."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def answer_stream() -> TextIO:
    """The standard output, which nothing else can print to from now on: libraries print there."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers
