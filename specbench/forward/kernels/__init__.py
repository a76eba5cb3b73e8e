"""Our Triton kernels, which need fewer launches than the same torch operations.

They return tensors or write in place. Each file has kernels and the operations that launch them. It
imports Triton, so its callers check `availability.py` first and otherwise use torch's operations.
"""

# For every launch, since Triton's default changes in 3.10. Fused multiply-adds are what stored
# figures were measured with.
ARITHMETIC = {"enable_fp_fusion": True}
