"""Ask every family of the transformers here, and add what becomes of it to a file.

python -m tools.families FILE
"""

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import transformers

from tools.families.proof import Verdict, verdict
from tools.families.registry import families


def main() -> None:
    """Rows of this version, beside those of others that the file has."""
    (name,) = sys.argv[1:]
    file = Path(name)
    versions = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(text_of({**versions, transformers.__version__: _rows()}))


def text_of(versions: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """Verdicts by version and family as JSON, a line per family."""
    parts = []
    for version, rows in versions.items():
        lines = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(rows.items()))
        parts.append(f"{json.dumps(version)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{" + ",\n".join(parts) + "}\n"


def _rows() -> dict[str, Verdict]:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    rows = {}
    for family in families():
        rows[family] = verdict(family).shown
        print(f"{family}: {rows[family].state}", file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    main()
