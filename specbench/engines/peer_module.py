"""A second module over a loaded model's tensors: nothing is copied, and nothing is shared else."""

import copy
from typing import Any

from transformers import GenerationConfig


def twin(model: Any) -> Any:
    """A module of the same architecture over the same tensors, with a config of its own.

    A deep copy that finds every parameter and buffer already copied, rotary frequencies and
    tied or quantised weights included. They are the same objects, so what is done to the data
    of one is done to both: matrices may be fused before or after.
    """
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, tensors)


def make_peer(model: Any) -> Any:
    """A twin with the attention that a user of transformers gets, and no generation settings.

    Those of the checkpoint (temperature, penalties) are left out: every engine decodes what the
    request asks for.
    """
    module = twin(model)
    # The kernel knows no soft-capping: some versions refuse it there, others forget it.
    config = module.config.get_text_config()
    has_cap = getattr(config, "attn_logit_softcapping", None) is not None
    try:
        module.set_attn_implementation("eager" if has_cap else "sdpa")
    except ValueError:  # attention sinks, for example
        module.set_attn_implementation("eager")
    module.generation_config = GenerationConfig()
    return module
