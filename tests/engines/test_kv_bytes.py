"""The keys and values that a pass is said to take are those that were allocated for its rows."""

from pathlib import Path

import pytest
import torch

from specbench.engines.builtin import BuiltinEngine
from specbench.engines.engine import Load, Work
from specbench.engines.model_pool import ModelPool
from specbench.inputs.pairing import DrafterSpec, Target
from specbench.records import Request, Sampling
from specbench.settings import DecoderSettings
from tests.tiny_models import write_head, write_model

ROWS = 3


@pytest.mark.slow
@pytest.mark.parametrize("tree", [pytest.param("chain", marks=pytest.mark.long), "dynamic"])
def test_the_target_and_a_head_with_extra_beam_slots_are_counted(tmp_path: Path, tree: str) -> None:
    files = write_model(tmp_path / "target")
    head = write_head(tmp_path / "head", "eagle", files)
    target = Target(name="tiny", model=files.spec, drafters=())
    fused = DecoderSettings(forward="fused")  # whichever is faster here
    engine = BuiltinEngine(target, ModelPool(torch.device("cpu")), fused)
    parameters = {"tree": tree}
    engine.add_drafter(
        DrafterSpec(name="e", method="eagle", model=head.spec, parameters=parameters)
    )
    work = Work(drafter="e", method="eagle", k=2)
    told = set()
    for most in (50, 61, 67):  # rising past the end of a bucket: rows are never given back
        requests = [
            Request(prompt_ids=(40, 41, 42), max_new_tokens=most, sampling=Sampling(), seed=i)
            for i in range(ROWS)
        ]
        served = engine.serve(requests, work, Load(concurrency=ROWS))
        of_target = sum(both.nbytes for both in engine.runner.cache.layers)
        own = engine.drafting("e").head.layers.cache.layers  # type: ignore[attr-defined]
        of_head = sum(both.nbytes for both in own)
        assert served.kv_bytes == of_target + of_head, f"{most} new tokens"
        told.add(served.kv_bytes)
    assert len(told) == 2
    spare = engine.drafting("e").resources.spare_slots
    assert (spare > 0) is (tree == "dynamic")
