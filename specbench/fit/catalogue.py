"""The published drafts and heads that come with the package, and which of them fit a machine."""

from specbench.errors import UsageError
from specbench.fit.gpus import GIB
from specbench.inputs.config import load_pairings
from specbench.inputs.model_spec import ModelSpec
from specbench.inputs.pairing import Drafter, Pairing
from specbench.settings.words import nearest
from specbench.shipped import shipped


def catalogued(source: str) -> tuple[Drafter, ...]:
    """What the shipped file has for a model, each way of drafting once; UsageError for none."""
    targets = load_pairings(shipped("pairings.yaml")).targets
    found: dict[object, Drafter] = {}
    for target in targets:
        for drafter in target.drafters if target.model.source == source else ():
            draft = drafter.model.source if drafter.model else None
            way = drafter.method, draft, str(drafter.parameters), str(drafter.lossy)
            found.setdefault(way, drafter)
    if not found:
        known = [t.model.source for t in targets if ":" not in t.model.source]
        raise UsageError(
            f"--catalogue has nothing for {source}{nearest(source, known)}; "
            "it knows targets by their hub ids, which `specbench list pairings --json` shows"
        )
    return tuple(found.values())


def fits(pairing: Pairing, memory_bytes: int, device: str) -> bool | None:
    """Whether the weights fit; None where the file does not tell enough.

    KV cache and activations come on top: `memory_plan.py` counts them once the files are here.
    """
    if loaded_gib(pairing, device) * GIB > memory_bytes:
        return False
    return None if pairing.target.model.needs_gib is None else True


def loaded_gib(pairing: Pairing, device: str) -> float:
    """The weights whose size the file tells, as they are loaded."""
    return sum(_loaded_gib(model, device) for model in pairing.models)


def _loaded_gib(model: ModelSpec, device: str) -> float:
    """A CPU loads plain weights in float32, unless told otherwise; the file counts 16 bits."""
    is_widened = device == "cpu" and model.dtype == "auto" and model.quantization is None
    return (model.needs_gib or 0.0) * (2 if is_widened else 1)
