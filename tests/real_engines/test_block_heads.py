"""DFlash, DFlash 2 and DSpark heads made here: converted by llama.cpp, drafting by exported lines.

The target's text uses three tokens, so that random heads guess some of them.
"""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.calls import specbench
from tests.real_engines import make_gguf
from tests.real_engines.environments import LLAMA_CPP, MODELS
from tests.real_engines.test_llama_cpp import _server, greedy
from tests.tiny_models import change_config, write_head, write_model

pytestmark = pytest.mark.engines

METHODS = ("dflash", "dflash2", "dspark")
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
SIZES = {"hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 128}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("heads")
    vocab_size = json.loads((MODELS / "target" / "config.json").read_text())["vocab_size"]
    target = write_model(folder / "target", vocab_size=vocab_size, **SIZES)
    for name in TOKENIZER:
        shutil.copy(MODELS / "target" / name, folder / "target" / name)
    generator = torch.Generator().manual_seed(0)
    draw(folder / "target", generator, num_tokens=3)
    for method in METHODS:
        head = write_head(folder / method, method, target, num_layers=2)
        if method == "dflash2":  # llama.cpp needs room for pairs of candidates in a state
            section = {**head.config["dflash_config"], "selector_top_k": 4}
            change_config(head, dflash_config=section)
        draw(folder / method, generator)
    for model in ("target", *METHODS):
        of_target = [] if model == "target" else [folder / "target"]
        make = (make_gguf.__file__, LLAMA_CPP, folder / model, folder / f"{model}.gguf")
        subprocess.run([sys.executable, *make, *of_target], check=True, capture_output=True)
    drafters = {m: {"method": m, "model": str(folder / f"{m}.gguf")} for m in METHODS}
    few = {"model": str(folder / "target.gguf"), "drafters": drafters}
    (folder / "pairings.yaml").write_text(json.dumps({"targets": {"few": few}}))
    return folder


def draw(model: Path, generator: torch.Generator, num_tokens: int = 0) -> None:
    """Weights that change drafts; only `num_tokens` tokens get large logits, if it is above 0."""
    tensors = load_file(file := model / "model.safetensors")
    for name, tensor in tensors.items():
        if "norm" not in name and "base_kernel" not in name:
            tensors[name] = torch.randn(tensor.shape, generator=generator) * 0.1
    if num_tokens:
        tensors["model.embed_tokens.weight"] *= 10
        tensors["lm_head.weight"][100 : 100 + num_tokens] *= 10
    save_file(tensors, file, {"format": "pt"})


@pytest.mark.parametrize("method", METHODS)
def test_the_exported_line_starts_a_server_that_accepts_drafts(folder, tmp_path, method):
    ran = specbench("export", f"few/{method}", "--engine", "llama_cpp", "-k", "4", cwd=folder)
    command = shlex.split(ran.out.splitlines()[-1])
    with _server(tmp_path / "0.log", "--model", str(folder / "target.gguf")) as plain:
        text, _ = greedy(plain)
    with _server(tmp_path / "4.log", *command[1:]) as server:
        drafted_text, timings = greedy(server)
    print(method, timings["draft_n_accepted"], "of", timings["draft_n"])
    assert drafted_text == text
    assert timings["draft_n_accepted"] > 3
