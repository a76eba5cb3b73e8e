"""The formats that weights are stored or packed in, and whether they can be loaded here."""

from collections.abc import Mapping
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specbench.files.model import ModelFiles

# The packages that transformers needs to read a stored format on any device, by the names of
# their imports.
_READERS = {
    "aqlm": ("aqlm", "accelerate"),
    "auto-round": ("auto_round",),
    "awq": ("gptqmodel", "accelerate"),
    "bitnet": ("accelerate",),
    "bitsandbytes": ("bitsandbytes", "accelerate"),
    "compressed-tensors": ("compressed_tensors",),
    "eetq": ("kernels", "accelerate"),
    "fbgemm_fp8": ("accelerate",),
    "fp8": ("accelerate",),
    "gptq": ("gptqmodel", "optimum"),
    "mxfp4": ("accelerate",),
    "mxfp8": ("accelerate",),
    "sinq": ("sinq",),
    "torchao": ("torchao",),
    "vptq": ("vptq", "accelerate"),
}


def loading_refusal(model: ModelFiles) -> str | None:
    """Why this installation cannot load the weights as its entry and its files have them, and what
    to do; None if it can. ModelError."""
    spec, stored = model.spec, model.field("quantization_config")
    needs: dict[str, tuple[str, ...]] = {}
    if spec.device_map is not None:
        needs[f"device_map {spec.device_map}"] = ("accelerate",)
    if spec.quantization is not None:
        needs[f"quantization {spec.quantization}"] = ("torchao",)
    if stored is not None:
        facts = stored if isinstance(stored, Mapping) else {}
        is_old = {"load_in_4bit", "load_in_8bit"} & facts.keys()  # bitsandbytes gave no name then
        method = str(facts.get("quant_method", "bitsandbytes" if is_old else "an unnamed format"))
        if spec.quantization is not None:
            return (
                f"its weights are stored as {method} and cannot be packed again; leave out "
                f"`quantization: {spec.quantization}`"
            )
        # The file that names all formats is read as text: to import it is to import torch.
        file = "transformers/utils/quantization_config.py"
        known = Path(str(distribution("transformers").locate_file(file))).read_text("utf-8")
        if method not in _READERS and f'= "{method}"\n' not in known:
            return f"its weights are stored as {method}, which transformers cannot read"
        needs[f"the format {method} of its weights"] = _READERS.get(method, ())
    for what, packages in needs.items():
        missing = [name.replace("_", "-") for name in packages if find_spec(name) is None]
        if missing:
            return f"{what} needs {' and '.join(missing)}; pip install {' '.join(missing)}"
    return None


def is_all_fp8(stored: Mapping[str, Any]) -> bool:
    """Whether all of a compressed-tensors checkpoint's packed weights are fp8, from its
    `quantization_config`."""
    groups = stored.get("config_groups")
    groups = list(groups.values()) if isinstance(groups, Mapping) else []
    weights = [group.get("weights") if isinstance(group, Mapping) else None for group in groups]
    are_fp8 = [
        isinstance(one, Mapping) and (one.get("type"), one.get("num_bits")) == ("float", 8)
        for one in weights
    ]
    return stored.get("quant_method") == "compressed-tensors" and any(are_fp8) and all(are_fp8)
