"""Tests whether the decoder runs a model's family, on a small model with random weights."""

from copy import deepcopy

import torch
from transformers.quantizers.auto import get_hf_quantizer

from specbench.errors import ModelError
from specbench.files.model_spec import ModelSpec
from specbench.forward.self_test import make_checked_runner
from specbench.models.library_errors import errors_translated
from specbench.models.library_log import quiet
from specbench.models.loading import load_config, refusing
from specbench.models.parts import keep_text_part, text_class
from specbench.models.quantization import named_format
from specbench.models.small import small_config


def why_family_fails(spec: ModelSpec) -> str | None:
    """The error that loading the model would raise, by its config; None if it would run, or if no
    small model of its family can be built."""
    try:
        config = load_config(spec)
        with refusing(spec, "cpu", named_format(config)), quiet():
            get_hf_quantizer(deepcopy(config), None, None, True, {})  # it reads no weights
        auto = text_class(config, trust_remote_code=spec.trust_remote_code)
    except ModelError as error:
        return str(error)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = auto.from_config(small_config(config)).eval()
    except Exception:
        return None  # an inconsistent small config proves nothing about the real one
    try:
        with errors_translated():
            keep_text_part(model)
            make_checked_runner(model)
    except ModelError as error:
        return f"{spec.location}: {error}"
    return None
