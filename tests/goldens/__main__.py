"""Writes expected/*.json again, all of them or the named families."""

import sys
import tempfile
from importlib import import_module
from pathlib import Path

from tests.goldens import FAMILIES, write

for family in sys.argv[1:] or FAMILIES:
    with tempfile.TemporaryDirectory() as folder:
        write(family, import_module(f"tests.goldens.{family}").all_facts(Path(folder)))
