"""How much of a round one graph held, as an engine's record tells it."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from specbench.decode.cuda_graphs import Graphs
from specbench.decode.launcher import GraphKind, Launcher
from specbench.records import NO_DRAFTER

Launched = Sequence[tuple[str, Launcher]]  # a drafter's name, and what launched its rounds


def graph_kind(launched: Launched) -> GraphKind:
    """The kind at K = 0; where only drafters ran, that of one that got what was asked for.

    A drafter may have less: why is one of the notes.
    """
    plain = [launcher for name, launcher in launched if name == NO_DRAFTER]
    others = sorted((la for _, la in launched), key=lambda la: la.reason is not None)
    return next((launcher.graph for launcher in (*plain, *others)), "off")


def graph_facts(launched: Launched, graphs: Graphs | None, device: torch.device) -> dict[str, Any]:
    """Fields of an EngineRecord: how rounds are started, and what was spent on that."""
    return {
        "graph": graph_kind(launched) if device.type == "cuda" else "off",
        "num_captures": graphs.num_captures if graphs else None,
        "capture_s": graphs.capture_s if graphs else None,
    }


def graph_notes(launched: Launched) -> Iterator[str]:
    """Why rounds are not the graphs that were asked for; whose, where it is not all of them."""
    names: dict[tuple[str, str], dict[str, None]] = {}
    for name, launcher in launched:
        if launcher.reason is not None:
            names.setdefault((launcher.graph, launcher.reason), {})[name] = None
    for (graph, reason), whose in names.items():
        is_all = len(whose) == len(dict(launched))
        yield f"graphs: {reason}" if is_all else f"graphs of {', '.join(whose)}: {graph}, {reason}"
