"""Kernels of our own, in Triton: fewer launches than torch's operations take for the same.

In go tensors, out come tensors or what was written in place. Each file is one kernel with the
operation that starts it; it imports Triton, so whoever uses it asks `availability.py` first and has
torch's own operations otherwise.
"""
