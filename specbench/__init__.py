"""Measures whether speculative decoding pays, for which draft, method and K."""

__version__ = "0.1.0"
