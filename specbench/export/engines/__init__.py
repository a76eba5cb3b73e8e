"""A deployment as each engine's own flags: one file per engine, found by its name."""

import pkgutil
from importlib import import_module
from typing import cast

from specbench.errors import UsageError
from specbench.export.deployment import Deployment, Exporter, Tier
from specbench.inputs.pairing import Pairing


def engines() -> tuple[str, ...]:
    """The engines that can be exported to."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def find_exporter(engine: str) -> Exporter:
    """The exporter of that engine; UsageError names those there are."""
    if engine not in engines():
        raise UsageError(f"--engine {engine!r}: allowed are {', '.join(engines())}")
    return cast(Exporter, import_module(f"{__name__}.{engine}"))


def vocabulary_notes(engine: str, pairing: Pairing, temperature: float) -> list[str]:
    """What an engine does with the draft model's vocabulary, or why it cannot draft with it."""
    deployment = Deployment(pairing=pairing, tiers=(Tier(None, 1),), temperature=temperature)
    try:
        return find_exporter(engine).vocabulary_notes(deployment)
    except UsageError as error:
        return [str(error)]
