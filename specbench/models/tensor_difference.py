"""Compares a model's stored tensors with those that transformers would load; reads no weights.

`fit/loaded_tensors.py` calls it, or runs `answer_questions` in a process of its own.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from specbench.errors import ModelError, first_line
from specbench.files.head_files import Difference
from specbench.files.model import open_model
from specbench.files.model_spec import ModelSpec
from specbench.library_facts import load_on_meta
from specbench.models.library_output import quiet
from specbench.models.loading import load_config, refusing
from specbench.models.parts import keep_text_part, text_class


def tensor_difference(spec: ModelSpec) -> Difference:
    """How a model's safetensors differ from what its modules read.

    ModelError if the model cannot be built, LibraryError if transformers loads in another way.
    """
    headers = open_model(spec).tensors or {}
    config = load_config(spec)
    with refusing(spec, "meta", None), quiet(), torch.device("meta"):
        model = text_class(config).from_config(config)
        stored = {name: torch.empty(header.shape) for name, header in headers.items()}
        account = load_on_meta(model, stored)
        weights = dict(model.named_parameters())  # without buffers, which the config defines
        read = {*model.state_dict()}
        buffers = {name for name, _ in model.named_buffers()}
        dropped = keep_text_part(model)
    prefix = f"{model.base_model_prefix}."
    bare = {name.removeprefix(prefix).partition(".")[0] for name in read if name.startswith(prefix)}
    return Difference.of_keys(
        read={name for name in read if not name.startswith(dropped)},
        unexpected={
            f"{prefix}{name}" if name.partition(".")[0] in bare else name  # of a base model
            for name in account.unexpected_keys
        }
        - buffers,
        missing=account.missing_keys & weights.keys(),
        other=[
            *(f"{name} is {tuple(s)}, not {tuple(m)}" for name, s, m in account.mismatched_keys),
            *(f"{name} cannot be converted" for name in account.conversion_errors),
        ],
    )


def answer_questions() -> None:
    """Answer each line of the standard input, the fields of a ModelSpec, with one line: the
    difference, or the error under `refused` or `unknown`."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print
    for line in sys.stdin:
        asked = json.loads(line)
        folder = Path(asked.pop("folder")) if asked["folder"] else None
        try:
            answer = asdict(tensor_difference(ModelSpec(**asked, folder=folder)))
        except ModelError as error:
            answer = {"refused": str(error)}
        except Exception as error:
            answer = {"unknown": first_line(error)}
        print(json.dumps(answer), file=answers, flush=True)
