"""The deepest K of the drafters of a plan, read from files; no torch."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from specbench.errors import ModelError, UsageError
from specbench.files.head_files import HeadFiles
from specbench.files.model import num_rows, open_model
from specbench.files.model_spec import ModelSpec
from specbench.inputs.pairing import Pairing
from specbench.methods import find_method

ReadHead = Callable[[ModelSpec], HeadFiles[Any]]  # config and shapes of a head; ModelError


def deepest(pairing: Pairing, read_head: ReadHead, *, dummy: bool) -> int | None:
    """The deepest K of a pairing's drafter; None: no limit, or its files are missing or invalid.

    `dummy`: weights are random and not read.
    """
    drafter = pairing.drafter
    head = partial(_head, drafter.model or pairing.target.model, read_head, dummy=dummy)
    vocab_size = partial(num_rows, pairing.target.model)
    method = find_method(drafter.method)
    try:
        return method.deepest(method.settings(drafter.parameters), head, vocab_size)
    except (ModelError, UsageError):
        return None


def depths(pairings: Sequence[Pairing], read_head: ReadHead, *, dummy: bool) -> Mapping[str, int]:
    """The deepest K by drafter of one target, without drafters that have no limit."""
    limits = {p.drafter.name: deepest(p, read_head, dummy=dummy) for p in pairings}
    return {name: limit for name, limit in limits.items() if limit is not None}


def headers_on_this_machine(spec: ModelSpec) -> HeadFiles[Any]:
    """A head's config, and the shapes of its tensors; nothing is downloaded. ModelError."""
    files = open_model(spec)
    try:
        return files.head
    except ModelError:  # the config may be enough
        return HeadFiles(source=spec.source, config=files.config, tensors={})


def any_shape(pairings: Sequence[Pairing]) -> bool:
    """Whether a model is a shape without weights, which makes the run synthetic."""
    specs = [s for p in pairings for s in (p.target.model, p.drafter.model) if s is not None]
    return any(spec.is_shape for spec in specs)


def _head(spec: ModelSpec, read_head: ReadHead, *, dummy: bool) -> HeadFiles[Any] | None:
    return None if dummy or spec.is_shape else read_head(spec)
