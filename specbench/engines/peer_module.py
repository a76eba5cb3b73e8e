"""A second module over a loaded model's tensors: nothing is copied, and nothing is shared else."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig

from specbench.engines.refusals import device_errors_told
from specbench.errors import ModelError, SpecbenchError, first_line
from specbench.forward.attention.stock import attend_by
from specbench.models.library_errors import model_failure


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
        attend_by(module, "eager" if has_cap else "sdpa")
    except ValueError:  # attention sinks, for example
        attend_by(module, "eager")
    module.generation_config = GenerationConfig()
    return module


@contextmanager
def refusals_told(module: Any, method: str) -> Iterator[None]:
    """ModelError where transformers refuses or cannot run a method; lack of memory stays as it is.

    Its refusals have no class of their own, so errors of its code are among them.
    """
    try:
        with device_errors_told():
            yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        is_refusal = isinstance(error, ValueError | RuntimeError)
        if isinstance(error, SpecbenchError) or not (is_refusal or model_failure(error)):
            raise
        raise ModelError(
            f"transformers cannot run {method} on {type(module).__name__}: {first_line(error)}; "
            "choose another model, or leave transformers out of --engine"
        ) from error
