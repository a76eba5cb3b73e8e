"""A Gemma 4 assistant made here: converted by llama.cpp, drafting by an exported line, measured.

Layers as in the 31B model: a target without shared keys, and an assistant of half its width.
"""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.gemma4 import Gemma4ForCausalLM, Gemma4TextConfig
from transformers.models.gemma4_assistant import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
)

from tests.cli.calls import specbench
from tests.drafters.test_gemma4_mtp import KINDS, SHAPE, draw, kinds
from tests.real_engines import make_gguf
from tests.real_engines.environments import LLAMA_CPP, LLAMA_SERVER, MODELS
from tests.real_engines.sweeps import EXACT, pair_with_builtin, sweep
from tests.real_engines.test_block_heads import TOKENIZER
from tests.real_engines.test_llama_cpp import _server, greedy

pytestmark = pytest.mark.engines

WIDTH = 64
LIKELY = slice(100, 103)  # tokens of which the text mostly consists, so that some drafts are right
ASKED = ("-w", "code", "--num-prompts", "5", "--max-new-tokens", "48", "-k", "4")


def make_pair() -> dict[str, Any]:
    vocab_size = json.loads((MODELS / "target" / "config.json").read_text())["vocab_size"]
    shape = SHAPE | {
        **{"vocab_size": vocab_size, "hidden_size": WIDTH, "intermediate_size": 128},
        **{"head_dim": 32, "global_head_dim": 64, "sliding_window": 64, "eos_token_id": 2},
        **{"max_position_embeddings": 2048, "tie_word_embeddings": False},
        **{"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0},
    }
    config = Gemma4TextConfig(**shape, **kinds(KINDS), num_kv_shared_layers=0)
    narrow = shape | {"hidden_size": WIDTH // 2, "tie_word_embeddings": True}
    text = Gemma4TextConfig(**narrow, **kinds(("sliding", "full")), num_kv_shared_layers=2)
    made = Gemma4AssistantConfig(
        text_config=text, backbone_hidden_size=WIDTH, use_ordered_embeddings=False
    )
    target = draw(Gemma4ForCausalLM(config), 0, 0.25)
    assistant = draw(Gemma4AssistantForCausalLM(made), 1, 0.25)
    with torch.no_grad():
        target.lm_head.weight[LIKELY] *= 10
        assistant.get_output_embeddings().weight[LIKELY] *= 4
    return {"target": target.float(), "assistant": assistant.float()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Pairings of the model folders, and in gguf/ those of their GGUF files, with equal names."""
    folder = tmp_path_factory.mktemp("assistant")
    (folder / "gguf").mkdir()
    for name, model in make_pair().items():
        model.save_pretrained(folder / name)
        for file in TOKENIZER:
            shutil.copy(MODELS / "target" / file, folder / name / file)
        gguf = folder / "gguf" / f"{name}.gguf"
        make = (make_gguf.__file__, LLAMA_CPP, folder / name, gguf)
        subprocess.run([sys.executable, *make], check=True, capture_output=True)
    for where, suffix in ((folder, ""), (folder / "gguf", ".gguf")):
        drafter = {"method": "gemma4_mtp", "model": str(where / f"assistant{suffix}")}
        target = {"model": str(where / f"target{suffix}"), "drafters": {"gemma4_mtp": drafter}}
        (where / "pairings.yaml").write_text(json.dumps({"targets": {"few": target}}))
    return folder


def test_the_exported_line_starts_a_server_that_accepts_drafts(folder, tmp_path):
    gguf = folder / "gguf"
    ran = specbench("export", "few/gemma4_mtp", "--engine", "llama_cpp", "-k", "4", cwd=gguf)
    command = shlex.split(ran.out.splitlines()[-1])
    with _server(tmp_path / "0.log", "--model", str(gguf / "target.gguf")) as plain:
        text, _ = greedy(plain)
    with _server(tmp_path / "4.log", *command[1:]) as server:
        drafted_text, timings = greedy(server)
    print("accepted", timings["draft_n_accepted"], "of", timings["draft_n"])
    assert drafted_text == text
    assert timings["draft_n_accepted"] > 3


def test_a_measured_assistant_is_accepted_as_often_as_in_our_decoder(folder, tmp_path):
    started = ("--engine", "llama_cpp", "--engine-python", LLAMA_SERVER)
    engine = sweep(
        *("run", "few/gemma4_mtp", *ASKED, *started, "--engine-args", " ".join(EXACT)),
        cwd=folder / "gguf",
        out=tmp_path / "engine",
    )
    builtin = sweep(
        "run", "few/gemma4_mtp", *ASKED, "--dtype", "float32", cwd=folder, out=tmp_path / "builtin"
    )
    pairs = pair_with_builtin(engine, builtin, "gemma4_mtp", "code", 4)
    print(pairs)
    assert pairs.num_equal > pairs.num_texts / 2
    assert pairs.accepted > 0
    assert pairs.accepted == pairs.own_accepted
