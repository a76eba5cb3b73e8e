"""The published drafts and heads that come with the package, and which of them fit a machine."""

from specbench.errors import UsageError
from specbench.fit.demand import loaded_bytes
from specbench.fit.memory_plan import Place
from specbench.inputs.config import load_pairings
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


def fits(pairing: Pairing, place: Place) -> bool | None:
    """Whether the weights fit; None where the file does not tell enough.

    KV cache and activations come on top: `memory_plan.py` counts them once the files are here.
    """
    weights = sum(loaded_bytes(model, place) for model in pairing.models)
    if weights > (place.memory_bytes or 0):
        return False
    return None if pairing.target.model.needs_gib is None else True
