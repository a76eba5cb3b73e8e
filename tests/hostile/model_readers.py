"""Readers of models' files: config, tokenizer, tensor headers; of the demo's draft and heads."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from specbench.errors import ModelError
from specbench.files.headers import INDEX, read_headers
from specbench.files.model import ModelFiles, open_model, require_config
from specbench.files.model_spec import ModelSpec
from specbench.fit.candidates import discover
from specbench.fit.compatibility import check_drafter
from specbench.fit.memory_plan import DeploymentSpec, plan_pair
from specbench.inputs.pairing import DrafterSpec
from specbench.records import Message
from specbench.shipped import PACKAGE
from tests.hostile import mutations
from tests.hostile.mutations import Case, Make, Mutation

MODELS = PACKAGE / "demo" / "models"
PLACE = DeploymentSpec(device="cuda", memory_bytes=2**33, bytes_per_s=1e12)
FILES = {  # method -> the folder of the demo, and its files
    "draft_model": (
        "poor",
        ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", INDEX),
    ),
    "eagle": ("eagle", ("config.json", "model.safetensors")),
    "eagle3": ("eagle3", ("config.json",)),
    "medusa": ("medusa", ("config.json", "model.safetensors")),
}


@cache
def target() -> ModelFiles:
    return open_model(ModelSpec(source="demo:target", folder=MODELS / "target"))


def check_draft(folder: Path, method: str) -> None:
    """Everything `pair --dry-run` does with a draft; ModelError if it is refused."""
    spec = ModelSpec(source=str(folder), folder=folder)
    drafter = DrafterSpec(name="draft", method=method, model=spec)
    discover(target(), [folder], in_hub_cache=False)
    checked = check_drafter(target(), drafter)
    if checked.level == "refused":
        raise ModelError("; ".join(f.text for f in checked.of_level("refused")))
    plan_pair(target(), drafter, PLACE)


def _of_model(method: str, name: str) -> Make:
    def make(folder: Path) -> Case:
        whole = MODELS / FILES[method][0]
        shutil.copytree(whole, folder, dirs_exist_ok=True)
        path = folder / name
        if name == INDEX:
            shard = (folder / "model.safetensors").rename(folder / "model-1.safetensors")
            path.write_text(
                json.dumps({"weight_map": dict.fromkeys(read_headers(shard), shard.name)})
            )
        return Case(
            file=path,
            content=path.read_bytes(),
            mutated=_mutation(name),
            read=lambda: check_draft(folder, method),
            place="",  # findings are in a table, each with its drafter
        )

    return make


def _mutation(name: str) -> Mutation:
    return mutations.tensor_file if name.endswith(".safetensors") else mutations.json_file


def _all() -> Iterator[tuple[str, Make]]:
    for method, (_, names) in FILES.items():
        for name in names:
            yield f"{name} of {method}", _of_model(method, name)


def _loaded(name: str, load: Callable[[Path], object]) -> Make:
    """Load a file as a run does, with the library that it is made for."""

    def make(folder: Path) -> Case:
        shutil.copytree(MODELS / "poor", folder, dirs_exist_ok=True)
        path = folder / name
        return Case(
            file=path,
            content=path.read_bytes(),
            mutated=_mutation(name),
            read=lambda: load(folder),
            place=folder.name,
        )

    return make


def _load_tokenizer(folder: Path) -> None:
    from specbench.models.tokenizer import ChatTokenizer

    tokenizer = ChatTokenizer(str(folder), revision=None, trust_remote_code=False)
    tokenizer.prompt_ids([Message(role="user", content="Hello")])
    tokenizer.vocabulary.texts()


def _load_model(folder: Path) -> None:
    import torch

    from specbench.models.loading import load_model

    # A run checks memory first, and real models have smaller sizes.
    require_config(open_model(ModelSpec(source=str(folder), folder=folder)))
    source = ModelSpec(source=str(folder), folder=folder, dtype="float32")
    load_model(source, torch.device("cpu"))


READERS: dict[str, Make] = {
    **dict(_all()),
    "tokenizer.json, loaded": _loaded("tokenizer.json", _load_tokenizer),
    "tokenizer_config.json, loaded": _loaded("tokenizer_config.json", _load_tokenizer),
    "config.json, loaded": _loaded("config.json", _load_model),
    "generation_config.json, loaded": _loaded("generation_config.json", _load_model),
    "model.safetensors, loaded": _loaded("model.safetensors", _load_model),
}
