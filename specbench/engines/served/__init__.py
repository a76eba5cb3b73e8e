"""Serving engines, driven as they are: one file per engine, found by its name. No torch.

Open `served_engine.py` first: the protocol.
"""

from importlib import import_module
from typing import cast

from specbench.engines.served.served_engine import (
    Launch,
    ServedEngine,
    ServerFacts,
    Start,
    result_of,
)


def find_served(name: str) -> ServedEngine:
    """The engine of that name, which is one of `settings.SERVED`."""
    return cast(ServedEngine, import_module(f"{__name__}.{name}"))


__all__ = [
    "Launch",
    "ServedEngine",
    "ServerFacts",
    "Start",
    "find_served",
    "result_of",
]
