"""What `specbench train` left beside a head: for which target it was made."""

import json
from pathlib import Path

from specbench.model_spec import ModelSpec

FILE = "training.json"


def trained_for(spec: ModelSpec) -> str | None:
    """Content hash of the target that a head was trained for; None where nobody says."""
    try:
        said = json.loads((Path(spec.location) / FILE).read_text(encoding="utf-8"))
        sha256 = said["target"]["sha256"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return sha256 if isinstance(sha256, str) else None
