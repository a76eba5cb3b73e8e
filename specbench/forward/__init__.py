"""One forward pass: tokens, slots and a mask go in, logits and hidden states come out.

`runner.py` (open it first) runs transformers' own code over our slot cache, `fused_runner.py`
our own code. `self_test.py` checks both against the plain model before they are used.
`layer_stack.py` runs a head's layers, from states to states. `kernels/` has our Triton kernels.
"""
