"""The memory plan against the peak of CUDA's allocator: within 5%."""

from pathlib import Path

import pytest
import torch

from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Work
from specbench.engines.model_pool import ModelPool
from specbench.files.model import open_model
from specbench.fit.memory_plan import DeploymentSpec, plan_pair, plan_target
from specbench.inputs.config import load_pairings
from tests.fit.memory_child import decode
from tests.fit.test_process_growth import PAIRINGS, write_model


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
