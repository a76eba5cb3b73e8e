"""Names that a shell completes: pairings, targets, workloads, engines, methods and runs."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import typer

from specbench.errors import SpecbenchError
from specbench.settings.words import ENGINES, EXPORTED

Names = Callable[[Mapping[str, Any]], Iterable[str]]  # of the parameters typed so far


def completion_of(parameter: str) -> Callable[..., list[str]] | None:
    """Typer's callback for the values of a parameter of that name; None: the shell completes files.

    A file that cannot be read has no names.
    """
    if (names := _NAMES.get(parameter)) is None:
        return None

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        listed = incomplete[: incomplete.rfind(",") + 1]  # `builtin,` of `builtin,v`
        try:
            return [listed + name for name in names(context.params)]
        except (SpecbenchError, OSError):
            return []

    return complete


def _pairings(given: Mapping[str, Any]) -> Iterable[str]:
    from specbench.inputs.config import load_pairings

    known = load_pairings(given.get("pairings_file")).known
    return dict.fromkeys(name for p in known for name in (p.target.name, p.name))


def _workloads(_: Mapping[str, Any]) -> Iterable[str]:
    from specbench.inputs.workloads import find_workloads

    return find_workloads()


def _methods(_: Mapping[str, Any]) -> Iterable[str]:
    from specbench.methods import listed_methods

    return (method.name for method in listed_methods())


def _runs(given: Mapping[str, Any]) -> Iterable[str]:
    from specbench.runs.reader import LATEST, RUN_FILE

    ids = [file.parent.name for file in given["runs_dir"].glob(f"*/{RUN_FILE}")]
    return [*ids, LATEST] if ids else ids


_NAMES: Mapping[str, Names] = {
    **dict.fromkeys(("pairing", "pairings"), _pairings),
    **dict.fromkeys(
        ("target", "word", "named"),
        lambda given: (name for name in _pairings(given) if "/" not in name),
    ),
    **dict.fromkeys(("workload", "workloads"), _workloads),
    **dict.fromkeys(("method", "methods"), _methods),
    **dict.fromkeys(("run", "runs", "resume", "baseline", "candidate"), _runs),
    "engine": lambda _: EXPORTED,  # of `export`
    "engines": lambda _: ENGINES,
}
