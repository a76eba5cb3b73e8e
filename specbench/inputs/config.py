"""Reads pairings.yaml into frozen records, strictly.

    default: demo                  # runs if no pairing is named: a name or a list
    defaults:                      # for all targets and drafters below
      dtype, device_map, num_speculative_tokens
    targets:
      NAME:
        model: demo:target         # folder, Hugging Face id, demo:NAME or shape:NAME
        revision, dtype, device_map, quantization, trust_remote_code, weights_gib, vocab_size, note
        workloads: demo            # a folder of this target's own prompts, or `demo`
        drafters:
          NAME:
            method: draft_model    # one of `specbench list methods`, or a set: mtp+ngram_mod
            model: demo:draft      # if the method has one, with the target's model keys
            parameters: {}         # the method's own
            lossy: typical         # accept drafts by a rule that changes the text (records/lossy)
            p_min: 0.6             # a chain ends where the draft is less sure
            num_speculative_tokens, note
            source, checked, license, figure  # of an entry that was published

A pairing is named target/drafter. A folder is relative to the file that names it, and has priority
over a hub id of the same name. A drafter without dtype or device_map has its target's, a target
those of `defaults`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import cache, partial
from pathlib import Path

from specbench.errors import ConfigError, UsageError
from specbench.files.model_spec import ModelSpec
from specbench.inputs.model_spec import (
    MODEL_DTYPES,
    MODEL_KEYS,
    read_device_map,
    read_folder,
    read_model_spec,
)
from specbench.inputs.pairing import DrafterSpec, Origin, Pairings, Target
from specbench.inputs.strict_yaml import Value, YamlMapping, number, one_of, read_yaml, whole
from specbench.methods import Method, Setting, find_method
from specbench.records import NO_DRAFTER, LossyRule
from specbench.records.lossy import RULES
from specbench.settings.words import MAX_K
from specbench.shipped import DEMO_WORKLOADS, shipped


def load_pairings(path: Path | None = None) -> Pairings:
    """Read `path`, else pairings.yaml of the working folder; the shipped one adds to either.

    Raises ConfigError with file, line, key and the allowed values.
    """
    of_folder, of_package = Path("pairings.yaml"), shipped("pairings.yaml")
    file = path or (of_folder if of_folder.exists() else of_package)
    if file.resolve() == of_package.resolve():
        return _read_once(file)
    pairings = _read(file)
    names = {target.name for target in pairings.targets}
    added = (target for target in _read_once(of_package).targets if target.name not in names)
    return replace(pairings, shipped=tuple(added))


@cache
def _read_once(shipped_file: Path) -> Pairings:
    """The shipped file, which is long and read once per process."""
    return _read(shipped_file)


def _read(file: Path) -> Pairings:
    top = read_yaml(file, ConfigError).section(allowed=FILE_KEYS)
    defaults = top.may("defaults", _defaults, _Defaults())
    targets = top.must(
        "targets", lambda value: tuple(_target(*entry, defaults) for entry in _named(value))
    )
    pairings = Pairings(path=file, targets=targets, default=(targets[0].name,))
    names = partial(_default_names, pairings=pairings)
    return replace(pairings, default=top.may("default", names, pairings.default))


_K = "num_speculative_tokens"
ORIGIN_KEYS = ("source", "checked", "license", "figure")
FILE_KEYS = ("default", "defaults", "targets")
DEFAULTS_KEYS = ("dtype", "device_map", _K)
TARGET_KEYS = (*MODEL_KEYS, "workloads", "note", "drafters")
DRAFTER_KEYS = ("method", *MODEL_KEYS, "parameters", _K, "p_min", "lossy", "note", *ORIGIN_KEYS)

_ADDRESS = re.compile(r"https?://[^\s/]+(/\S*)?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Defaults:
    dtype: str = "auto"
    device_map: str | None = None
    num_speculative_tokens: int | None = None


def _defaults(value: Value) -> _Defaults:
    keys = value.section(allowed=DEFAULTS_KEYS)
    return _Defaults(
        dtype=keys.may("dtype", one_of(MODEL_DTYPES), "auto"),
        device_map=keys.may("device_map", read_device_map, None),
        num_speculative_tokens=keys.may(_K, whole(1, MAX_K), None),
    )


def _default_names(value: Value, pairings: Pairings) -> tuple[str, ...]:
    names = tuple(item.text() for item in value.items())
    if not names:
        value.fail("is empty; leave the key out to run the first target's drafters")
    try:
        pairings.select(names)
    except UsageError as wrong:
        value.fail(str(wrong))
    return names


def _target(name: str, value: Value, defaults: _Defaults) -> Target:
    keys = value.section(allowed=TARGET_KEYS)
    model = read_model_spec(keys, dtype=defaults.dtype, device_map=defaults.device_map)
    drafter = partial(_drafter, target=model, defaults=defaults)
    return Target(
        name=name,
        model=model,
        drafters=tuple(drafter(*named) for named in keys.must("drafters", _named)),
        workloads=keys.may("workloads", _workloads, None),
        note=keys.may("note", Value.text, ""),
    )


def _drafter(name: str, value: Value, target: ModelSpec, defaults: _Defaults) -> DrafterSpec:
    if name == NO_DRAFTER:
        value.fail(f"{NO_DRAFTER!r} is the name of the K=0 baseline; choose another")
    keys = value.section(allowed=DRAFTER_KEYS)
    method = keys.must("method", _method)
    given = [key for key in MODEL_KEYS if key in keys.entries]
    if method.model == "refused" and given:
        keys.entries[given[0]].fail(f"the method {method.name} takes no model; leave this key out")
    takes_model = method.model == "required" or bool(given)
    parameters = keys.may("parameters", partial(_parameters, method=method), {})
    if "p_min" in keys.entries and not method.takes_p_min(parameters):
        keys.entries["p_min"].fail(
            f"{method.name} drafts no chain of tokens with probabilities; leave this key out, or "
            "set `parameters: {tree: chain}` if the method has it"
        )
    return DrafterSpec(
        name=name,
        method=method.name,
        model=read_model_spec(keys, target.dtype, target.device_map) if takes_model else None,
        parameters=parameters,
        num_speculative_tokens=keys.may(_K, whole(1, MAX_K), defaults.num_speculative_tokens),
        lossy=keys.may("lossy", _lossy, None),
        p_min=keys.may("p_min", number(above=0, most=1), None),
        note=keys.may("note", Value.text, ""),
        origin=_origin(keys),
    )


def _named(value: Value) -> list[tuple[str, Value]]:
    entries = value.entries()
    if not entries:
        value.fail("is empty; add at least one entry")
    for name, entry in entries.items():
        if not _NAME.fullmatch(name):
            entry.fail("a name is letters, digits and . _ - and begins with a letter or digit")
    return list(entries.items())


def _workloads(value: Value) -> Path:
    is_demo = value.text() == "demo"
    return DEMO_WORKLOADS if is_demo else read_folder(value)


def _method(value: Value) -> Method:
    try:
        return find_method(value.text())
    except UsageError as wrong:
        value.fail(str(wrong))


def _parameters(value: Value, method: Method) -> Mapping[str, Setting]:
    keys = value.section(allowed=tuple(parameter.name for parameter in method.parameters))
    settings = {name: entry.setting() for name, entry in keys.entries.items()}
    for name, setting in settings.items():
        if complaint := method.parameter(name).complaint(setting):
            keys.entries[name].fail(complaint)
    return settings


_LOSSY_KEYS = ("rule", *dict.fromkeys(p for parameters in RULES.values() for p in parameters))


def _lossy(value: Value) -> LossyRule:
    """`typical`, or `{rule: typical, alpha: 0.5}` if a parameter is not at its default."""
    is_name = not value.is_mapping
    rule = value if is_name else value.section(allowed=_LOSSY_KEYS).must("rule", lambda v: v)
    name = one_of(tuple(RULES))(rule)
    parameters = RULES[name]
    given = {} if is_name else value.section(allowed=("rule", *parameters)).entries
    for parameter, default in parameters.items():
        if default is None and parameter not in given:
            wanted = f"{{rule: {name}, {parameter}: 0.5}}"
            value.fail(f"the rule {name} needs its `{parameter}`, such as {wanted}")
    read = number(above=0, most=1)
    chosen = {p: read(given[p]) if p in given else d for p, d in parameters.items()}
    return LossyRule(name=name, parameters={p: v for p, v in chosen.items() if v is not None})


def _origin(keys: YamlMapping) -> Origin | None:
    """The origin that a section gives; one without `source` and `checked` is an error."""
    given = [key for key in ORIGIN_KEYS if key in keys.entries]
    if not given:
        return None
    return Origin(
        source=keys.must("source", _address),
        checked=keys.must("checked", _date),
        license=keys.may("license", Value.text, None),
        figure=keys.may("figure", Value.text, None),
    )


def _address(value: Value) -> str:
    address = value.text()
    if not _ADDRESS.fullmatch(address):
        value.fail(f"{address[:80]!r} is not an address; expected https://... of the page")
    return address


def _date(value: Value) -> date:
    day = value.text()
    try:
        return date.fromisoformat(day)
    except ValueError:
        value.fail(f'{day[:40]!r} is not a day; expected one such as "2026-11-23", in quotes')
