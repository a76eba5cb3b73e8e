"""`specbench doctor`: compares this machine with the requirements of each pairing."""

import json
import platform
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specbench.cli import options
from specbench.cli.adhoc_pairing import known_pairings
from specbench.cli.preflight import nearest_existing
from specbench.errors import ExitCode, ModelError, SpecbenchError
from specbench.fit.gpus import GIB
from specbench.library_facts import newer_than_tested
from specbench.own_process import child_environment
from specbench.settings.groups import PairingNames, PairingsFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from specbench.files.model_spec import ModelSpec
    from specbench.fit.compatibility import FitFinding
    from specbench.fit.memory_plan import DeploymentSpec
    from specbench.inputs.pairing import Pairing

_NO_SERVER = "llama-server is not on the PATH; name it with --engine-python"
_MOST_IN_FULL = 10  # pairings that are printed in full if none is named


def doctor(
    pairings: PairingNames,
    pairings_file: PairingsFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Check versions, GPU and its libraries, memory, tokenizers, hub token and model cache.

    Exit code 1 if a named pairing is not ready.
    """
    file = known_pairings(pairings or (), pairings_file)
    chosen = file.select(pairings) if pairings else file.all

    from specbench.cli.console import open_console
    from specbench.cli.hardware import this_machine, torch_build
    from specbench.fit.memory_plan import DeploymentSpec
    from specbench.probes.environment import package_versions
    from specbench.probes.gpu import open_probe

    machine = this_machine(DeploymentSpec(device="cpu"), "auto")
    probe = open_probe("cuda:0")
    facts = probe.gpu_facts()
    checked: dict[str, Any] = {"device": "cpu"}
    if machine.setup.device != "cpu" or facts.name:
        with open_console(stderr=True).status("checking the GPU with torch"):
            checked = check_gpu()
    device = checked.get("device", "cuda:0")
    if device == "cpu":
        machine = this_machine(DeploymentSpec(device="cpu"), "cpu")
        probe = open_probe(device)
    setup = machine.setup
    if setup.memory_bytes is None:
        setup = replace(setup, memory_bytes=checked.get("free_bytes"))
    free_bytes = setup.memory_bytes
    rows = _checked(chosen, setup, quiet=as_json)
    if "problem" in checked:
        for row in (r for p, r in zip(chosen, rows, strict=True) if not p.is_gguf):
            row["ready"] = False
            row["missing"].insert(0, "GPU")
            row["problems"].insert(0, "torch cannot use the GPU")
    document = {
        "device": device,
        "gpu": facts.name,
        "driver": facts.driver,
        "torch_build": torch_build(),
        "gpu_check": checked,
        "probe": probe.reason or "NVML",
        "hub": _hub(),
        "python": platform.python_version(),
        "packages": package_versions(),
        "newer_than_tested": newer_than_tested(),
        "free_gib": None if free_bytes is None else round(free_bytes / GIB, 2),
        "pairings": rows,
    }
    if as_json:
        options.print_json(document)
    else:
        _print(document, in_full=bool(pairings) or len(chosen) <= _MOST_IN_FULL)
    if pairings and not all(row["ready"] for row in rows):
        raise typer.Exit(ExitCode.FAILED)


def _hub() -> dict[str, Any]:
    """The model cache, its free disk space, and whether a hub token is set for gated models."""
    from huggingface_hub import constants, get_token

    cache = Path(constants.HF_HUB_CACHE)
    return {
        "has_token": get_token() is not None,
        "is_offline": constants.is_offline_mode(),
        "cache": str(cache),
        "free_disk_gib": round(shutil.disk_usage(nearest_existing(cache)).free / GIB, 1),
    }


def _checked(
    chosen: "Sequence[Pairing]", setup: "DeploymentSpec", *, quiet: bool
) -> list[dict[str, Any]]:
    """The check of each pairing; a terminal shows the name of the one in progress."""
    from specbench.cli.console import open_console
    from specbench.fit.loaded_tensors import asking

    console = open_console(stderr=True)
    if quiet or not console.is_terminal:
        with asking():
            return [_check(pairing, setup) for pairing in chosen]
    rows = []
    with asking(), console.status("") as status:
        for number, pairing in enumerate(chosen, start=1):
            status.update(f"checking {pairing.name} ({number} of {len(chosen)})")
            rows.append(_check(pairing, setup))
    return rows


def _check(pairing: "Pairing", setup: "DeploymentSpec") -> dict[str, Any]:
    from specbench.files.model import is_here
    from specbench.fit.demand import demand, shortage

    is_gguf = pairing.is_gguf
    is_downloaded = all(map(is_here, pairing.models))
    problems: dict[str, str] = {}  # what is missing, in short and in full
    notes: list[str] = []
    needs, at_least = None, None
    try:
        needed = demand(pairing.target, [pairing.drafter], setup)
        if needed.total and (pairing.weights_gib is not None or not needed.is_least):
            needs = round(needed.total / GIB, 2)
        elif needed.total:
            at_least = round(needed.total / GIB, 2)
        if lack := shortage(pairing.target, [pairing.drafter], setup):
            if needed.is_most:
                notes.append(f"may be too large: {lack}")
            else:
                problems["too large"] = lack
        if not is_gguf and setup.device == "cuda" and (missing := _without_accelerate(pairing)):
            problems["accelerate"] = missing
    except SpecbenchError as error:
        problems["files"] = str(error)
    if not is_downloaded:
        problems["not downloaded"] = "not downloaded"
    else:
        refusals, found = (_serving_problems if is_gguf else _loading_problems)(pairing)
        notes += found
        problems |= {
            short: refusal
            for short, refusal in refusals.items()
            if not any(problem in refusal for problem in problems.values())
        }
    return {
        "pairing": pairing.name,
        "weights_gib": needs,
        "at_least_gib": at_least,
        "downloaded": is_downloaded,
        "ready": not problems,
        "missing": list(problems),
        "problems": list(problems.values()),
        "notes": notes,
    }


def _serving_problems(pairing: "Pairing") -> tuple[dict[str, str], list[str]]:
    """Why llama.cpp does not draft with these GGUF files; and notes."""
    from specbench.engines.deployment import Deployment, Tier, find_exporter

    notes = [] if shutil.which("llama-server") else [_NO_SERVER]
    try:
        deployment = Deployment(pairing=pairing, tiers=(Tier(None, 1),))
        find_exporter("llama_cpp").export(deployment, None, "")
    except SpecbenchError as error:
        return {"llama.cpp": str(error)}, notes
    return {}, notes


def _without_accelerate(pairing: "Pairing") -> str | None:
    """The models that transformers cannot load on a GPU if accelerate is not installed."""
    from specbench.files.model import is_here, open_model
    from specbench.methods import find_method

    if find_spec("accelerate") is not None:
        return None
    is_head = find_method(pairing.drafter.method).is_head
    models = (pairing.target.model, None if is_head else pairing.drafter.model)
    stored = [
        model.source
        for model in models
        if model is not None
        and is_here(model)
        and open_model(model).field("quantization_config") is not None
    ]
    if not stored:
        return None
    sources = ", ".join(stored)
    return f"a stored format on a GPU ({sources}) needs accelerate; pip install accelerate"


def _loading_problems(pairing: "Pairing") -> tuple[dict[str, str], list[str]]:
    """Why the target, or else the drafter, cannot be loaded; and notes."""
    from specbench.files.model import open_model
    from specbench.fit.compatibility import check_drafter, check_target
    from specbench.methods import find_method

    try:
        target = open_model(pairing.target.model)
    except SpecbenchError as error:
        return {"files": str(error)}, []
    drafter = check_drafter(target, pairing.drafter)
    findings = check_target(target)
    drafted_by = None if find_method(pairing.drafter.method).is_head else pairing.drafter.model
    problems = _of_model(pairing.target.model, findings) or _of_model(drafted_by, drafter.findings)
    noted = ("chat_template", "generation", "tensors")
    notes = [f.reason for f in findings if f.level == "warning" and f.field in noted]
    notes += [f.reason for f in drafter.of_level("ok") if f.field == "layout"]
    of_drafter = ("tokenizer", "vocab_size", "d2t", "adapter", "tensors")
    notes += [f.reason for f in drafter.of_level("warning") if f.field in of_drafter]
    return problems, notes


def _of_model(model: "ModelSpec | None", findings: "Iterable[FitFinding]") -> dict[str, str]:
    """Problems of a model's files, or else of running a small model of its family.

    Files of heads, whose `model` is None, have only findings.
    """
    from specbench.files.model import open_model
    from specbench.fit.compatibility import is_proven

    refused = {finding.field: finding.text for finding in findings if finding.level == "refused"}
    if refused or model is None:
        return refused
    try:
        files = open_model(model)
        if not is_proven(files):
            from specbench.engines.family_trial import why_family_fails

            if refusal := why_family_fails(model):
                return {"family": refusal}
    except ModelError as error:
        return {"files": f"files: {error}"}
    return {finding.field: finding.text for finding in findings if finding.lacks_weights}


def _print(document: dict[str, Any], *, in_full: bool) -> None:
    """Prints one line per pairing, and sentences for named ones."""
    from specbench.cli.console import open_console, plain_table
    from specbench.words.table import Table, column

    console = open_console()
    packages = document["packages"]
    versions = ", ".join(f"{n} {packages[n]}" for n in ("torch", "transformers") if n in packages)
    console.print(f"python {document['python']}, {versions}")
    for line in (*document["newer_than_tested"], *_gpu_lines(document)):
        console.print(line)
    console.print(f"probe: {document['probe']}")
    free = document["free_gib"]
    console.print(f"free memory: {'unknown' if free is None else f'{free:g} GiB'}")
    hub = document["hub"]
    token = (
        "token is set" if hub["has_token"] else "no token, which gated models need: hf auth login"
    )
    offline = ", offline" if hub["is_offline"] else ""
    console.print(f"hub: {token}{offline}")
    console.print(f"model cache: {hub['cache']}, {hub['free_disk_gib']:g} GiB free")
    problems = "problems" if in_full else "missing"
    table = Table(
        columns=[
            column("pairing", itemgetter("pairing")),
            column("needs GiB", _needs),
            column("ready", lambda row: "yes" if row["ready"] else "no"),
            column("why not", lambda row: "; ".join(row[problems])),
        ],
        records=document["pairings"],
        num_names=2,
        num_remarks=2,
        wraps=(3,),
    )
    console.print(plain_table(table))
    notes: dict[str, list[str]] = {}
    for row in document["pairings"] if in_full else ():
        for note in row["notes"]:
            notes.setdefault(note, []).append(row["pairing"])
    for note, names in notes.items():
        console.print(f"{', '.join(names)}: {note}")
    console.print(_counts(document["pairings"]))
    if not in_full:
        console.print("Details of one: `specbench doctor PAIRING`.")


def _needs(row: dict[str, Any]) -> str:
    if row["at_least_gib"] is not None:
        return f">= {row['at_least_gib']:g}"
    return "" if row["weights_gib"] is None else f"{row['weights_gib']:g}"


def _counts(rows: "Sequence[dict[str, Any]]") -> str:
    """How many pairings are ready, cannot run here, or were not checked."""
    from specbench.words.numbers import plural

    num_ready = sum(row["ready"] for row in rows)
    num_unchecked = sum(row["missing"] == ["not downloaded"] for row in rows)
    parts = [f"{num_ready} of {plural(len(rows), 'pairing')} ready here"]
    if num_unchecked:
        parts.append(f"{num_unchecked} not downloaded, so not checked")
    if num_refused := len(rows) - num_ready - num_unchecked:
        parts.append(f"{num_refused} cannot run here")
    return f"{'; '.join(parts)}."


def _gpu_lines(document: dict[str, Any]) -> "Iterator[str]":
    """The device, the build of torch, and which libraries work on it."""
    checked, build = document["gpu_check"], document["torch_build"]
    facts = [document["gpu"] or ("no GPU" if document["device"] == "cpu" else "unknown GPU")]
    if (num_gpus := checked.get("num_gpus", 1)) > 1:
        facts.append(f"the first of {num_gpus}")
    if document["driver"]:
        facts.append(f"driver {document['driver']}")
    if "compute_capability" in checked:
        facts.append(f"compute capability {checked['compute_capability']}")
    yield f"device {document['device']}: {', '.join(facts)}"
    if document["device"] == "cpu":
        yield f"torch: built for {build or 'unknown'}"
        return
    is_available = "problem" not in checked
    yield f"torch: built for {build or 'unknown'}, torch.cuda.is_available(): {is_available}"
    if not is_available:
        yield checked["problem"]
        return
    yield f"Triton: {checked['triton'] or 'works'}"
    yield f"flash-attn: {checked['flash_attn'] or 'works'}"


TIMEOUT_S = 120.0  # a first import of torch from a network disk takes a minute


def check_gpu() -> dict[str, Any]:
    """Check in a separate process whether torch, Triton and flash-attn work on this machine's GPU.

    So `doctor` does not import torch, and a library that crashes does not end it. The facts:
    `device` (the one that a run takes), `num_gpus`, `compute_capability`, `free_bytes`, `triton`,
    `flash_attn` (None if it works, else the reason) and `problem`, if they are known.
    """
    command = [sys.executable, "-c", "from specbench.cli.doctor import print_gpu; print_gpu()"]
    environment = child_environment()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"torch did not find its GPU within {TIMEOUT_S:g} s"}
    if done.returncode:
        *_, reason = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"problem": f"torch cannot use the GPU: {reason}"}
    checked: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return checked


def describe_gpu() -> dict[str, Any]:
    """The facts of `check_gpu`, in a process that may import torch."""
    import torch

    from specbench.errors import UsageError
    from specbench.probes.device import find_device

    try:
        device = find_device("auto")
    except UsageError as error:
        return {"problem": str(error).removeprefix("--device auto: ")}
    if device.type == "cpu":
        return {"device": "cpu"}
    # Only now: it also imports transformers.
    from specbench.forward.attention.implementations import import_failure
    from specbench.forward.kernels.availability import triton_failure

    major, minor = torch.cuda.get_device_capability(device)
    return {
        "device": str(device),
        "num_gpus": torch.cuda.device_count(),
        "compute_capability": f"{major}.{minor}",
        "free_bytes": torch.cuda.mem_get_info(device)[0],
        "triton": triton_failure(device),
        "flash_attn": import_failure(),
    }


def print_gpu() -> None:
    """Print the facts as one line of JSON; libraries may print before it."""
    print(f"\n{json.dumps(describe_gpu())}")
