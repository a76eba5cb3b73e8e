"""The decoder: models over slots, one verifier, one round."""

import logging

# transformers imports torchao where it is installed, which then warns of GPU kernels it lacks.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)
