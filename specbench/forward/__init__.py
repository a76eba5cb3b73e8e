"""What does one forward pass compute? Tokens, slots and a mask in, logits and hidden states out.

`runner.py` (open it first) runs transformers' own code over our slot cache, `fused_runner.py`
our own; `self_test.py` compares them before either is trusted. `layer_stack.py` runs a head's
layers likewise, from states to states.
"""
