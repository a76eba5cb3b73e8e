"""Our Triton kernels, which need fewer launches than the same torch operations.

They return tensors or write in place. Each file has kernels and the operations that start
them; it imports Triton, so its callers check `availability.py` first and use torch's operations
otherwise.
"""
