"""Sums and sentences of memory plans: worked by hand on a shape, and as properties."""

from dataclasses import replace
from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.files.model import ModelFiles, open_model
from specbench.files.model_spec import ModelSpec
from specbench.fit.gpus import GPUS, RESERVED_BYTES, find_gpu, parse_bandwidth, parse_bytes
from specbench.fit.memory_plan import (
    CUBLAS_BYTES,
    DeploymentSpec,
    MemoryPlan,
    Peak,
    longest_that_fits,
    plan_pair,
    plan_target,
    sampling_bytes,
)
from specbench.fit.weights import model_weights
from specbench.inputs.model_spec import model_spec
from specbench.inputs.pairing import DrafterSpec
from specbench.methods import find_method
from specbench.shipped import PACKAGE
from tests.tiny_models import write_head, write_model

GIB = 2**30
H100 = DeploymentSpec(device="cuda", memory_bytes=80 * GIB, bytes_per_s=3.35e12, context=4000)
NGRAM = DrafterSpec(name="ngram", method="ngram")


def shape(name: str, **changes) -> ModelSpec:
    return ModelSpec(source=f"shape:{name}", folder=PACKAGE / "shapes" / name, **changes)


DRAFT = DrafterSpec(name="1b", method="draft_model", model=shape("llama-1b"))


@pytest.fixture(scope="module")
def target() -> ModelFiles:
    return open_model(shape("llama-8b"))


def pair(target: ModelFiles, place: DeploymentSpec, drafter: DrafterSpec = DRAFT) -> MemoryPlan:
    plan = plan_pair(target, drafter, place)
    assert plan is not None
    return plan


def test_the_plan_of_llama_8b_has_its_published_sizes(target):
    plan = plan_target(target, H100)
    assert plan is not None
    assert plan.target.num_parameters == 8_030_261_248
    assert plan.target.nbytes == 2 * 8_030_261_248 + 2 * 64 * 4  # bf16, and rotary tables
    assert plan.target.kv_bytes_per_token == 32 * 2 * 8 * 128 * 2


@pytest.mark.parametrize(("tree", "draws"), [("dynamic", False), ("chain", True)])
def test_a_dynamic_tree_needs_no_memory_for_distributions(tmp_path, tree, draws):
    small = write_model(tmp_path / "small")
    head = write_head(tmp_path / "head", "eagle", small)
    drafter = DrafterSpec(name="e", method="eagle", model=head.spec, parameters={"tree": tree})
    cold = replace(H100, num_speculative_tokens=4, context=100)
    plans = [pair(small, replace(cold, temperature=t), drafter) for t in (0.0, 1.0)]
    drafts = find_method("eagle").shape(drafter.parameters, 4).num_drafts
    needed = sampling_bytes(1, drafts, small.vocab_size, draws=draws)
    assert plans[1].peak.rest - plans[0].peak.rest == needed


def test_keys_fill_whole_buckets_for_every_row(target):
    place = replace(H100, concurrency=3, num_speculative_tokens=4)
    plan = pair(target, place)
    # 4000 tokens, 4 drafts and one more are within the bucket of 4096.
    assert plan.peak.kv_cache == 3 * 4096 * (131_072 + 32_768)
    assert plan.headroom_bytes == 80 * GIB - plan.peak.total


def test_the_lower_bound_is_bytes_over_bandwidth(target):
    plan = pair(target, H100)
    embedding = 128_256 * 4096 * 2  # only looked up in: Llama 8B's head is a separate matrix
    step = (plan.target.nbytes - embedding + 4000 * 131_072) / 3.35e12
    draft = (plan.draft.nbytes + 4000 * 32_768) / 3.35e12
    assert plan.step_s == pytest.approx(step)
    assert plan.round_s == pytest.approx(step + 4 * draft)
    assert plan.break_even_length == pytest.approx(1 + 4 * draft / step)
    assert pair(target, H100, NGRAM).break_even_length == 1.0
    assert pair(target, replace(H100, bytes_per_s=None)).break_even_length is None


def test_the_reported_context_is_the_largest_that_fits(target):
    place = replace(H100, memory_bytes=24 * GIB)
    for plan in (pair(target, place), plan_target(target, place)):
        most = plan.max_context
        assert 0 < most < 131_072

        def peak(context: int, pair_plan: MemoryPlan = plan) -> int:
            at = replace(place, context=context)
            planned = plan_target(target, at) if pair_plan.draft is None else pair(target, at)
            return planned.peak.total

        assert peak(most) <= 24 * GIB < peak(most + 64)


@pytest.mark.parametrize(
    ("memory", "limit", "longest"),
    [(640, None, 640), (639, None, 576), (63, None, 0), (1e9, None, 2**20), (1e9, 1000, 960)],
)
def test_the_longest_context_may_use_all_memory(memory, limit, longest):
    def peak(context: int) -> Peak:
        return Peak(weights=0, kv_cache=context, rest=0)

    assert longest_that_fits(peak, memory, limit) == longest


def test_speculation_and_concurrency_reduce_the_context(target):
    place = replace(H100, memory_bytes=24 * GIB)
    alone, with_draft = plan_target(target, place), pair(target, place)
    assert with_draft.max_context < alone.max_context
    four = replace(place, concurrency=4)
    assert pair(target, four).max_context < with_draft.max_context


def test_a_pair_that_does_not_fit_has_no_context_and_negative_headroom(target):
    plan = pair(target, replace(H100, memory_bytes=8 * GIB))
    assert plan.fits is False
    assert plan.headroom_bytes < 0
    assert plan.max_context == 0


def test_the_context_is_limited_by_the_model(target):
    assert pair(target, replace(H100, memory_bytes=1000 * GIB)).max_context == 131_072


def test_without_memory_there_is_no_headroom(target):
    plan = pair(target, replace(H100, memory_bytes=None))
    assert (plan.headroom_bytes, plan.max_context, plan.fits) == (None, None, None)


@pytest.mark.parametrize(
    "change",
    [
        {"concurrency": 2},
        {"context": 8000},
        {"num_speculative_tokens": 64},
        {"temperature": 1.0},
        {"dtype": "float32"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_memory_rises_with_each_setting_of_the_plan(target, change):
    assert pair(target, replace(H100, **change)).peak.total > pair(target, H100).peak.total


def test_a_plan_without_files_of_a_draft_is_absent(target, tmp_path: Path):
    (tmp_path / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"], "n_embd": 8}')
    spec = ModelSpec(source=str(tmp_path), folder=tmp_path)
    assert plan_pair(target, DrafterSpec(name="d", method="draft_model", model=spec), H100) is None


@pytest.mark.parametrize(
    ("name", "gib", "gb_per_s"),
    [
        ("H100", 80, 3350),
        ("h100-sxm", 80, 3350),
        ("NVIDIA H100 PCIe", 80, 2000),
        ("NVIDIA H100 80GB HBM3", 80, 3350),
        ("NVIDIA GeForce RTX 4090", 24, 1008),
        ("NVIDIA A100-SXM4-80GB", 80, 2039),
        ("Tesla T4", 15, 320),
        ("rtx 4090", 24, 1008),
        ("A100", 80, 2039),
        ("a100-40gb", 40, 1555),
        ("MI300X", 192, 5300),
        ("B200", 180, 8000),
    ],
)
def test_gpus_are_found_under_every_spelling(name, gib, gb_per_s):
    gpu = find_gpu(name)
    assert (gpu.memory_bytes, gpu.bytes_per_s) == (gib * GIB, gb_per_s * 1e9)


def test_every_name_of_the_table_finds_its_own_gpu():
    assert [find_gpu(gpu.name) for gpu in GPUS] == list(GPUS)


def test_an_unknown_gpu_is_refused_with_the_known_ones_and_the_option():
    with pytest.raises(UsageError, match=r"RTX-5090.*--gpu-memory 24GiB"):
        find_gpu("Voodoo 2")


def test_sizes_and_bandwidths_are_parsed_with_units():
    assert parse_bytes("24GiB") == 24 * GIB
    assert parse_bytes("24 gb") == 24 * 10**9
    assert parse_bytes("80e9") == 80 * 10**9
    assert parse_bandwidth("1008GB/s") == 1.008e12
    assert parse_bandwidth("3.35 TB/s") == pytest.approx(3.35e12)
    for wrong in ("", "much", "-3GB", "0", "3 parsecs", "1e999"):
        with pytest.raises(UsageError, match="--gpu-memory"):
            parse_bytes(wrong)


def test_the_planned_kv_cache_is_rounded_up_to_64_slots():
    """On a CPU, rows grow in steps of 64 slots."""
    target = open_model(model_spec("demo:target"))
    plan = plan_target(target, DeploymentSpec(device="cpu", context=100))
    assert plan.peak.kv_cache == 128 * plan.target.kv_bytes_per_token


PLACE = DeploymentSpec(device="cuda", memory_bytes=80 * GIB, bytes_per_s=3.35e12, context=4000)


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


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        # Totals as nvidia-smi prints them. GDDR with error correction on, which is the default,
        # gives a sixteenth to it.
        ("Tesla T4", 15_360),
        ("NVIDIA A10G", 23_028),
        ("NVIDIA L4", 23_034),
        ("NVIDIA A40", 46_068),
        ("NVIDIA L40S", 46_068),
        ("NVIDIA A100-SXM4-80GB", 81_920),
        ("NVIDIA H100 80GB HBM3", 81_559),
        ("NVIDIA H200", 143_771),
    ],
)
def test_planned_gpu_memory_is_below_the_total(name, mib):
    left = find_gpu(name).memory_bytes - RESERVED_BYTES
    assert 0.94 * mib < left / 2**20 < mib


def test_the_server_edition_is_slower_than_the_workstations():
    assert find_gpu("NVIDIA RTX PRO 6000 Blackwell Workstation Edition").bytes_per_s == 1.792e12
    assert find_gpu("NVIDIA RTX PRO 6000 Blackwell Server Edition").bytes_per_s == 1.597e12
