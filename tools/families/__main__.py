"""Ask every family and write what becomes of it.

python -m tools.families --rows rows.json         one version's rows, of the transformers here
python -m tools.families --page ROWS ROWS ...     docs/families.md, of the rows of all versions
"""

import argparse
import json
import sys
import warnings
from pathlib import Path

import torch
import transformers

from tools.families.proof import Verdict, verdict
from tools.families.registry import families
from tools.families.table import render

PAGE = Path(__file__).parents[2] / "docs" / "families.md"


def main() -> None:
    """Rows to a file, or the page of several."""
    parser = argparse.ArgumentParser(prog="python -m tools.families")
    parser.add_argument("--rows", type=Path, help="write this version's rows here")
    parser.add_argument("--page", type=Path, nargs="+", help="rows of all versions")
    asked = parser.parse_args()
    if asked.rows:
        asked.rows.write_text(json.dumps(_rows(), indent=1))
    if asked.page:
        PAGE.write_text(page_of(asked.page))


def page_of(files: list[Path]) -> str:
    """The page of several versions' rows."""
    columns = {}
    for file in files:
        said = json.loads(file.read_text())
        rows = said["families"].items()
        columns[said["transformers"]] = {name: Verdict(*row) for name, row in rows}
    return render(columns)


def _rows() -> dict[str, object]:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    rows = {}
    for family in families():
        rows[family] = verdict(family)
        print(f"{family}: {rows[family].state}", file=sys.stderr, flush=True)
    return {"transformers": transformers.__version__, "families": rows}


if __name__ == "__main__":
    main()
