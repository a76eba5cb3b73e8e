"""JSON of unknown origin: anything wrong with it is a ValueError."""

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Like json.loads, but with a ValueError also for deep nesting."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
