"""Feeds exported command lines to the real engines' own parsers, where they are installed.

    python -m benchmarks.parse_exports [--vllm-python PYTHON] [--llama-server BINARY]

Every drafter of the embedded target is exported, so that vLLM's SpeculativeConfig has real files
to look at: it builds the whole engine configuration of each `vllm serve` line, and loads
nothing. Of llama-server, `--help` says which flags and kinds it knows. transformers is here
already: its GenerationConfig is built from the program. Exit code 1 if one is refused.
"""

import argparse
import ast
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import transformers

from specbench.engines.deployment import Deployment, Export, Tier, find_exporter
from specbench.errors import UsageError
from specbench.inputs.config import load_pairings
from specbench.inputs.pairing import DrafterSpec
from specbench.shipped import shipped

ONE, SEVERAL, NONE = (Tier(None, 4),), (Tier(1, 5), Tier(4, 3), Tier(16, 0)), (Tier(None, 0),)

# Runs in vLLM's own Python: the commands' words on standard input, a complaint or "" each out.
_VLLM = """
import json, sys
from vllm.engine.arg_utils import EngineArgs
try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser  # where 0.32 has it
except ModuleNotFoundError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
complaints = []
for words in json.load(sys.stdin):
    try:
        given = make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", *words[2:]])
        EngineArgs.from_cli_args(given).create_engine_config()
        complaints.append("")
    except ImportError as error:  # a package beside vLLM: says nothing about the line
        complaints.append(f"not judged: {error}"[:200])
    except (Exception, SystemExit) as error:
        complaints.append(f"{type(error).__name__}: {error}"[:300])
import vllm
print("RESULT" + json.dumps([getattr(vllm, "__version__", "?"), complaints]))
"""


_NOT_JUDGED = "not judged: "


class Parsed(NamedTuple):
    """One command line and what its engine's parser said."""

    engine: str
    version: str
    pairing: str
    command: str
    complaint: str  # "": taken


def exports(
    engine: str, version: str | None = None, heads: Path | None = None
) -> Iterator[tuple[str, Export]]:
    """Every drafter of the embedded target that the engine has, in every setting.

    `heads`: where copies of its heads are made whose config names an architecture.
    """
    exporter = find_exporter(engine)
    for pairing in load_pairings(shipped("pairings.yaml")).select(["demo"]):
        if heads and pairing.drafter.method in ("eagle", "eagle3"):
            pairing = replace(pairing, drafter=_with_architecture(pairing.drafter, heads))
        for tiers in (ONE, SEVERAL, NONE):
            for temperature in (0.0, 0.7):
                made = Deployment(
                    pairing=pairing, tiers=tiers, temperature=temperature, dtype="float32"
                )
                try:
                    name = exporter.CONFIG_NAME
                    yield pairing.name, exporter.export(made, version, name)
                except UsageError:
                    continue  # a method that it lacks


def _with_architecture(drafter: DrafterSpec, folder: Path) -> DrafterSpec:
    """The head as published ones are: specbench's own name no class, which vLLM asks for."""
    assert drafter.model is not None
    assert drafter.model.folder is not None
    copy = folder / drafter.name
    if not copy.exists():
        shutil.copytree(drafter.model.folder, copy)
        config = json.loads((copy / "config.json").read_text())
        named = config | {"architectures": ["LlamaForCausalLM"]}
        (copy / "config.json").write_text(json.dumps(named))
    model = replace(drafter.model, source=str(copy), folder=copy)
    return replace(drafter, model=model)


def parse_by_vllm(python: Path) -> Iterator[Parsed]:
    """By EngineArgs and SpeculativeConfig of the vLLM that this Python has."""
    release = subprocess.run(
        [python, "-c", "import vllm; print('RESULT' + vllm.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.rsplit("RESULT", 1)[1]
    number = re.match(r"\d+\.\d+", release.strip())
    with tempfile.TemporaryDirectory() as folder:
        made = list(exports("vllm", number[0] if number else None, Path(folder)))
        done = subprocess.run(
            [python, "-W", "ignore", "-c", _VLLM],
            input=json.dumps([export.command for _, export in made]),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    version, complaints = json.loads(done.stdout.rsplit("RESULT", 1)[1])
    for (name, export), complaint in zip(made, complaints, strict=True):
        yield Parsed("vllm", version, name, export.command_line, complaint)


def parse_by_llama_server(binary: Path) -> Iterator[Parsed]:
    """By the flags, and the kinds of --spec-type, that its help lists."""
    text = subprocess.run([binary, "--help"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text))
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    first = (version.stdout + version.stderr).strip().splitlines()
    dialect = None if "draft-simple" in text else "2026-04"
    for name, export in exports("llama_cpp", dialect):
        words = export.command[1:]
        unknown = [word for word in words if word.startswith("--") and word not in known]
        kinds = [words[i + 1] for i, word in enumerate(words) if word == "--spec-type"]
        unknown += [kind for kind in kinds if kind not in text]
        complaint = f"unknown: {', '.join(unknown)}" if unknown else ""
        label = first[-1] if first else "?"
        yield Parsed("llama_cpp", label, name, export.command_line, complaint)


def parse_by_transformers() -> Iterator[Parsed]:
    """By GenerationConfig, which refuses what it does not know."""
    for name, export in exports("transformers"):
        complaint = ""
        assert export.config is not None
        for node in ast.walk(ast.parse(export.config.text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "GenerationConfig":
                given = {str(kw.arg): ast.literal_eval(kw.value) for kw in node.keywords}
                try:
                    config = transformers.GenerationConfig(**given)
                    config.validate(strict=True)
                except ValueError as error:
                    complaint = str(error)
        yield Parsed("transformers", transformers.__version__, name, export.command_line, complaint)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vllm-python", type=Path, help="a Python that can import vllm")
    parser.add_argument("--llama-server", type=Path, help="the binary")
    asked = parser.parse_args(arguments)
    found: list[Parsed] = list(parse_by_transformers())
    if asked.vllm_python:
        found += parse_by_vllm(asked.vllm_python)
    if asked.llama_server:
        found += parse_by_llama_server(asked.llama_server)
    return _tell(found)


def _tell(found: Iterable[Parsed]) -> int:
    refused = 0
    by_engine: dict[tuple[str, str], list[Parsed]] = {}
    for one in found:
        by_engine.setdefault((one.engine, one.version), []).append(one)
    for (engine, version), lines in by_engine.items():
        open_ones = [one for one in lines if one.complaint.startswith(_NOT_JUDGED)]
        bad = [one for one in lines if one.complaint and one not in open_ones]
        refused += len(bad)
        taken = len(lines) - len(bad) - len(open_ones)
        print(f"{engine} {version}: {taken} of {len(lines)} command lines taken")
        for text in dict.fromkeys(f"{one.pairing}: {one.complaint}" for one in open_ones):
            print(f"  {text}")
        for one in bad:
            print(f"  {one.pairing}: {one.complaint}\n    {one.command}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
