"""Writes the parts of README.md that the program makes: its help and the measured table.

    python benchmarks/readme.py        rewrite README.md from benchmarks/embedded_pair.json

A part stands between `<!-- begin NAME -->` and `<!-- end NAME -->`; a test fails when what
stands there is not what this script would write.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
MEASURED = ROOT / "benchmarks" / "embedded_pair.json"


def blocks() -> dict[str, str]:
    """Name and text of every generated part."""
    document = json.loads(MEASURED.read_text(encoding="utf-8"))
    return {
        "help": help_block(),
        "decisions": decisions_block(document),
        "table": table_block(document),
        "provenance": provenance_block(document),
    }


def help_block() -> str:
    """`specbench --help`, 80 columns."""
    done = subprocess.run(
        [sys.executable, "-m", "specbench", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"},
    )
    return f"```\n{done.stdout.strip()}\n```"


def decisions_block(document: Mapping[str, Any]) -> str:
    """The program's sentences, a line each."""
    lines = [
        f"{d['pairing']}, temperature {d['temperature']:g}, {d['sentence']}"
        for d in document["decisions"]
    ]
    return "```\n" + "\n".join(lines) + "\n```"


def table_block(document: Mapping[str, Any]) -> str:
    """Speed-up with its interval and mean acceptance length, per pairing, T, K and workload."""
    cells = [cell for cell in document["cells"] if cell["num_speculative_tokens"] > 0]
    parts = []
    for pairing in dict.fromkeys(cell["pairing"] for cell in cells):
        for temperature in sorted({cell["temperature"] for cell in cells}):
            chosen = [
                c for c in cells if (c["pairing"], c["temperature"]) == (pairing, temperature)
            ]
            if chosen:
                parts.append(_table(f"`{pairing}`, temperature {temperature:g}", chosen))
    return "\n\n".join(parts)


def _table(title: str, cells: list[Mapping[str, Any]]) -> str:
    workloads = list(dict.fromkeys(cell["workload"] for cell in cells))
    by_place = {(cell["num_speculative_tokens"], cell["workload"]): cell for cell in cells}
    lines = [f"| {title}: K | " + " | ".join(workloads) + " |"]
    lines.append("| ---: |" + " ---: |" * len(workloads))
    for k in sorted({cell["num_speculative_tokens"] for cell in cells}):
        row = [_entry(by_place.get((k, workload))) for workload in workloads]
        lines.append(f"| {k} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def _entry(cell: Mapping[str, Any] | None) -> str:
    """`1.92x [1.80, 2.05], 3.4`; an invalid cell is struck out."""
    if cell is None or cell["speedup"] is None:
        return ""
    speedup = cell["speedup"]
    text = f"{speedup['estimate']:.2f}x"
    if speedup["low"] is not None:
        text += f" [{speedup['low']:.2f}, {speedup['high']:.2f}]"
    text += f", {cell['metrics']['mean_acceptance_length']:.1f}"
    return text if cell["valid"] else f"~~{text}~~"


def provenance_block(document: Mapping[str, Any]) -> str:
    """One sentence: where the table comes from."""
    e = document["environment"]
    prompts = sorted({cell["num_prompts"] for cell in document["cells"]})
    counts = str(prompts[0]) if len(prompts) == 1 else f"{prompts[0]} to {prompts[-1]}"
    return (
        f"Run {document['run_id']}: `{' '.join(e['command'])}`, {e['cpu']}, "
        f"{e['threads']} thread, torch {e['packages']['torch']}, transformers "
        f"{e['packages']['transformers']}, float32, concurrency 1, {counts} prompts a cell."
    )


def rewritten(text: str) -> str:
    """README text with every generated part made anew."""
    for name, block in blocks().items():
        pattern = rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)"
        text, found = re.subn(
            pattern, lambda m, b=block: f"{m[1]}{b}\n{m[2]}", text, flags=re.DOTALL
        )
        if found != 1:
            raise ValueError(f"README.md needs one part named {name}, it has {found}")
    return text


if __name__ == "__main__":
    README.write_text(rewritten(README.read_text(encoding="utf-8")), encoding="utf-8")
