"""A draft head's config and tensors as they lie in its files."""

from dataclasses import dataclass

from torch import Tensor

from specbench.model_files.head_files import HeadFiles


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint(HeadFiles[Tensor]):
    """Tensors are on the host, in the dtype of the files."""
