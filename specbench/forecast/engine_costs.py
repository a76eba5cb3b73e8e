"""--step-times: what rounds cost in the engine that the user serves with, told or timed there.

Acceptance is a matter of the models and the text, costs are the engine's: together they give
its best K. A source is a table (cost_tables), a result file of `vllm bench serve`
(bench_results), the folder of a run that measured an engine (run_costs), or the address of a
running server, which the measuring half times (bench/served_costs.py).
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from specbench.errors import UsageError
from specbench.forecast.bench_results import read_results
from specbench.forecast.cost_tables import read_table
from specbench.forecast.run_costs import read_run
from specbench.inputs.address import Address
from specbench.records import EngineCost
from specbench.settings import AcceptanceRule


def is_address(source: str) -> bool:
    """Whether a source is a server and no file."""
    return "://" in source


def acceptance_rule(
    asked: AcceptanceRule | None, costs: Sequence[EngineCost], temperature: float
) -> AcceptanceRule:
    """How drafts are made and accepted where the costs come from.

    Not asked for, it is that of the engine: vLLM drafts greedily at any temperature unless its
    draft_sample_method says otherwise, so that P(accepted) is p at the draft's likeliest token.
    At temperature 0 both are the same.
    """
    if asked is not None:
        return asked
    is_greedy = temperature > 0 and any("vllm" in cost.engine.lower() for cost in costs)
    return "greedy_draft" if is_greedy else "exact"


def check_sources(sources: Iterable[str]) -> None:
    """UsageError for a file without costs of rounds and a wrong address; no server is asked yet."""
    for source in sources:
        if is_address(source):
            Address.at(source, "--step-times")
        else:
            read_file(Path(source))


def read_file(path: Path) -> list[EngineCost]:
    """A table, a benchmark's results or a run; UsageError says what is wrong, and in which line."""
    if path.is_dir():
        return read_run(path)
    if path.suffix.lower() in (".json", ".jsonl"):
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{path}: not UTF-8 text; save the file as UTF-8") from error
        found = read_results(text, path.name)
        if found is not None:
            return found
    return read_table(path)
