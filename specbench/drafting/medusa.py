"""Which tree Medusa's heads draft, by their files: published, or fitted to measured accuracies."""

from dataclasses import dataclass
from typing import Any

from specbench.drafting.published import MC_SIM_7B_63, VICUNA_7B_STAGE2
from specbench.drafting.topology import Topology
from specbench.errors import ModelError, UsageError
from specbench.files.head_files import HeadFiles
from specbench.files.medusa import count_heads, count_tokens, medusa_tensors

# In the head's config, of our own: how often the token of each rank of each head is right.
ACCURACIES = "medusa_head_accuracies"
NEW_HEADS = 4  # as many as new ones are made, if nobody says otherwise


@dataclass(frozen=True, kw_only=True, slots=True)
class MedusaTree:
    """Heads, and how drafts branch that they make."""

    num_heads: int
    num_tokens: int | None  # that the heads can say; None: more than any tree has ranks
    kind: str  # `tree` of the method; auto is published here
    max_drafts: int
    rates: tuple[tuple[float, ...], ...] = ()  # of a fitted tree, per head and rank

    @classmethod
    def of(
        cls, files: HeadFiles[Any], *, kind: str, max_drafts: int, vocab_size: int | None
    ) -> "MedusaTree":
        """UsageError and ModelError where the files hold no heads, or no usable accuracies."""
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
        """The tree of the first `depth` heads; none has more ranks than it knows tokens."""
        most = self.num_tokens
        if self.rates:
            rates = [of_head[:most] for of_head in self.rates[:depth]]
            return Topology.of_accuracies(rates, self.max_drafts)
        published = VICUNA_7B_STAGE2 if self.kind == "stage2" else MC_SIM_7B_63
        paths = [p for p in published if len(p) <= depth and (most is None or max(p) < most)]
        return Topology.of_paths(paths[: self.max_drafts])

    @property
    def depth(self) -> int:
        """The deepest K: each head looks one token further, and a tree may end before them."""
        return self.num_heads if self.kind == "chain" else self.topology(self.num_heads).depth


def _accuracies(files: HeadFiles[Any]) -> tuple[tuple[float, ...], ...]:
    """Per head, how often its token of each rank is right; UsageError, ModelError."""
    rates = files.config.get(ACCURACIES)
    if rates is None:
        raise UsageError(
            f"medusa: tree fitted needs {ACCURACIES} in the config of {files.source}; "
            "published, stage2 and chain are allowed without"
        )
    if not isinstance(rates, list) or not all(map(_are_shares, rates)):
        raise ModelError(
            f"{files.source}: {ACCURACIES} has to list shares from 0 to 1 for every head"
        )
    if not rates or not any(rates[0]):
        raise ModelError(f"{files.source}: by its {ACCURACIES} the first head is never right")
    return tuple(map(tuple, rates))


def _are_shares(rates: object) -> bool:
    return isinstance(rates, list) and all(
        isinstance(rate, int | float) and 0 <= rate <= 1 for rate in rates
    )
