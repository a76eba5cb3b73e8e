"""How far and how wide a method drafts at K, by its parameters alone."""

from collections.abc import Mapping
from typing import NamedTuple

from specbench.drafting.published import EAGLE_STATIC
from specbench.footprint import DEEPEST_BEAM, num_dynamic_drafts, num_static_drafts, spare_slots
from specbench.inputs.methods import Setting, find_method
from specbench.inputs.pairing import Drafter


class Drafting(NamedTuple):
    """A round's proposal. `own_forwards` are those of the drafter's own layers, one after the
    other; each is a pass over its weights."""

    num_drafts: int  # tokens that the target checks beside the current one
    own_forwards: int
    spare_slots: int = 0  # of its cache, past those of the target's


def drafting(drafter: Drafter, k: int) -> Drafting:
    """What a round k tokens deep drafts; the largest tree where data decide its shape."""
    if k == 0:
        return Drafting(0, 0)
    asked = settings(drafter)
    tree, most = asked.get("tree"), asked.get("max_drafts")
    match drafter.method:
        case "draft_model" | "self_speculation":
            widths = tree if isinstance(tree, tuple) else ()
            return Drafting(num_static_drafts(widths, k), k)
        case "eagle" | "eagle3":
            # One forward of the known tokens, whose last state gives the first drafts for free.
            if tree == "chain":
                return Drafting(k, k)
            if tree == "static":
                static = EAGLE_STATIC.cut(k)
                return Drafting(static.num_drafts, static.depth)
            top_k, drafts = whole(asked.get("top_k")), whole(most)
            depth = min(k, DEEPEST_BEAM)
            num_drafts = num_dynamic_drafts(depth, top_k, drafts)
            return Drafting(num_drafts, depth, spare_slots(top_k, drafts))
        case "medusa":
            return Drafting(k if tree == "chain" else whole(most), 1)
        case "dflash":
            return Drafting(k, 2)
        case "peagle":
            return Drafting(k, min(k, 2))
        case "mtp" | "token_intersection" | "string_match":
            return Drafting(k, k)
        case "token_recycling":
            return Drafting(whole(most), 0)
        case "lookahead":
            window, ngram = whole(asked.get("window")), whole(asked.get("ngram"))
            # The current token is the first of the window.
            return Drafting((ngram - 1) * (window + whole(asked.get("guesses"))) - 1, 0)
    return Drafting(k, 0)


def is_chain(drafter: Drafter) -> bool:
    """Whether it drafts one token after the other, whatever its K is."""
    return all(drafting(drafter, k).num_drafts == k for k in (2, 4))


def settings(drafter: Drafter) -> Mapping[str, Setting]:
    """Its parameters, the method's own defaults where it says nothing."""
    defaults = {p.name: p.default for p in find_method(drafter.method).parameters}
    return {**defaults, **drafter.parameters}


def whole(value: Setting | None) -> int:
    """A parameter that is a whole number; 0 where it is something else."""
    return value if isinstance(value, int) else 0
