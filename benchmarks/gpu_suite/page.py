"""The page of a part: what to look at first, from its JSON document and nothing else.

A section may have `claims` (claims.py), `choices` of kernels, `shares` of a round's time and a
`table` (columns, rows) beside its own figures; the page knows no section by name.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]
_MOST_CHARS = 300  # of a reason


def page(document: Json) -> str:
    """Markdown: failures and missed claims, kernels that won, where the time goes, tables."""
    found: Json = document["sections"]
    parts = [
        [f"# GPU suite: {document['part']}", "", _where(document)],
        ["## Look at first", "", *_first(found)],
        _titled("## Claims", list(_claims(found))),
        _titled("## Kernels that won", list(_choices(found))),
        _titled("## Where a round's time goes", list(_shares(found))),
        _titled("## Beside other engines", list(_ratios(found))),
        *(_titled(f"## {name}", _table(own["table"])) for name, own in found.items() if _has(own)),
        ["## Sections", "", *_sections(found)],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _has(section: Json) -> bool:
    return bool(section.get("table", {}).get("rows"))


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


def _first(found: Json) -> Iterator[str]:
    """Missed claims, sections that ended with a reason, then what could not be told."""
    nothing = True
    for name, own in found.items():
        for one in own.get("claims", ()):
            if one["holds"] is False:
                nothing = False
                yield (
                    f"- **{name}**: {one['what']}: predicted {one['predicted']}, "
                    f"measured {_number(one['measured'])}"
                )
    for name, own in found.items():
        if "reason" in own:
            nothing = False
            yield f"- {name} has no figures: {_short(own['reason'])}"
        if left_out := own.get("left_out_for_time"):
            nothing = False
            yield f"- {name} left out for time: {', '.join(left_out)}"
    if open_ := [one for own in found.values() for one in own.get("claims", ()) if not _told(one)]:
        nothing = False
        yield f"- {len(open_)} claims could not be told; the table says why"
    if nothing:
        yield "Nothing: every claim holds and every section has its figures."


def _told(one: Json) -> bool:
    return one["holds"] is not None


def _claims(found: Json) -> Iterator[str]:
    rows = []
    for name, own in found.items():
        for one in own.get("claims", ()):
            holds = {True: "yes", False: "**no**", None: _short(one["reason"] or "not measured")}
            measured = _number(one["measured"])
            rows.append([name, one["what"], one["predicted"], measured, holds[one["holds"]]])
    if rows:
        columns = ["section", "claim", "predicted", "measured", "holds"]
        yield from _table({"columns": columns, "rows": rows})


def _choices(found: Json) -> Iterator[str]:
    for own in found.values():
        for choice in own.get("choices", ()):
            yield f"- {choice['subject']}: **{choice['chosen'] or 'none'}**"
            for one in choice["contenders"]:
                said = one["refusal"] or f"{_number(one['seconds'] * 1e6)} us"
                yield f"  - {one['name']}: {_short(said)}"


def _shares(found: Json) -> Iterator[str]:
    """The classes of all measured rounds side by side, the largest of the first one on top."""
    shares = [
        (f"{own['prefix']}{one['what']}", one)
        for own in _with(found, "shares")
        for one in own["shares"]
    ]
    if not shares:
        return
    names = dict.fromkeys(
        name
        for _, one in shares
        for name, _ in sorted(one["classes"].items(), key=lambda item: -item[1])
    )
    rows = [["whole round, us", *(_number(one["round_s"] * 1e6) for _, one in shares)]]
    rows += [
        [name, *(_percent(one["classes"].get(name), one["round_s"]) for _, one in shares)]
        for name in names
    ]
    yield from _table({"columns": ["", *(what for what, _ in shares)], "rows": rows})


def _with(found: Json, key: str) -> Iterator[dict[str, Any]]:
    several = sum(key in own for own in found.values()) > 1
    for name, own in found.items():
        if key in own:
            yield {**own, "prefix": f"{name}: " if several else ""}


def _ratios(found: Json) -> Iterator[str]:
    for name, own in found.items():
        for ratio in own.get("ratios", ()):
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


def _table(table: Json) -> list[str]:
    columns = table["columns"]
    rows = [[_number(cell) for cell in row] for row in table["rows"]]
    lines = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _number(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-" if value is None else _short(str(value))
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:.0f}"


def _percent(part: float | None, whole: float) -> str:
    return "-" if part is None or not whole else f"{100 * part / whole:.1f} %"


def _short(text: str) -> str:
    """A line that breaks no table."""
    line = " ".join(text.split()).replace("|", "/")
    return line if len(line) <= _MOST_CHARS else line[: _MOST_CHARS - 3] + "..."
