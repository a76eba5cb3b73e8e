"""Deployments of every method, as pairings.yaml would describe them."""

import json
import shlex
from dataclasses import replace
from typing import Any

from specbench.engines.deployment import Deployment, Export, Tier, find_exporter
from specbench.files.model_spec import ModelSpec
from specbench.inputs.pairing import DrafterSpec, Pairing, Target
from specbench.methods import Setting

ROWS = 32_000
TARGET = Target(name="big", model=ModelSpec(source="org/Big-8B", vocab_size=ROWS), drafters=())
MODELS = {
    "draft_model": "org/Small-1B",
    "token_intersection": "org/Other-1B",
    "string_match": "org/Other-1B",
    "eagle": "org/Big-EAGLE",
    "eagle3": "org/Big-EAGLE3",
    "peagle": "org/Big-P-EAGLE",
    "medusa": "org/Big-Medusa",
    "dflash": "org/Big-DFlash",
    "dflash2": "org/Big-DFlash2",
    "dspark": "org/Big-DSpark",
    "gemma4_mtp": "org/Big-assistant",
}
ONE, SEVERAL = (Tier(None, 4),), (Tier(1, 5), Tier(4, 3), Tier(16, 0))


def deployment(
    method: str,
    k: int = 4,
    *,
    tiers: tuple[Tier, ...] = (),
    temperature: float = 0.0,
    dtype: str | None = None,
    target: Target = TARGET,
    **parameters: Setting,
) -> Deployment:
    source = MODELS.get(method.partition("+")[0])  # of a set of two: that of the first
    drafter = DrafterSpec(
        name="drafter",
        method=method,
        model=ModelSpec(source=source, vocab_size=ROWS) if source else None,
        parameters=parameters,
    )
    return Deployment(
        pairing=Pairing(target=target, drafter=drafter),
        tiers=tiers or (Tier(None, k),),
        temperature=temperature,
        dtype=dtype,
    )


def with_draft(made: Deployment, **changes: object) -> Deployment:
    """The deployment with other keys of the draft's model."""
    drafter = made.pairing.drafter
    assert drafter.model is not None
    model = replace(drafter.model, **changes)  # type: ignore[arg-type]
    return replace(made, pairing=replace(made.pairing, drafter=replace(drafter, model=model)))


def exported(engine: str, made: Deployment, version: str | None = None) -> Export:
    exporter = find_exporter(engine)
    return exporter.export(made, version, exporter.CONFIG_NAME)


def config_of(made: Export) -> dict[str, Any]:
    """The value of --speculative-config."""
    config: dict[str, Any] = json.loads(flag(made, "--speculative-config"))
    return config


def flag(made: Export, name: str) -> str:
    """The word after a flag, as a shell hands it over."""
    words = shlex.split(made.command_line)
    return words[words.index(name) + 1]
