"""A small table of what rounds cost in somebody's engine: JSON, YAML or CSV; docs/costs.md.

A row says what one round costs at K (`k`, `cost`), or what the target's forward over some
tokens of each request costs (`tokens`, `cost`), with what drafting adds to it (`draft`,
`overhead`): K c + v(K + 1) + h.
"""

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from specbench.errors import UsageError
from specbench.inputs.strict_yaml import Section, Value, number, one_of, read_yaml, whole
from specbench.records import EngineCost

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "steps": None}
SHARED = ("engine", "unit", "concurrency", "draft", "overhead")
_OWN = ("k", "tokens", "cost", "mean_acceptance_length")
_MOST_TOKENS = 1025
_MOST_REQUESTS = 65536


def read_table(path: Path) -> list[EngineCost]:
    """Every row of the file; UsageError names the line that is wrong."""
    rows = list(_csv_rows(path) if path.suffix.lower() == ".csv" else _yaml_rows(path))
    if not rows:
        raise UsageError(f"{path}:1: no costs; each row gives the cost of a round: k, cost")
    return [_cost(row, path.name) for row in rows]


def _yaml_rows(path: Path) -> Iterator[Section]:
    """Rows of a list, or of `costs` beside values that hold for all of them."""
    top = read_yaml(path, UsageError)
    shared: Mapping[str, Value] = {}
    rows = top
    if isinstance(top.node, yaml.MappingNode):
        section = top.section(allowed=(*SHARED, "costs"))
        shared = {name: value for name, value in section.entries.items() if name != "costs"}
        rows = section.must("costs", lambda value: value)
    for row in rows.items():
        own = row.section(allowed=(*SHARED, *_OWN))
        yield Section(value=row, entries={**shared, **own.entries})


def _csv_rows(path: Path) -> Iterator[Section]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text; save the file as UTF-8") from error
    reader = csv.reader(io.StringIO(text), skipinitialspace=True)
    names: list[str] = []
    for cells in reader:
        line = reader.line_num
        if not any(cell.strip() for cell in cells):
            continue
        place = Value(file=path, key="", line=line, node=yaml.ScalarNode("", ""), error=UsageError)
        if not names:
            names = [cell.strip() for cell in cells]
            for name in names:
                if name not in (*SHARED, *_OWN):
                    place.fail(f"unknown column {name!r}; allowed: {', '.join((*_OWN, *SHARED))}")
            continue
        if len(cells) > len(names):
            place.fail(f"{len(cells)} values for {len(names)} columns")
        filled = {n: c.strip() for n, c in zip(names, cells, strict=False) if c.strip()}
        yield Section(
            value=place,
            entries={n: replace(place, key=n, node=_scalar(text)) for n, text in filled.items()},
        )


def _scalar(text: str) -> yaml.ScalarNode:
    """A value as YAML would read it."""
    resolver = yaml.SafeLoader("")
    return yaml.ScalarNode(resolver.resolve(yaml.ScalarNode, text, (True, False)), text)  # type: ignore[no-untyped-call]


def _cost(row: Section, source: str) -> EngineCost:
    if ("k" in row.entries) == ("tokens" in row.entries):
        row.value.fail("give `k` (drafts per round) or `tokens` (tokens per forward)")
    unit = row.may("unit", one_of(tuple(UNITS)), "s")
    factor = UNITS[unit]
    cost = row.must("cost", _positive)
    if "tokens" in row.entries:
        k = row.must("tokens", whole(1, _MOST_TOKENS)) - 1
        if k:
            cost += k * row.may("draft", _from_zero, 0.0) + row.may("overhead", _from_zero, 0.0)
    else:
        k = row.must("k", whole(0, _MOST_TOKENS - 1))
    if factor is None and k == 0 and cost != 1:
        row.entries["cost"].fail(f"a step without speculation is 1 step, not {cost:g}")
    return EngineCost(
        source=source,
        engine=row.may("engine", lambda value: str(value.scalar()), "your engine"),
        num_speculative_tokens=k,
        concurrency=row.may("concurrency", whole(1, _MOST_REQUESTS), 1),
        cost=cost * (factor or 1.0),
        is_relative=factor is None,
        mean_acceptance_length=row.may("mean_acceptance_length", _positive, None),
    )


def _positive(value: Value) -> float:
    return number(above=0)(_as_number(value))


def _from_zero(value: Value) -> float:
    found = number()(_as_number(value))
    if found < 0:
        value.fail(f"0 or more is needed, not {found:g}")
    return found


def _as_number(value: Value) -> Value:
    """JSON writes 1e-05, which YAML 1.1 takes for text."""
    if isinstance(value.node, yaml.ScalarNode) and value.node.tag.endswith(":str"):
        try:
            text = repr(float(value.node.value))
        except ValueError:
            return value
        return replace(value, node=yaml.ScalarNode("tag:yaml.org,2002:float", text))
    return value
