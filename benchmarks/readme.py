"""Writes the parts of pages that the program makes: figures and tables.

    python -m benchmarks.readme [--made-run RUN] [--sweep RUN] [--methods RUN]

rewrites the pages from what lies in benchmarks/, after taking over the stored runs (folders, ids
under reports/, or `latest`) that are named: what `make run` measured, the longer sweep, every
method side by side.

A part stands between `<!-- begin NAME -->` and `<!-- end NAME -->`; a test fails when what
stands there is not what this script would write. All figures of README.md are of one run.
"""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import break_even
from benchmarks.front_chart import front_chart
from specbench.report.document import build_document
from specbench.report.document_json import to_json
from specbench.report.html import pictures
from specbench.runs import load_run

ROOT = Path(__file__).parents[1]
README, RESULTS = ROOT / "README.md", ROOT / "benchmarks" / "results.md"
WHEN_NOT = ROOT / "docs" / "when-not-to-speculate.md"
MADE_RUN = ROOT / "benchmarks" / "make_run.json"
SWEEP = ROOT / "benchmarks" / "embedded_pair.json"
METHODS = ROOT / "benchmarks" / "methods.json"
FRONT_FIGURE = ROOT / "benchmarks" / "make_run.svg"
FIGURE = ROOT / "benchmarks" / "embedded_pair.svg"
BREAK_EVEN = ROOT / "docs" / "break-even.svg"

_STRUCK_OUT = "Struck out: not used, as the cell has fewer than 30 rounds or is otherwise invalid."


def blocks() -> dict[Path, dict[str, str]]:
    """Of each page the name and text of every generated part."""
    made_run = json.loads(MADE_RUN.read_text(encoding="utf-8"))
    sweep = json.loads(SWEEP.read_text(encoding="utf-8"))
    methods = json.loads(METHODS.read_text(encoding="utf-8"))
    answer = {"answer": answer_block(made_run), "made-run": provenance_line(made_run)}
    tables = {
        "made-table": table_block(made_run),
        "table": table_block(sweep),
        "decisions": answer_block(sweep),
        "provenance": provenance_line(sweep),
        "methods": methods_block(methods),
        "methods-run": provenance_line(methods),
    }
    return {
        README: answer,
        RESULTS: answer | tables,
        WHEN_NOT: {"break-even": break_even.table()},
    }


def take_over(run: str, place: Path) -> None:
    """Keep a stored run as a JSON document, and the picture that belongs to it."""
    document = build_document(load_run(run, Path("reports")))
    told = to_json(document)
    place.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    if place == SWEEP:
        FIGURE.write_text(standalone(pictures(document).proof[0].panels), encoding="utf-8")
    if place == MADE_RUN:
        FRONT_FIGURE.write_text(standalone([front_chart(told["decisions"])]), encoding="utf-8")


def standalone(panels: Sequence[str]) -> str:
    """The panels of a chart side by side as a file, readable on light and dark pages."""
    sizes = [re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', panel) for panel in panels]
    widths = [float(size[1]) for size in sizes if size]
    heights = [float(size[2]) for size in sizes if size]
    placed = (
        panel.replace("<svg", f'<svg x="{sum(widths[:i]):g}" width="{width:g}"', 1)
        for i, (panel, width) in enumerate(zip(panels, widths, strict=True))
    )
    namespace = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    style = (
        "<style>svg { color: #1f2328; font-family: sans-serif }"
        " @media (prefers-color-scheme: dark) { svg { color: #e6edf3 } }</style>"
    )
    box = f'viewBox="0 0 {sum(widths):g} {max(heights):g}"'
    return f"<svg {namespace} {box}>{style}{''.join(placed)}</svg>\n"


def answer_block(document: Mapping[str, Any]) -> str:
    """The program's sentences, a line each, and whose figures they are."""
    several = len({d["temperature"] for d in document["decisions"]}) > 1
    lines = [
        f"{d['pairing']}, temperature {d['temperature']:g}, {d['text']}"
        if several
        else f"{d['pairing']}, {d['text']}"
        for d in document["decisions"]
    ]
    machine = document["environment"]
    return (
        "```\n" + "\n".join(lines) + "\n```\n\n"
        f"These are the figures of one machine ({machine['cpu']}, {_threads(machine)}). Yours will "
        "differ, and intervals are wider on a busy machine."
    )


def _threads(environment: Mapping[str, Any]) -> str:
    return f"{environment['threads']} thread{'s' if environment['threads'] != 1 else ''}"


def table_block(document: Mapping[str, Any]) -> str:
    """Speedup with its interval and mean acceptance length, per pairing, T, K and workload."""
    cells = [cell for cell in document["cells"] if cell["num_speculative_tokens"] > 0]
    parts = []
    for pairing in dict.fromkeys(cell["pairing"] for cell in cells):
        for temperature in sorted({cell["temperature"] for cell in cells}):
            chosen = [
                c for c in cells if (c["pairing"], c["temperature"]) == (pairing, temperature)
            ]
            if chosen:
                parts.append(_table(f"`{pairing}`, temperature {temperature:g}", chosen))
    return _explained("\n\n".join(parts))


def methods_block(document: Mapping[str, Any]) -> str:
    """A line a drafter: speedup with its interval and mean acceptance length by workload."""
    cells = [cell for cell in document["cells"] if cell["num_speculative_tokens"] > 0]
    workloads = list(dict.fromkeys(cell["workload"] for cell in cells))
    by_place = {(cell["pairing"], cell["workload"]): cell for cell in cells}
    lines = ["| drafter | method | " + " | ".join(workloads) + " |"]
    lines.append("| --- | --- |" + " ---: |" * len(workloads))
    for pairing, method in dict.fromkeys((cell["pairing"], _method(cell)) for cell in cells):
        row = [_entry(by_place.get((pairing, workload))) for workload in workloads]
        lines.append(f"| `{pairing}` | {method} | " + " | ".join(row) + " |")
    return _explained("\n".join(lines))


def _explained(table: str) -> str:
    """The table, and what a struck-out figure means where there is one."""
    return f"{table}\n\n{_STRUCK_OUT}" if "~~" in table else table


def _table(title: str, cells: list[Mapping[str, Any]]) -> str:
    workloads = list(dict.fromkeys(cell["workload"] for cell in cells))
    by_place = {(cell["num_speculative_tokens"], cell["workload"]): cell for cell in cells}
    lines = [f"| {title}: K | " + " | ".join(workloads) + " |"]
    lines.append("| ---: |" + " ---: |" * len(workloads))
    for k in sorted({cell["num_speculative_tokens"] for cell in cells}):
        row = [_entry(by_place.get((k, workload))) for workload in workloads]
        lines.append(f"| {k} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def _method(cell: Mapping[str, Any]) -> str:
    return f"{cell['method']} (lossy)" if cell.get("lossy") else cell["method"]


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


def provenance_line(document: Mapping[str, Any]) -> str:
    """One sentence: where the table comes from."""
    e = document["environment"]
    prompts = sorted({cell["num_prompts"] for cell in document["cells"]})
    counts = str(prompts[0]) if len(prompts) == 1 else f"{prompts[0]} to {prompts[-1]}"
    cell = document["cells"][0]
    forwards = {one["forward"] for one in document.get("engines", ()) if one["forward"]}
    forward = f"{forwards.pop()} forward, " if len(forwards) == 1 else ""
    return (
        f"Run {document['run_id']} of commit {(e['git_commit'] or 'unknown')[:7]}: "
        f"`{' '.join(e['command'])}`, {e['cpu']}, "
        f"{_threads(e)}, torch {e['packages']['torch']}, transformers "
        f"{e['packages']['transformers']}, {forward}{cell['dtype']}, concurrency "
        f"{cell['concurrency']}, {counts} prompt{'s' if counts != '1' else ''} "
        "per drafter, K and workload."
    )


def rewritten(page: Path) -> str:
    """A page's text with every generated part made anew."""
    return filled(page.read_text(encoding="utf-8"), blocks()[page])


def filled(text: str, parts: Mapping[str, str]) -> str:
    """A page with each part between its marks; ValueError where they are not there once."""
    for name, block in parts.items():
        pattern = rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)"
        text, found = re.subn(
            pattern, lambda m, b=block: f"{m[1]}{b}\n{m[2]}", text, flags=re.DOTALL
        )
        if found != 1:
            raise ValueError(f"the page needs one part named {name}, it has {found}")
    return text


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    places = {"--made-run": MADE_RUN, "--sweep": SWEEP, "--methods": METHODS}
    for option in places:
        parser.add_argument(option)
    asked = vars(parser.parse_args())
    for option, place in places.items():
        if run := asked[option.strip("-").replace("-", "_")]:
            take_over(run, place)
    BREAK_EVEN.write_text(standalone([break_even.chart()]), encoding="utf-8")
    for page in blocks():
        page.write_text(rewritten(page), encoding="utf-8")
