"""Memory besides weights and keys, by hand: Llama 3.1 8B with Llama 3.2 1B, bfloat16, a GPU."""

from dataclasses import replace

import pytest

from specbench.files.model import open_model
from specbench.files.model_spec import ModelSpec
from specbench.fit.memory_plan import CUBLAS_BYTES, DeploymentSpec, plan_pair
from specbench.fit.weights import model_weights
from specbench.inputs.pairing import DrafterSpec
from specbench.shipped import PACKAGE

GIB = 2**30
PLACE = DeploymentSpec(device="cuda", memory_bytes=80 * GIB, bytes_per_s=3.35e12, context=4000)


def shape(name: str, **changes) -> ModelSpec:
    return ModelSpec(source=f"shape:{name}", folder=PACKAGE / "shapes" / name, **changes)


DRAFT = DrafterSpec(name="1b", method="draft_model", model=shape("llama-1b"))

# Made once: 256 tokens of hidden state, q-k-v, gate-up, heads' output and packed queries, and
# sines and cosines of 4096 slots.
KEPT = 256 * 2 * (4096 + 6144 + 28672 + 4096 + 4096) + 256 * 2 * (2048 + 3072 + 16384 + 2048 + 2048)
KEPT += 4096 * 2 * 2 * (128 + 64)


@pytest.mark.parametrize("rows", [1, 3])
def test_workspace_of_a_round_and_a_prefill_is_counted(rows):
    plan = plan_pair(open_model(shape("llama-8b")), DRAFT, replace(PLACE, concurrency=rows))
    # Five tokens checked, two drafted from; a mask of four query heads by 4096 slots; logits.
    checked = 2 * rows * (5 * (4096 + 14336) + 4 * 5 * 4096 + 5 * 128256)
    drafted = 2 * rows * (2 * (2048 + 8192) + 4 * 2 * 4096 + 2 * 128256)
    # 512 tokens of every row's prompt with all that they write, and a row of logits each.
    prefill = 2 * rows * (512 * (4096 + 14336 + 47104) + 128256)
    state = 8 * rows * 4096
    assert plan.peak.rest == KEPT + checked + drafted + prefill + state + CUBLAS_BYTES
    assert CUBLAS_BYTES == 32 * 2**20  # NVIDIA's figure for Hopper


def test_above_temperature_0_distributions_are_kept():
    files = open_model(shape("llama-8b"))
    cold, warm = (plan_pair(files, DRAFT, replace(PLACE, temperature=t)) for t in (0.0, 1.0))
    # Five nodes: scores, noise and distribution in 4 bytes and a hash of 2 x 8; four drafts:
    # distribution twice.
    more = 128256 * (5 * (3 * 4 + 2 * 8) + 4 * 2 * 4)
    assert warm.peak.rest - cold.peak.rest == more


def test_self_speculation_costs_its_share_of_the_layers_and_the_whole_head():
    drafter = DrafterSpec(name="self", method="self_speculation", parameters={"num_layers": 8})
    plan = plan_pair(open_model(shape("llama-8b")), drafter, PLACE)
    head, vocabulary = 2 * 4096 * 128256, 2 * 4096 * 128256
    step = 2 * 8_030_261_248 - vocabulary + PLACE.context * PLACE.concurrency * 2 * 32 * 2 * 1024
    once = (step - head) * 8 / 32 + head
    assert plan.break_even_length == pytest.approx(1 + 4 * once / step, rel=1e-6)


def test_planned_int4_weights_take_4_25_bits_each():
    packed = open_model(shape("llama-8b", quantization="int4"))
    linears = 32 * 4096 * (6144 + 4096 + 3 * 14336)
    rest = 8_030_261_248 - linears
    counted = model_weights(packed, "bfloat16")
    assert counted.nbytes == 2 * rest + 2 * 64 * 4 + linears * 4.25 / 8
