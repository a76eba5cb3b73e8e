"""One speculative cell and its baseline; other cells are these with other axes."""

from typing import Any

from specbench.records import CellKey, Condition, DraftConfig, Fixed

KEY = CellKey(
    condition=Condition(
        target="demo",
        workload="code",
        temperature=0.0,
        concurrency=1,
        dtype="float32",
        engine="builtin",
    ),
    draft=DraftConfig(drafter="draft", method="draft_model", length=Fixed(4)),
)
BASE_KEY = CellKey(condition=KEY.condition, draft=DraftConfig.none)


def with_axes(key: CellKey, **axes: Any) -> CellKey:
    """The key with other axes, named as files name them; a pairing names its two models."""
    if "pairing" in axes:
        target, _, drafter = axes["pairing"].partition("/")
        axes = {"target": target, "drafter": drafter or DraftConfig.none.drafter, **axes}
    flat = {**key.flat, **axes}
    target, drafter = flat["target"], flat["drafter"]
    flat["pairing"] = target if drafter == DraftConfig.none.drafter else f"{target}/{drafter}"
    return CellKey.of_flat(flat)


def cell_key(**axes: Any) -> CellKey:
    """`KEY` with other axes."""
    return with_axes(KEY, **axes)
