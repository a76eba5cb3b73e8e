"""Internals of other libraries that they do not tell when asked, and the versions they hold for.

Read from transformers 5.17 to 5.24; tests/test_library_facts.py fails on a version where one no
longer holds. pyproject.toml's upper bounds are the first versions on which nothing was tested.
Without torch and transformers, which take seconds to import.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.metadata import requires as requirements_of
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from specbench.errors import LibraryError

PROJECT = "specbench-llm"

# The argument of forwards that takes the cache: of 5.24, of earlier versions and foreign code.
_CACHE_ARGUMENTS = ("cache", "past_key_values")

# The module and the name in it by which chat templates read the time.
TEMPLATE_CLOCK = ("transformers.utils.chat_template_utils", "datetime")

# Files that list the types of models and the formats of weights; read as text.
_MODEL_TYPES = ("models/auto/auto_mappings.py", "models/auto/configuration_auto.py")
_FORMATS = "utils/quantization_config.py"

# The import names of the packages that transformers needs to read a stored format on any device.
READERS = {
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


def cache_argument(*forwards: Callable[..., Any]) -> str:
    """The name of the argument that takes the cache, the older one if no forward shows any.

    A model's forward may pass on arguments that it does not name, so that its decoder's does.
    """
    shown = {name for forward in forwards for name in inspect.signature(forward).parameters}
    return next((name for name in _CACHE_ARGUMENTS if name in shown), _CACHE_ARGUMENTS[-1])


def knows_model_type(model_type: str) -> bool | None:
    """Whether transformers has code for this type of model; None if it is not installed."""
    texts = [_text_of(name) for name in _MODEL_TYPES]
    if any(text is None for text in texts):
        return None
    listed = f'("{model_type}", "', f'"{model_type}": "'  # in lists of pairs and in dicts
    return any(entry in text for text in texts if text for entry in listed)


def knows_format(name: str) -> bool | None:
    """Whether transformers reads weights stored in this format; None if it is not installed."""
    text = _text_of(_FORMATS)
    if text is None:
        return None
    _, _, begun = text.partition("class QuantizationMethod(")
    return name in READERS or f'= "{name}"\n' in begun.partition("\nclass ")[0]


@cache
def _text_of(file: str) -> str | None:
    """The text of one of transformers' files; None if it is not installed. LibraryError."""
    try:
        path = Path(str(distribution("transformers").locate_file(f"transformers/{file}")))
        return path.read_text("utf-8")
    except PackageNotFoundError:
        return None
    except OSError as error:
        raise outdated_fact(f"it has no file {file}") from error


# What loads weights: functions and a class of modules, and methods of every model.
_LOADER = {
    "transformers.conversion_mapping": ("get_model_conversion_mapping",),
    "transformers.core_model_loading": ("convert_and_load_state_dict_in_model",),
    "transformers.modeling_utils": ("LoadStateDictConfig",),
}


def load_on_meta(model: Any, tensors: Mapping[str, Any], quantizer: Any = None) -> dict[str, Any]:
    """transformers' account of loading these tensors of the meta device into a model there.

    It renames, joins and splits them as it does for real ones, and reads nothing. `quantizer`:
    transformers' reader of a stored format, already applied to the model. The account is that of
    `from_pretrained`, and conversion_errors by name. Imports torch. LibraryError.
    """
    loaders = []
    for module, names in _LOADER.items():
        for name in names:
            if (value := getattr(import_module(module), name, None)) is None:
                raise outdated_fact(f"{module} has no {name}")
            loaders.append(value)
    get_conversions, convert, make_config = loaders
    config = make_config(
        device_map={"": "meta"},
        weight_mapping=get_conversions(model, None, quantizer),
        hf_quantizer=quantizer,
    )
    account, _ = convert(model, tensors, config)
    model.tie_weights(missing_keys=account.missing_keys, recompute_mapping=False)
    model._adjust_missing_and_unexpected_keys(account)
    return {**account.to_dict(), "conversion_errors": account.conversion_errors}


def outdated_fact(missing: str) -> LibraryError:
    """The error for a version of transformers in which a fact of this file no longer holds."""
    bounds = _bounds().get("transformers")
    known = f"'transformers{bounds}'" if bounds else "an older transformers"
    return LibraryError(
        f"transformers {version('transformers')}: {missing}, which specbench relies "
        f"on; install a version that was tested: pip install {known}"
    )


def newer_than_tested() -> list[str]:
    """One phrase for each installed library that is newer than the newest one tested.

    Empty also if specbench runs without being installed, so that nothing states its bounds.
    """
    phrases = []
    for package, bounds in _bounds().items():
        limit = re.search(r"<(\d+)\.(\d+)", bounds)
        try:
            installed = Version(version(package))
        except (PackageNotFoundError, InvalidVersion, TypeError):  # TypeError: damaged metadata
            continue
        if limit and (installed.major, installed.minor) >= (int(limit[1]), int(limit[2])):
            newest = f"{limit[1]}.{int(limit[2]) - 1}"
            phrases.append(
                f"{package} {installed.base_version} is newer than the newest tested one, {newest}"
            )
    return phrases


@cache
def _bounds() -> dict[str, str]:
    """The versions that specbench's requirements allow, by package: those with an upper bound."""
    try:
        lines = requirements_of(PROJECT) or ()
    except PackageNotFoundError:
        return {}
    parsed = map(Requirement, lines)
    return {r.name: str(r.specifier) for r in parsed if "<" in str(r.specifier)}
