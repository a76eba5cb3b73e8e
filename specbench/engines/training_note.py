"""What `specbench train` left beside a head: for which target it was made."""

from pathlib import Path

from specbench.inputs.model_spec import ModelSpec
from specbench.json_text import parse_json

FILE = "training.json"


def trained_for(spec: ModelSpec) -> str | None:
    """Content hash of the target that a head was trained for; None where nobody says."""
    try:
        said = parse_json((Path(spec.location) / FILE).read_bytes())
        sha256 = said["target"]["sha256"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return sha256 if isinstance(sha256, str) else None
