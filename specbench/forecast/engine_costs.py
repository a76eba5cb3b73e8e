"""Step times of another engine: from a table, a result of `vllm bench serve`, or a stored run."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from specbench.errors import UsageError
from specbench.importers.result_file import read_results
from specbench.importers.vllm_bench import has_step_time, step_time
from specbench.inputs.address import Address
from specbench.inputs.strict_yaml import Value, YamlMapping, number, one_of, read_yaml, whole
from specbench.metrics.aggregate import aggregate_run
from specbench.metrics.registry import number_of
from specbench.metrics.summary import summarize
from specbench.records import EngineCost
from specbench.runs import StoredRun, load_run
from specbench.settings import SERVED, AcceptanceRule
from specbench.whole_file import read_errors_named

_SECONDS_PER_UNIT = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "steps": None}
_SHARED = ("engine", "unit", "concurrency", "draft", "overhead")
_PER_ROW = ("k", "tokens", "cost", "mean_acceptance_length")
_MAX_TOKENS = 1025
_MAX_CONCURRENCY = 65536


def read_table(path: Path) -> list[EngineCost]:
    """Every row of the file; UsageError names the line that is wrong."""
    rows = list(_csv_rows(path) if path.suffix.lower() == ".csv" else _yaml_rows(path))
    if not rows:
        raise UsageError(f"{path}:1: no costs; each row gives the cost of a round: k, cost")
    return [_cost(row, path.name) for row in rows]


def _yaml_rows(path: Path) -> Iterator[YamlMapping]:
    """Rows of a list, or of `costs` with the other keys of the file added to each."""
    top = read_yaml(path, UsageError)
    shared: Mapping[str, Value] = {}
    rows = top
    if isinstance(top.node, yaml.MappingNode):
        section = top.section(allowed=(*_SHARED, "costs"))
        shared = {name: value for name, value in section.entries.items() if name != "costs"}
        rows = section.must("costs", lambda value: value)
    for row in rows.items():
        section = row.section(allowed=(*_SHARED, *_PER_ROW))
        yield YamlMapping(value=row, entries={**shared, **section.entries})


def _csv_rows(path: Path) -> Iterator[YamlMapping]:
    try:
        with read_errors_named(path, UsageError):
            content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text; save the file as UTF-8") from error
    reader = csv.reader(io.StringIO(content), skipinitialspace=True)
    names: list[str] = []
    for cells in reader:
        line = reader.line_num
        if not any(cell.strip() for cell in cells):
            continue
        row = Value(file=path, key="", line=line, node=yaml.ScalarNode("", ""), error=UsageError)
        if not names:
            names = [cell.strip() for cell in cells]
            for name in names:
                if name not in (*_SHARED, *_PER_ROW):
                    row.fail(f"unknown column {name!r}; allowed: {', '.join(_PER_ROW + _SHARED)}")
            continue
        if len(cells) > len(names):
            row.fail(f"{len(cells)} values for {len(names)} columns")
        filled = {n: c.strip() for n, c in zip(names, cells, strict=False) if c.strip()}
        yield YamlMapping(
            value=row,
            entries={n: replace(row, key=n, node=_scalar(text)) for n, text in filled.items()},
        )


def _scalar(text: str) -> yaml.ScalarNode:
    """A value as YAML would read it."""
    resolver = yaml.SafeLoader("")
    return yaml.ScalarNode(resolver.resolve(yaml.ScalarNode, text, (True, False)), text)  # type: ignore[no-untyped-call]


def _cost(row: YamlMapping, source: str) -> EngineCost:
    if ("k" in row.entries) == ("tokens" in row.entries):
        row.value.fail("give `k` (draft tokens per round) or `tokens` (tokens per forward)")
    unit = row.may("unit", one_of(tuple(_SECONDS_PER_UNIT)), "s")
    factor = _SECONDS_PER_UNIT[unit]
    cost = row.must("cost", _positive)
    if "tokens" in row.entries:
        k = row.must("tokens", whole(1, _MAX_TOKENS)) - 1
        if k:
            cost += k * row.may("draft", _from_zero, 0.0) + row.may("overhead", _from_zero, 0.0)
    else:
        k = row.must("k", whole(0, _MAX_TOKENS - 1))
    if factor is None and k == 0 and cost != 1:
        row.entries["cost"].fail(f"in units of steps, the cost at K=0 must be 1, not {cost:g}")
    return EngineCost(
        source=source,
        engine=row.may("engine", lambda value: str(value.scalar()), "your engine"),
        num_speculative_tokens=k,
        concurrency=row.may("concurrency", whole(1, _MAX_CONCURRENCY), 1),
        cost=cost * (factor or 1.0),
        is_relative=factor is None,
        mean_acceptance_length=row.may("mean_acceptance_length", _positive, None),
    )


def _positive(value: Value) -> float:
    return number(above=0)(_as_number(value))


def _from_zero(value: Value) -> float:
    amount = number()(_as_number(value))
    if amount < 0:
        value.fail(f"expected 0 or more, not {amount:g}")
    return amount


def _as_number(value: Value) -> Value:
    """A number also for 1e-05, which JSON writes and YAML 1.1 reads as text."""
    if isinstance(value.node, yaml.ScalarNode) and value.node.tag.endswith(":str"):
        try:
            text = repr(float(value.node.value))
        except ValueError:
            return value
        return replace(value, node=yaml.ScalarNode("tag:yaml.org,2002:float", text))
    return value


def read_run(folder: Path) -> list[EngineCost]:
    """Step times from the valid closed-loop cells of a run's exploration phase.

    StoreError if the folder contains no run; UsageError if the run has no such cell, or measured
    several engines.
    """
    costs = list(_costs(load_run(folder.name, folder.parent)))
    engines = sorted({cost.engine for cost in costs})
    if not costs:
        raise UsageError(
            f"--step-times {folder}: this run has no valid cell of a serving engine; give one of "
            "`sweep-k --engine vllm` or the like, or a table of costs (docs/costs.md)"
        )
    if len(engines) > 1:
        raise UsageError(
            f"--step-times {folder}: this run measured {' and '.join(engines)}; give a run of one "
            "engine"
        )
    return costs


def _costs(stored: StoredRun) -> Iterator[EngineCost]:
    versions = {server.engine: server.version for server in stored.servers if server.version}
    for cell in summarize(aggregate_run(stored)):
        condition, draft = cell.key.condition, cell.key.draft
        cost = number_of(cell.metrics, "round_s")
        is_served = condition.engine in SERVED and condition.request_rate is None
        if is_served and cell.valid and cost is not None:
            name = f"{condition.engine} {versions.get(condition.engine, '')}".strip()
            yield EngineCost(
                source=stored.run.run_id,
                engine=f"{name}, variant {condition.variant}" if condition.variant else name,
                num_speculative_tokens=draft.k,
                concurrency=condition.concurrency,
                cost=cost,
                is_relative=False,
                mean_acceptance_length=number_of(cell.metrics, "mean_acceptance_length"),
                speedup=cell.speedup.estimate if cell.speedup else None,
                target=condition.target,
                drafter=draft.drafter if draft.k else None,
                workload=condition.workload,
                temperature=condition.temperature,
                context=condition.context or 0,
                num_samples=condition.num_samples,
            )


def is_address(source: str) -> bool:
    """Whether a source is the address of a server, not a file."""
    return "://" in source


def forecast_acceptance_rule(
    requested: AcceptanceRule | None, costs: Sequence[EngineCost], temperature: float
) -> AcceptanceRule:
    """The requested rule of acceptance, or that of the engine whose costs these are.

    vLLM drafts greedily at any temperature, so P(accepted) is p of the drafter's likeliest token,
    unless its draft_sample_method is changed. At temperature 0 both rules are the same.
    """
    if requested is not None:
        return requested
    is_greedy = temperature > 0 and any("vllm" in cost.engine.lower() for cost in costs)
    return "greedy_draft" if is_greedy else "exact"


def check_sources(sources: Iterable[str]) -> None:
    """UsageError for a file without costs or an invalid address; sends no request."""
    for source in sources:
        if is_address(source):
            Address.at(source, "--step-times")
        else:
            read_file(Path(source))


def read_file(path: Path) -> list[EngineCost]:
    """The costs of a table, a benchmark's results or a run; UsageError names the wrong line."""
    if path.is_dir():
        return read_run(path)
    if path.suffix.lower() in (".json", ".jsonl"):
        results = read_results(path)
        if all(map(has_step_time, results)):
            return list(map(step_time, results))
    return read_table(path)
