"""The command line of a serving engine for a pairing and K, made by its exporter."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from specbench.bench.plan import TargetPlan
from specbench.engines.deployment import Deployment, Export, Tier, find_exporter, tiers_of
from specbench.engines.served_engine import find_served
from specbench.errors import UsageError
from specbench.inputs.pairing import Pairing
from specbench.settings import EXPORTED, STARTED, RunSettings
from specbench.settings.words import PLAIN

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
    return exporter.export(deployment, known_version(engine, settings), exporter.CONFIG_NAME)


def with_adaptive(settings: RunSettings, plans: Sequence[TargetPlan]) -> RunSettings:
    """The settings with the serving engine's own adaptive schemes as variants, if an adaptive K is
    requested of one engine that specbench starts.

    UsageError if it has none for the pairings, if they need different ones, or if other variants
    are given.
    """
    engines, servers = settings.load.engines, settings.servers
    if not settings.draft.adaptive or len(engines) > 1 or engines[0] not in STARTED:
        return settings
    (engine,) = engines
    exporter, version = find_exporter(engine), known_version(engine, settings)
    schemes: dict[str, tuple[str, ...]] = {}
    of_plans = ((plan, pairing) for plan in plans for pairing in plan.pairings)
    for at, pairing in of_plans:
        if (engine, pairing.drafter.name) in at.refused:
            continue
        deployment = Deployment(
            pairing=pairing,
            tiers=tiers_of(settings.load.concurrency, at.largest_k(pairing)),
            temperature=max(settings.sampling.temperatures),
            arguments=servers.engine_args,
        )
        new_schemes = exporter.adaptive(deployment, version, servers.engine_python)
        if not new_schemes:
            raise UsageError(
                f"{engine} has no adaptive scheme for {pairing.drafter.method} ({pairing.name}); "
                "leave --adaptive out, or give its arguments as --variant NAME=ARGS"
            )
        if schemes and new_schemes != schemes:
            raise UsageError(
                f"--adaptive: {engine} adapts {pairing.name} with other arguments than the "
                "pairings before it; make one run for each"
            )
        schemes = new_schemes
    variants = {PLAIN: (), **schemes}
    if servers.variants not in (None, variants):
        raise UsageError(
            f"--adaptive adds variants of its own ({', '.join(schemes)}); leave --variant out, or "
            "leave --adaptive out and give each scheme as a --variant"
        )
    return replace(settings, servers=replace(servers, variants=variants))


def known_version(engine: str, settings: RunSettings) -> str | None:
    """The version to write flags for; None if it is unknown."""
    servers = settings.servers
    ask = find_served(engine).PROPERTIES.ask_version
    if servers.engine_version is None and servers.launch is None and ask is not None:
        return ask(servers.engine_python)
    return servers.engine_version or _installed(engine, servers.engine_python)


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
