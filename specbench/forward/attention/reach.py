"""The attention windows of a model's layers, by its loaded config."""

from typing import Any, NamedTuple


class Reach(NamedTuple):
    """The visible positions: the last `window`, or those of the token's `chunk`; else all."""

    window: int | None = None
    chunk: int | None = None


EVERYTHING = Reach()


def reaches(config: Any) -> dict[str, Reach]:
    """The reach of each layer type; one entry means that the model takes a single mask."""
    window = Reach(window=field(config, "sliding_window"))
    known = {
        "full_attention": EVERYTHING,
        "sliding_attention": window,
        "chunked_attention": Reach(chunk=field(config, "attention_chunk_size")),
    }
    kinds = sorted(set(field(config, "layer_types") or ()))
    return {kind: known.get(kind, EVERYTHING) for kind in kinds} if kinds else {"all": window}


def reaches_beside_states(config: Any) -> dict[str, Reach]:
    """The reach of each mask, by its name in models whose other layers keep a state.

    There attention has one name, whatever the layers are called. If only some layers have a
    window, those have another name (LFM3, Zaya).
    """
    window = Reach(window=field(config, "sliding_window"))
    windowed = {"sliding_attention": window, "hybrid_sliding": window}
    kinds = sorted(set(field(config, "layer_types") or ()))
    named = {
        kind: reach for kind in kinds if (reach := {"hybrid": EVERYTHING, **windowed}.get(kind))
    }
    return {"full_attention": window if windowed.keys().isdisjoint(named) else EVERYTHING, **named}


def field(config: Any, name: str) -> Any:
    """A field of a loaded config; None if it has none, or another in each layer (Gemma 4)."""
    try:
        return getattr(config, name, None)
    except RuntimeError:
        return None
