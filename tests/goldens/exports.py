"""Exports of `specbench export` for every method and engine: flags and files, or the refusal."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from specbench.engines.deployment import Deployment, Export
from specbench.errors import UsageError
from specbench.methods import listed_methods
from specbench.records import lossy
from specbench.settings import EXPORTED
from tests.drafters.variants import VARIANTS
from tests.export.deployments import ONE, SEVERAL, deployment, exported

_OLDER = {
    "ik_llama_cpp": "2026-05",
    "llama_cpp": "2026-04",
    "tensorrt_llm": "1.3",
    "vllm": "0.32",
}  # releases
_RULES = {getattr(lossy, name): name for name in ("GREEDY", "MATCHED", "REJECTION")}
_SETTINGS: dict[str, dict[str, Any]] = {
    "K=4, greedy": {"tiers": ONE},
    "K=4, sampled": {"tiers": ONE, "temperature": 0.7},
    "K by batch size": {"tiers": SEVERAL},
}


def all_facts(folder: Path) -> dict[str, Any]:  # noqa: ARG001
    """Facts by engine, then by variant of a method; for an older release only differences."""
    facts = {engine: _of_release(engine, None) for engine in EXPORTED}
    for engine, version in _OLDER.items():
        older = _of_release(engine, version)
        facts[f"{engine} {version}"] = {
            variant: fact for variant, fact in older.items() if fact != facts[engine][variant]
        }
    return facts


def _of_release(engine: str, version: str | None) -> dict[str, Any]:
    return {str(v): _facts(engine, version, v.method, v.parameters) for v in VARIANTS}


def _facts(engine: str, version: str | None, method: str, parameters: dict[str, Any]) -> Any:
    if method == "self_speculation":
        parameters = {"num_layers": 2, **parameters}
    settings = {
        name: deployment(method, dtype="bfloat16", **setting, **parameters)
        for name, setting in _SETTINGS.items()
    }
    exports = {name: _export(engine, version, made) for name, made in settings.items()}
    first, *rest = exports.values()
    return first if all(fact == first for fact in rest) else exports


def _export(engine: str, version: str | None, made: Deployment) -> Any:
    try:
        export = exported(engine, made, version)
    except UsageError as error:
        return f"refused: {type(error).__name__}, {_values(str(error))}"
    facts: dict[str, Any] = {
        "command": export.command_line,
        "rule": f"{_RULES[export.acceptance_rule]}, {len(export.not_expressed)} not expressed",
    }
    return facts if export.config is None else {**facts, "config": _config(export)}


def _config(export: Export) -> Any:
    """The values of JSON and YAML; for a script, the lines that load, set and generate."""
    assert export.config is not None
    name, text = export.config.name, export.config.text
    if name.endswith(".py"):
        calls = ("from_pretrained(", "GenerationConfig(", ".generate(", "resize_token_embeddings(")
        return [line for line in text.splitlines() if any(call in line for call in calls)]
    return json.loads(text) if name.endswith(".json") else yaml.safe_load(text)


def _values(sentence: str) -> str:
    """The methods, engines and numbers that an error names."""
    names = {*(method.name for method in listed_methods()), *EXPORTED}
    words = re.findall(r"\w+(?:\.\d+)*", sentence)
    return " ".join(word for word in words if word in names or word[0].isdigit())
