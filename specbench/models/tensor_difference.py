"""Compares a model's stored tensors with those that transformers would load; reads no weights.

`fit/loaded_tensors.py` calls `answer`, or runs `answer_lines` in a process of its own.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from specbench.errors import ModelError, first_line
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


def answer(spec: ModelSpec) -> dict[str, Any]:
    """The fields of the difference, or the error under `refused` or `unknown`."""
    try:
        return asdict(tensor_difference(spec))
    except ModelError as error:
        return {"refused": str(error)}
    except Exception as error:
        return {"unknown": first_line(error)}


def answer_lines() -> None:
    """Answer each line of the standard input, the fields of a ModelSpec, with one line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print
    for line in sys.stdin:
        asked = json.loads(line)
        folder = Path(asked.pop("folder"))
        print(json.dumps(answer(ModelSpec(**asked, folder=folder))), file=answers, flush=True)
