"""Planted bugs, as in tests of the decoder."""

from tests.decoding.conftest import plant

__all__ = ["plant"]
