"""How do new tokens look at what was written? The masks they need, and who computes it.

In go queries and slots, out comes what the output product reads. Each implementation is one file
and one class of `kernel.py`'s protocol; open that first. `stock.py` is what transformers' own
modeling code calls.
"""
