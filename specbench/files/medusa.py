"""Medusa heads in files: names and shapes of their tensors, and the tree that they draft.

The tree is a published one, or is fitted to accuracies in the head's config.
"""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from specbench.errors import ModelError, UsageError
from specbench.files.head_files import (
    TOKEN_MAP,
    AnyFiles,
    Fit,
    HeadFiles,
    HeadTarget,
    Shaped,
    misfits,
)
from specbench.topology import MC_SIM_7B_63, VICUNA_7B_STAGE2, Topology

_PREFIXES = ("medusa_head.", "medusa_heads.")
_SHARED = "lm_head.weight"


class _Names(NamedTuple):
    """The names of head i's tensors in a file."""

    numbers: re.Pattern[str]  # matches a layer's name; its groups are the head and the layer
    layer: str
    out: str


# Medusa's own names: a head's layers and its output matrix are numbered in one list.
_OUR_NAMES = _Names(
    numbers=re.compile(r"(\d{1,3})\.(\d{1,3})\.linear\.weight"),
    layer="{i}.{j}.linear.{kind}",
    out="{i}.{num_layers}.weight",
)
_VLLM = _Names(
    numbers=re.compile(r"blocks\.(\d{1,3})\.layers\.(\d{1,3})\.weight"),
    layer="blocks.{i}.layers.{j}.{kind}",
    out="lm_heads.{i}.weight",
)


def medusa_tensors(files: AnyFiles) -> AnyFiles:
    """The files with only the heads' tensors, if they are those of a whole model."""
    for prefix in _PREFIXES:
        if any(name.startswith(prefix) for name in files.tensors):
            files = files.under(prefix)
    return files


def count_heads(files: HeadFiles[Any]) -> int:
    """The number of heads in `medusa_tensors`, which a config may misstate; ModelError if 0."""
    return len({i for i, _ in _numbers(files)})


def count_tokens(files: HeadFiles[Any]) -> int | None:
    """The number of tokens that the heads can draft; None: all of the target's."""
    map_shape = files.shape(TOKEN_MAP) if TOKEN_MAP in files.tensors else ()
    return map_shape[0] if map_shape else None


def token_map(files: HeadFiles[Any], V: int) -> list[int] | None:
    """The target's id of each token that the heads of `medusa_tensors` can draft; None: all V.
    ModelError if the map is not a list of the target's ids."""
    if TOKEN_MAP not in files.tensors:
        return None
    shape = files.shape(TOKEN_MAP)
    if len(shape) != 1 or not shape[0]:
        raise ModelError(f"{files.source}: {TOKEN_MAP} is not a list of token ids")
    ids = files.whole_numbers(TOKEN_MAP)
    if wrong := [i for i in ids if not 0 <= i < V]:
        raise ModelError(
            f"{files.source}: {TOKEN_MAP} names the id {wrong[0]}; the target has {V} ids"
        )
    return ids


def medusa_fields(files: HeadFiles[Shaped]) -> dict[str, object]:
    """Fields that servers need in the config of the heads in `medusa_tensors`.

    If the fields are absent, vLLM assumes no biases, a matrix for each head, one layer and Vicuna's
    size. Source: vLLM at 01dbb08, models/medusa.py; its 0.32, configs/medusa.py.
    """
    tensors, names = files.tensors, _names(files)
    num_layers = len({j for _, j in _numbers(files)})
    shared = _SHARED in tensors
    out = _SHARED if shared else names.out.format(i=0, num_layers=num_layers)
    first = names.layer.format(i=0, j=0, kind="weight")
    bias = names.layer.format(i=0, j=0, kind="bias")
    rows = "truncated_vocab_size" if TOKEN_MAP in tensors else "vocab_size"
    return {
        "model_type": "medusa",
        "hidden_size": files.shape(first)[-1],
        rows: files.shape(out)[0],
        "medusa_num_heads": count_heads(files),
        "medusa_num_layers": num_layers,
        **({"medusa_fc_bias": True} if bias in tensors else {}),
        **({"original_lm_head": True} if shared else {}),
    }


def _numbers(files: HeadFiles[Any]) -> set[tuple[int, int]]:
    """Head and layer numbers in the names of tensors."""
    matches = [_names(files).numbers.fullmatch(name) for name in files.tensors]
    numbers = {(int(match[1]), int(match[2])) for match in matches if match}
    if not numbers:
        raise ModelError(
            f"{files.source} has no Medusa heads; their tensors are named like "
            "0.0.linear.weight or blocks.0.layers.0.weight"
        )
    return numbers


def _names(files: HeadFiles[Any]) -> _Names:
    return _VLLM if any(_VLLM.numbers.fullmatch(name) for name in files.tensors) else _OUR_NAMES


@dataclass(frozen=True, kw_only=True, slots=True)
class MedusaLayout:
    """Names of the tensors, by residual layer and head; `outs` has one name if heads share it."""

    num_heads: int
    num_tokens: int  # tokens that the heads can draft
    weights: list[list[str]]
    biases: list[list[str]]
    outs: list[str]
    shapes: dict[str, tuple[int, ...]]
    has_bias: bool

    @property
    def optional(self) -> frozenset[str]:
        """All biases if the files have none, which means they are zero; otherwise empty."""
        return frozenset() if self.has_bias else frozenset(n for row in self.biases for n in row)

    @classmethod
    def of(cls, files: HeadFiles[Shaped], target: HeadTarget) -> "MedusaLayout":
        """The layout by the tensors, since a config may misstate the numbers of heads and layers.

        `files` come from `medusa_tensors`. ModelError if they have no heads.
        """
        tensors, size = files.tensors, target.hidden_size
        names, heads = _names(files), range(count_heads(files))
        num_layers = len({j for _, j in _numbers(files)})

        def layers(kind: str) -> list[list[str]]:
            return [
                [names.layer.format(i=i, j=j, kind=kind) for i in heads] for j in range(num_layers)
            ]

        weights, biases = layers("weight"), layers("bias")
        outs = [names.out.format(i=i, num_layers=num_layers) for i in heads]
        if _SHARED in tensors:  # one matrix for all heads
            outs = [_SHARED]
        num_known = count_tokens(files)
        num_tokens = target.vocab_size if num_known is None else num_known
        shapes: dict[str, tuple[int, ...]] = {n: (size, size) for row in weights for n in row}
        shapes |= {n: (size,) for row in biases for n in row}
        shapes |= {n: (num_tokens, size) for n in outs}
        if num_known is not None:
            shapes[TOKEN_MAP] = (num_tokens,)
        return cls(
            num_heads=len(heads),
            num_tokens=num_tokens,
            weights=weights,
            biases=biases,
            outs=outs,
            shapes=shapes,
            has_bias=any(name in tensors for row in biases for name in row),
        )


def medusa_fit(files: HeadFiles[Shaped], target: HeadTarget) -> Fit:
    """Sizes that must equal the target's; ModelError, also for shapes not in `MedusaLayout`."""
    files = medusa_tensors(files)
    token_map(files, target.vocab_size)
    layout = MedusaLayout.of(files, target)
    if layout.weights[0][0] not in files.tensors:
        files.require(layout.shapes, layout.optional)
    first = files.shape(layout.weights[0][0])
    fit: dict[str, tuple[object, object]] = {
        "hidden_size": (first[-1] if first else None, target.hidden_size)
    }
    if layout.outs[0] in files.tensors:
        rows = files.shape(layout.outs[0])[:1]
        fit["vocab_size"] = (rows[0] if rows else None, layout.num_tokens)
    if not misfits(fit):
        files.require(layout.shapes, layout.optional)
    return fit


# Our field in a head's config: how often each head's token of each rank is right.
ACCURACIES = "medusa_head_accuracies"
NEW_HEADS = 4  # heads of a new checkpoint by default


@dataclass(frozen=True, kw_only=True, slots=True)
class MedusaTree:
    """The number of Medusa heads, and the tree that they draft."""

    num_heads: int
    num_tokens: int | None  # tokens that the heads can draft; None: more than any tree has ranks
    kind: str  # the method's `tree`; auto without rates means published
    max_drafts: int
    rates: tuple[tuple[float, ...], ...] = ()  # accuracies of a fitted tree, per head and rank

    @classmethod
    def of(
        cls, files: HeadFiles[Any], *, kind: str, max_drafts: int, vocab_size: int | None
    ) -> "MedusaTree":
        """UsageError or ModelError if the files have no heads, or no usable accuracies."""
        heads = medusa_tensors(files)
        num_tokens = count_tokens(heads)
        is_fitted = kind == "fitted" or (kind == "auto" and ACCURACIES in files.config)
        return cls(
            num_heads=count_heads(heads),
            num_tokens=vocab_size if num_tokens is None else num_tokens,
            kind=kind,
            max_drafts=max_drafts,
            rates=_accuracies(files) if is_fitted else (),
        )

    def topology(self, depth: int) -> Topology:
        """The tree of the first `depth` heads, without ranks beyond the tokens they can draft."""
        most = self.num_tokens
        if self.rates:
            rates = [of_head[:most] for of_head in self.rates[:depth]]
            return Topology.of_accuracies(rates, self.max_drafts)
        published = VICUNA_7B_STAGE2 if self.kind == "stage2" else MC_SIM_7B_63
        paths = [p for p in published if len(p) <= depth and (most is None or max(p) < most)]
        return Topology.of_paths(paths[: self.max_drafts])

    @property
    def depth(self) -> int:
        """The largest K: each head looks one token further, and a tree may use fewer heads."""
        return self.num_heads if self.kind == "chain" else self.topology(self.num_heads).depth


def _accuracies(files: HeadFiles[Any]) -> tuple[tuple[float, ...], ...]:
    """How often each head's token of each rank is right; UsageError, ModelError."""
    rates = files.config.get(ACCURACIES)
    if rates is None:
        raise UsageError(
            f"medusa: tree fitted needs {ACCURACIES} in the config of {files.source}; "
            "the trees published, stage2 and chain do not need it"
        )
    if not isinstance(rates, list) or not all(map(_are_shares, rates)):
        raise ModelError(
            f"{files.source}: {ACCURACIES} must list shares from 0 to 1 for every head"
        )
    if not rates or not any(rates[0]):
        raise ModelError(f"{files.source}: {ACCURACIES}: the first head is never right")
    return tuple(map(tuple, rates))


def _are_shares(rates: object) -> bool:
    return isinstance(rates, list) and all(
        isinstance(rate, int | float) and 0 <= rate <= 1 for rate in rates
    )
