"""The command line of a serving engine for a pairing and K, made by its exporter."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from specbench.engines.deployment import Deployment, Export, Tier, find_exporter
from specbench.engines.served_engine import find_served
from specbench.errors import UsageError
from specbench.inputs.pairing import Pairing
from specbench.settings import EXPORTED, RunSettings

PROBE_K = 1  # to test whether the engine has a method
ASK_S = 30.0
_ASK_VERSION = """
import sys
from importlib.metadata import PackageNotFoundError, version
for name in sys.argv[1:]:
    try:
        print(version(name))
        break
    except PackageNotFoundError:
        pass
"""
# A folder of the same name in the working folder has no origin.
_ASK_MODULE = """
import sys
from importlib.util import find_spec
print(getattr(find_spec(sys.argv[1]), "origin", None) is not None)
"""


def unsupported_pairings(
    engine: str, pairings: Sequence[Pairing], settings: RunSettings
) -> Iterator[tuple[Pairing, str]]:
    """The pairings that an engine cannot draft with, and the reasons."""
    if engine not in EXPORTED:  # it is measured only as a running server, with any drafter
        return
    acceptance = settings.decoder.acceptance
    k = min(acceptance) if isinstance(acceptance, Mapping) else PROBE_K
    for pairing in pairings:
        try:
            temperature = max(settings.sampling.temperatures)
            exported(engine, pairing, k, settings, temperature=temperature)
        except UsageError as error:
            yield pairing, str(error)


def exported(
    engine: str,
    pairing: Pairing,
    k: int,
    settings: RunSettings,
    *,
    temperature: float = 0.0,
    dtype: str | None = None,
) -> Export:
    """The engine's command line for the pairing at K; K = 0: only the target.

    UsageError if the engine cannot draft with the pairing.
    """
    deployment = Deployment(
        pairing=pairing,
        tiers=(Tier(None, k),),
        temperature=temperature,
        dtype=dtype,
        acceptance=settings.decoder.simulated,
    )
    exporter = find_exporter(engine)
    version = settings.servers.engine_version or _installed(engine, settings.servers.engine_python)
    return exporter.export(deployment, version, exporter.CONFIG_NAME)


@cache
def _installed(engine: str, python: Path | None) -> str | None:
    """The engine's version in its environment; None if it is unknown."""
    names = find_served(engine).PROPERTIES.distributions
    if python is None or not names:
        return None
    done = _run(python, _ASK_VERSION, *names)
    return done.stdout.strip() or None if done is not None else None


@cache
def require_module(python: Path, module: str) -> None:
    """Raise UsageError if the interpreter does not run, or lacks the module (not imported)."""
    done = _run(python, _ASK_MODULE, module)
    if done is None or done.stdout.strip() not in ("True", "False"):
        detail = "" if done is None else done.stderr.strip().rpartition("\n")[2]
        raise UsageError(
            f"--engine-python {python} does not run as a Python{detail and f' ({detail})'}; give "
            "the Python of the engine's environment"
        )
    if done.stdout.strip() == "False":
        raise UsageError(
            f"--engine-python {python} has no module {module}; give the Python of the "
            f"environment that has the engine, or install it there: {python} -m pip install "
            f"{module}"
        )


def _run(python: Path, script: str, *args: str) -> subprocess.CompletedProcess[str] | None:
    """The completed script; None if it cannot be run."""
    command = [str(python), "-c", script, *args]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ASK_S)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
