"""Parses exported command lines by the recorded options of each engine in schemas/."""

import json
import shlex
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from specbench.engines.deployment import Export
from specbench.settings import EXPORTED, TRANSFORMERS

# transformers' methods between different tokenizers; each has its temperature.
SAME_TOKENIZER = ("draft_model", "mtp", "dflash", "gemma4_mtp", "ngram", "self_speculation")
BETWEEN_TOKENIZERS = {"string_match": 0.0, "token_intersection": 0.7}

SCHEMAS = {
    path.stem: json.loads(path.read_text())
    for path in sorted((Path(__file__).parent / "schemas").glob("*.json"))
}
SERVERS = tuple(engine for engine in EXPORTED if engine != TRANSFORMERS)
# The methods that each engine has; it must refuse all others.
METHODS: dict[str, tuple[str, ...]] = {
    TRANSFORMERS: (*SAME_TOKENIZER, *BETWEEN_TOKENIZERS),
    **{engine: tuple(SCHEMAS[engine]["methods"]) for engine in SERVERS},
}


def parse(made: Export, schema_name: str = "") -> dict[str, Any]:
    """Flag -> value of a command that the recorded parser takes; ValueError says why it does not.

    The command goes through a shell's own quoting first. The config file comes as `config`.
    """
    schema = SCHEMAS[schema_name or made.engine]
    words = shlex.split(made.command_line)
    program = schema["program"]
    if words[: len(program)] != program:
        raise ValueError(f"not {program}: {words}")
    rest = words[len(program) :]
    parsed: dict[str, Any] = {"positionals": []}
    while rest and not rest[0].startswith("-"):
        parsed["positionals"].append(rest.pop(0))
    if len(parsed["positionals"]) != schema["num_positionals"]:
        raise ValueError(f"{parsed['positionals']} before the flags")
    while rest:
        flag = rest.pop(0)
        if flag not in schema["flags"]:
            raise ValueError(f"{flag} is unknown")
        if flag in parsed:
            raise ValueError(f"{flag} twice")
        known = schema["flags"][flag]
        parsed[flag] = True if known is None else _value(flag, rest.pop(0), known, made)
    if made.config is not None and "config" in schema:
        parsed["config"] = _config(made.config.text, schema["config"])
    return parsed


def _value(flag: str, text: str, known: dict[str, Any], made: Export) -> Any:
    if known.get("file"):
        if made.config is None or text != made.config.name:
            raise ValueError(f"{flag} {text}: no such file")
        return text
    value: Any = text
    if "json" in known:
        value, known = json.loads(text), known["json"]
    elif known.get("type") in ("integer", "number"):
        value = int(text) if known["type"] == "integer" else float(text)
    _check(flag, value, known)
    return value


def _config(text: str, known: dict[str, Any]) -> Any:
    value = json.loads(text) if known["format"] == "json" else yaml.safe_load(text)
    _check("config", json.loads(json.dumps(value)), known["schema"])
    return value


def _check(where: str, value: Any, schema: dict[str, Any]) -> None:
    for error in Draft202012Validator(schema).iter_errors(value):
        raise ValueError(f"{where}: {error.message}")
