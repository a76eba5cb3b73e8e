"""What the house asks of a cache of keys and values, whoever keeps it."""

from typing import Protocol


class KvCache(Protocol):
    """A model's keys and values for all rows."""

    @property
    def max_len(self) -> int:
        """Slots of a row; 0 before `allocate`."""
        ...

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of one row takes in all layers; 0 before the first forward."""
        ...

    @property
    def state_bytes_per_row(self) -> int:
        """Bytes of recurrent state that any row takes; 0 before the first forward."""
        ...

    def copy_row(self, source: int, destination: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` slots of a row to another, in all layers."""
