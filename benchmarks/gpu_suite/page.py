"""The page of a part: what to look at first, from its JSON document and nothing else.

    python -m benchmarks.gpu_suite.page gpu_PART.json

A section may have `claims` (claims.py), `choices` of kernels, `shares` of a round's time, measured
`points`, `ratios` of engines and a `table` (columns, rows) beside its own figures; the page knows
no section by name.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Json = Mapping[str, Any]
_MOST_CHARS = 300  # of a reason


def page(document: Json) -> str:
    """Markdown: failures and missed claims, kernels that won, where the time goes, tables."""
    found: Json = document["sections"]
    parts = [
        [f"# GPU suite: {document['part']}", "", _where(document)],
        ["## Look at first", "", *_first(found)],
        _titled("## Claims", _claims(found)),
        _titled("## Kernels that won", list(_choices(found))),
        _titled("## Where a round's time goes", _shares(found)),
        _titled("## Beside other engines", list(_ratios(found))),
        *(_titled(f"## {name}", _points(own)) for name, own in found.items()),
        *(_titled(f"## {name}", _own_table(own)) for name, own in found.items()),
        ["## Sections", "", *_sections(found)],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _titled(title: str, lines: Sequence[str]) -> list[str]:
    return [title, "", *lines] if lines else []


def _where(document: Json) -> str:
    machine: Json = document["machine"]
    packages = machine.get("packages", {})
    versions = [
        f"{name} {packages[name]}" for name in ("torch", "transformers") if name in packages
    ]
    facts = [
        machine.get("gpu") or machine.get("device", "?"),
        *versions,
        f"commit {(machine.get('git_commit') or 'unknown')[:12]}",
        f"{document['seconds']:.0f} s of {document['limit_s']:.0f} s",
    ]
    if document["small"]:
        facts.append("**tiny shapes: the figures show nothing**")
    return ", ".join(facts) + "."


def _each(found: Json, key: str) -> Iterator[tuple[str, Json]]:
    """The name of a section, and one of those of its things."""
    for name, own in found.items():
        for one in own.get(key, ()):
            yield name, one


def _first(found: Json) -> Iterator[str]:
    """What failed; then what won, and what takes the time."""
    failed = list(_failed(found))
    yield from failed or ["- nothing failed: no claim was missed, every section has its figures"]
    for _, choice in _each(found, "choices"):
        yield f"- {choice['subject']} runs on **{choice['chosen'] or 'none'}**"
    for _, one in _each(found, "shares"):
        largest = sorted(one["classes"].items(), key=lambda item: -item[1])[:3]
        took = "; ".join(f"{name} {_share(own_s, one['classes'])}" for name, own_s in largest)
        yield f"- a round of {_number(one['round_s'] * 1e6)} us, {one['what']}: {took}"


def _failed(found: Json) -> Iterator[str]:
    """Missed claims, sections that ended with a reason, what was left out or cannot be told."""
    for name, one in _each(found, "claims"):
        if one["holds"] is False:
            measured = _number(one["measured"])
            yield f"- **{name}**: {one['what']}: predicted {one['predicted']}, measured {measured}"
    for name, own in found.items():
        if "reason" in own:
            yield f"- {name} has no figures: {_short(own['reason'])}"
        if left_out := own.get("left_out_for_time"):
            yield f"- {name} left out for time: {_short(', '.join(left_out))}"
    if num_open := sum(one["holds"] is None for _, one in _each(found, "claims")):
        yield f"- claims that cannot be told here: {num_open}; the table says why"


def _claims(found: Json) -> list[str]:
    rows = []
    for name, one in _each(found, "claims"):
        holds = {True: "yes", False: "**no**", None: _short(one["reason"] or "not measured")}
        rows.append([name, one["what"], one["predicted"], one["measured"], holds[one["holds"]]])
    columns = ["section", "claim", "predicted", "measured", "holds"]
    return _table({"columns": columns, "rows": rows}) if rows else []


def _choices(found: Json) -> Iterator[str]:
    for _, choice in _each(found, "choices"):
        yield f"- {choice['subject']}: **{choice['chosen'] or 'none'}**"
        for one in choice["contenders"]:
            said = one["refusal"] or f"{_number(one['seconds'] * 1e6)} us"
            yield f"  - {one['name']}: {_short(said)}"


def _shares(found: Json) -> list[str]:
    """The classes of all rounds side by side, the largest of the first one on top."""
    shares = [one for _, one in _each(found, "shares")]
    kinds = dict.fromkeys(
        kind
        for one in shares
        for kind, _ in sorted(one["classes"].items(), key=lambda item: -item[1])
    )
    rows = [["whole round, us", *(one["round_s"] * 1e6 for one in shares)]]
    rows += [
        [kind, *(_share(one["classes"].get(kind), one["classes"]) for one in shares)]
        for kind in kinds
    ]
    columns = ["", *(one["what"] for one in shares)]
    return _table({"columns": columns, "rows": rows}) if shares else []


def _ratios(found: Json) -> Iterator[str]:
    for name, ratio in _each(found, "ratios"):
        interval = ratio["decode"] or ratio["end_to_end"]
        low, high = _number(interval["low"]), _number(interval["high"])
        yield (
            f"- {name}: {ratio['own']} is {_number(interval['estimate'])}x as fast as "
            f"{ratio['peer']} [{low}, {high}]"
        )


def _sections(found: Json) -> Iterator[str]:
    for name, own in found.items():
        said = f": {_short(own['reason'])}" if "reason" in own else ""
        yield f"- {name}, {own.get('seconds', 0):g} s{said}"


def _points(own: Json) -> list[str]:
    """Ways to decode, beside one another."""
    if not own.get("points"):
        return []
    rows = [
        [
            one["name"],
            one["tokens_per_s"],
            one["round_s"] * 1e6,
            one["idle_share"],
            one["bandwidth_utilization"],
            one["graph"],
        ]
        for one in own["points"]
    ]
    columns = ["", "tokens/s", "round, us", "idle share", "of copy bandwidth", "graph"]
    return _table({"columns": columns, "rows": rows})


def _own_table(own: Json) -> list[str]:
    return _table(own["table"]) if own.get("table", {}).get("rows") else []


def _table(table: Json) -> list[str]:
    columns = table["columns"]
    rows = [[_number(cell) for cell in row] for row in table["rows"]]
    lines = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _number(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-" if value is None else _short(str(value))
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:.0f}"


def _share(own_s: float | None, classes: Mapping[str, float]) -> str:
    if own_s is None:
        return "-"
    return f"{_number(own_s * 1e6)} us, {100 * own_s / (sum(classes.values()) or 1):.0f} %"


def _short(text: str) -> str:
    """A line that breaks no table."""
    line = " ".join(text.split()).replace("|", "/")
    return line if len(line) <= _MOST_CHARS else line[: _MOST_CHARS - 3] + "..."


if __name__ == "__main__":
    print(page(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
