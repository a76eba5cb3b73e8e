"""The deepest K of a method: a fact of its parameters and its head's files."""

from collections.abc import Callable, Mapping
from typing import Any

from specbench.drafting.medusa import NEW_HEADS, MedusaTree
from specbench.drafting.published import EAGLE_STATIC
from specbench.drafting.recycling import recycling_tree
from specbench.footprint import DEEPEST_BEAM
from specbench.model_files.dflash_style import DFlashStyle
from specbench.model_files.head_files import HeadFiles

NEW_BLOCK_SIZE = 16  # of a DFlash head that is made up


def deepest_k(
    method: str,
    parameters: Mapping[str, Any],
    head: Callable[[], HeadFiles[Any] | None],
    vocab_size: Callable[[], int | None],
) -> int | None:
    """How many tokens ahead the method can draft; None: as many as one likes.

    `parameters` are all of the method's, defaults too. `head` and `vocab_size`, the target's, are
    asked only where the answer follows from them: None for a head that is made up, and for a
    vocabulary that is not known. Raises what `head` raises, and ModelError and UsageError for
    files that the method refuses.
    """
    match method:
        case "medusa":
            return _medusa_tree(parameters, head(), vocab_size()).depth
        case "dflash":
            files = head()
            return DFlashStyle.of(files).depth if files else NEW_BLOCK_SIZE - 1
        case "eagle" | "eagle3":
            return feature_depth(parameters["tree"])
        case "lookahead":
            return lookahead_depth(parameters["ngram"])
        case "token_recycling":
            return recycling_tree(parameters["max_drafts"], vocab_size()).depth
    return None


def feature_depth(tree: str) -> int | None:
    """The deepest K of heads that continue from hidden states; a chain has no end."""
    return {"static": EAGLE_STATIC.depth, "dynamic": DEEPEST_BEAM}.get(tree)


def lookahead_depth(ngram: int) -> int:
    """The first token of an n-gram is known."""
    return ngram - 1


def _medusa_tree(
    parameters: Mapping[str, Any], files: HeadFiles[Any] | None, vocab_size: int | None
) -> MedusaTree:
    kind, max_drafts = parameters["tree"], parameters["max_drafts"]
    if files is not None:
        return MedusaTree.of(files, kind=kind, max_drafts=max_drafts, vocab_size=vocab_size)
    return MedusaTree(num_heads=NEW_HEADS, num_tokens=vocab_size, kind=kind, max_drafts=max_drafts)
