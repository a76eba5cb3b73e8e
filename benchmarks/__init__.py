"""Measures the product itself; what it writes lies beside it."""
