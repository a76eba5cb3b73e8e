"""The memory plan is within 5% of the growth of a process that decodes the pair, and of the peak of
CUDA's allocator.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Work
from specbench.engines.model_pool import ModelPool
from specbench.files.model import open_model
from specbench.fit.memory_plan import DeploymentSpec, plan_pair, plan_target
from specbench.inputs.config import load_pairings
from tests.fit.memory_child import decode
from tests.tiny_pair import make_tokenizer

ROOT = Path(__file__).parents[2]
GIB = 2**30
PLACE = DeploymentSpec(device="cpu", context=256, num_speculative_tokens=4)
# A block of a tensor goes back to the system when it is freed: what the allocator keeps for later
# depends on the order of frees, and would be 50 MB here, or none.
GIVES_BACK = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "262144",
    "MALLOC_TRIM_THRESHOLD_": "0",
}
PAIRINGS = """\
targets:
  big:
    model: ./target
    drafters:
      draft: {method: draft_model, model: ./draft}
"""


def write_model(folder: Path, num_layers: int) -> None:
    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=1280,
        intermediate_size=3200,
        num_hidden_layers=num_layers,
        num_attention_heads=10,
        num_key_value_heads=5,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        dtype=torch.bfloat16,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to_empty(device="cpu").to(torch.bfloat16)
    # Drawing this many weights takes longer than everything else.
    some = torch.randn(2**16, generator=torch.Generator().manual_seed(0)).bfloat16() * 0.02
    for weight in model.parameters():
        weight.data = some.repeat(-(-weight.numel() // len(some)))[: weight.numel()].view_as(weight)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


# Its parts, counted by their tensors, are in test_weights.py and test_timed_forwards.py.
@pytest.mark.slow
@pytest.mark.long
def test_memory_growth_of_a_process_matches_the_plan(tmp_path: Path) -> None:
    write_model(tmp_path / "target", num_layers=6)
    write_model(tmp_path / "draft", num_layers=2)
    file = tmp_path / "pairings.yaml"
    file.write_text(PAIRINGS)
    (target,) = load_pairings(file).targets
    files = open_model(target.model)
    alone, pair = plan_target(files, PLACE), plan_pair(files, target.drafters[0], PLACE)
    assert alone is not None
    assert pair is not None
    assert pair.peak.weights > GIB / 4
    assert psutil.virtual_memory().available > 2 * GIB, "too little memory to see its growth"

    grown = _growth(file)
    assert grown == pytest.approx([alone.peak.total, pair.peak.total], rel=0.05)
    # The draft's own share: the target's size would hide an error of a quarter of it.
    cost = pair.peak.total - alone.peak.total
    print(f"of the plan: {grown[0] / alone.peak.total:.4f}, {(grown[1] - grown[0]) / cost:.4f}")
    assert grown[1] - grown[0] == pytest.approx(cost, rel=0.15)


def _growth(pairings: Path) -> list[int]:
    """Bytes by which a separate process grew, with only the target and with the pair."""
    arguments = [str(pairings), str(PLACE.context), str(PLACE.num_speculative_tokens)]
    command = [sys.executable, "-m", "tests.fit.memory_child", *arguments]
    environment = os.environ | GIVES_BACK
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.gpu
def test_the_allocator_peak_on_a_gpu_matches_the_plan(tmp_path: Path) -> None:
    write_model(tmp_path / "target", num_layers=28)
    write_model(tmp_path / "draft", num_layers=4)
    (tmp_path / "pairings.yaml").write_text(PAIRINGS)
    (target,) = load_pairings(tmp_path / "pairings.yaml").targets
    (drafter,) = target.drafters
    place = DeploymentSpec(device="cuda", context=512, num_speculative_tokens=4)
    files = open_model(target.model)
    alone, pair = plan_target(files, place), plan_pair(files, drafter, place)
    assert alone is not None
    assert pair is not None

    engine = BuiltinEngine(target, ModelPool(torch.device("cuda", 0)))
    decode(engine, engine.baseline, place.context)
    peaks = [torch.cuda.max_memory_allocated()]
    engine.add_drafter(drafter)
    work = Work(drafter=drafter.name, method=drafter.method, k=4)
    decode(engine, work, place.context)
    peaks.append(torch.cuda.max_memory_allocated())

    assert peaks == pytest.approx([alone.peak.total, pair.peak.total], rel=0.05)
