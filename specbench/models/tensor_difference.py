"""Compares a model's stored tensors with those that transformers would load; reads no weights.

`fit/loaded_tensors.py` calls it, here or in a process of its own.
"""

from contextlib import nullcontext

import torch
from transformers.quantizers.auto import get_hf_quantizer

from specbench.files.head_files import Difference
from specbench.files.model import open_model
from specbench.files.model_spec import ModelSpec
from specbench.library_facts import load_on_meta
from specbench.models.library_output import quiet, unreported
from specbench.models.loading import load_config, refusing, take_text_part
from specbench.models.parts import text_class


def tensor_difference(spec: ModelSpec) -> Difference:
    """How a model's safetensors differ from what its modules read.

    ModelError if a model of plain weights cannot be built, LibraryError if transformers loads in
    another way. A stored format may also fail for reasons of this machine: any error.
    """
    files, config = open_model(spec), load_config(spec)
    headers = files.tensors or {}
    quantizer, config, _ = get_hf_quantizer(config, None, {"": "cpu"}, True, {})
    is_plain = quantizer is None
    errors = refusing(spec, "meta", None) if is_plain else nullcontext()
    with errors, quiet(), unreported(), torch.device("meta"):
        model = text_class(config).from_config(config)
        plain_shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        if quantizer is not None:
            shards = sorted({str(header.file) for header in headers.values()})
            quantizer.preprocess_model(
                model=model, dtype=model.dtype, device_map={"": "meta"}, checkpoint_files=shards
            )
        stored = {
            name: torch.empty(header.shape, dtype=None if is_plain else _DTYPES[header.dtype])
            for name, header in headers.items()
        }
        account = load_on_meta(model, stored, quantizer)
        if not is_plain:  # versions before 5.24 give such tensors to the model
            read = {name: tensor.shape for name, tensor in model.named_parameters()}
            read |= {name: of_file for name, of_file, _ in account["mismatched_keys"]}
            account["mismatched_keys"] = [
                (name, read[name], plain_shapes[name])
                for name in read.keys() & plain_shapes.keys()
                if not _fits(read[name], plain_shapes[name])
            ]
        difference, _ = take_text_part(model, account)
    return difference if is_plain else difference.of_format()


def _fits(shape: torch.Size, plain: torch.Size) -> bool:
    """Whether unpacked rows are as long as plain ones, or end in a packed number that is not full:
    their length is in another tensor, which is not read."""
    if shape[:-1] != plain[:-1]:
        return False
    return 0 <= shape[-1] - plain[-1] < 8 if len(shape) > 1 else shape == plain


_DTYPES = {  # by their names in safetensors
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8},
    **{"U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8},
    **{"BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn},
    **{"F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu},
}
