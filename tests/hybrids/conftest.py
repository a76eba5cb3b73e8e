"""Bugs are planted in hybrids as in the decoder."""

from tests.decoding.conftest import plant

__all__ = ["plant"]
