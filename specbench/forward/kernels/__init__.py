"""Our own Triton kernels: fewer launches than torch's operations take for the same.

In go tensors, out come tensors or what was written in place. Each file is one kernel with the
operation that starts it; it imports Triton, so its callers ask `availability.py` first and use
torch's operations otherwise.
"""
