"""Compares a model's stored tensors with those that transformers would load; reads no weights.

`fit/loaded_tensors.py` calls it, here or in a process of its own.
"""

import torch

from specbench.files.head_files import Difference
from specbench.files.model import open_model
from specbench.files.model_spec import ModelSpec
from specbench.library_facts import load_on_meta
from specbench.models.library_output import quiet, unreported
from specbench.models.loading import load_config, refusing, take_text_part
from specbench.models.parts import text_class


def tensor_difference(spec: ModelSpec) -> Difference:
    """How a model's safetensors differ from what its modules read.

    ModelError if the model cannot be built, LibraryError if transformers loads in another way.
    """
    headers = open_model(spec).tensors or {}
    config = load_config(spec)
    with refusing(spec, "meta", None), quiet(), unreported(), torch.device("meta"):
        model = text_class(config).from_config(config)
        stored = {name: torch.empty(header.shape) for name, header in headers.items()}
        difference, _ = take_text_part(model, load_on_meta(model, stored))
    return difference
