"""One forward pass: tokens, slots and a mask go in, logits and hidden states come out.

`runner.py` (open it first) runs transformers' own code over our slot cache, `fused_runner.py`
our own; `self_test.py` compares them before either is trusted. `layer_stack.py` runs a head's
layers, from states to states. `kernels/` has our Triton kernels.
"""
