"""The pairings that come with the package."""

import re

import pytest

from specbench.errors import UsageError
from specbench.inputs.config import load_pairings
from specbench.shipped import shipped

PAIRINGS = load_pairings(shipped("pairings.yaml"))

DEFAULT = ["demo/draft", "demo/poor", "demo/ngram"]
EMBEDDED = [
    *DEFAULT,
    "demo/draft-tree",
    "demo/self",
    "demo/eagle",
    "demo/eagle-tree",
    "demo/eagle3",
    "demo/eagle3-tree",
    "demo/medusa",
    "demo/medusa-tree",
    "demo/medusa-typical",
    "demo/suffix",
    "demo/previous-turn",
    "demo/previous-turn-whole",
    "demo/lookahead",
    "demo/token-recycling",
]
SHAPES = ["shape-8b/1b", "shape-70b/1b"]
NEVER_LEFT_OUT = [  # the pairings that the documents and their examples name
    "llama-3.1-8b/1b",
    "llama-3.1-8b/eagle3",
    "qwen3-8b/0.6b",
    "qwen3.6-27b/mtp",
    "gpt-oss-120b/eagle3",
]
PUBLISHED = [p for p in PAIRINGS.all if p.name not in {*EMBEDDED, *SHAPES}]


def test_the_bundled_pair_comes_first_and_is_the_default() -> None:
    assert {p.name for p in PAIRINGS.all[: len(EMBEDDED)]} == set(EMBEDDED)
    assert [p.name for p in PAIRINGS.select()] == DEFAULT


def test_the_bundled_pair_drafts_five_tokens_with_its_own_workloads() -> None:
    draft = PAIRINGS.select(["demo/draft"])[0]
    assert draft.drafter.num_speculative_tokens == 5
    assert draft.target.workloads is not None
    assert draft.target.workloads.parts[-3:] == ("specbench", "demo", "workloads")


def test_the_catalog_has_many_targets_and_every_kind_of_draft() -> None:
    names = {pairing.name for pairing in PAIRINGS.all}
    assert {*EMBEDDED, *SHAPES, *NEVER_LEFT_OUT} <= names
    assert len({pairing.target.model.source for pairing in PUBLISHED}) >= 40
    methods = {pairing.drafter.method for pairing in PUBLISHED}
    assert methods == {
        "draft_model",
        "eagle",
        "eagle3",
        "mtp",
        "gemma4_mtp",
        "dflash",
        "dflash2",
        "dspark",
        "mtp+ngram_mod",
    }


def test_catalog_entries_have_a_pinned_source_and_run_no_remote_code() -> None:
    for pairing in PUBLISHED:
        origin = pairing.drafter.origin
        assert origin is not None, pairing.name
        # If a page changes, the version that was read is the one that the address pins.
        is_pinned = re.search("/blob/[0-9a-f]{40}/|/issues/", origin.source) is not None
        assert is_pinned == ("github.com" in origin.source), pairing.name
        assert not any(model.trust_remote_code for model in pairing.models), pairing.name


@pytest.mark.parametrize("name", [*EMBEDDED, *SHAPES])
def test_every_shipped_pairing_states_its_weight_memory(name: str) -> None:
    (pairing,) = PAIRINGS.select([name])
    assert pairing.weights_gib is not None


def test_weights_gib_is_parameters_times_bytes() -> None:
    needs = {
        t.model.source: t.model.weights_gib for t in PAIRINGS.targets if not t.model.quantization
    }
    needs |= {d.model.source: d.model.weights_gib for p in PAIRINGS.all if (d := p.drafter).model}
    num_parameters = {
        "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
        "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
        "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
        "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
        "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
        "Qwen/Qwen3-30B-A3B": 30_532_122_624,
        "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
        "Qwen/Qwen3-0.6B": 596_049_920,
        "Qwen/Qwen3-8B": 8_190_735_360,
        "Qwen/Qwen3-32B": 32_762_123_264,
        "Qwen/Qwen3-235B-A22B": 235_093_634_560,
        "Qwen/Qwen3-Coder-480B-A35B-Instruct": 480_154_875_392,
        "Qwen/Qwen3-VL-235B-A22B-Instruct": 235_670_022_896,
        "Qwen/Qwen3.5-27B": 27_356_728_560,
        "Qwen/Qwen3.6-35B-A3B": 35_107_181_936,
        "Qwen/Qwen3.5-122B-A10B": 122_562_817_776,
        "Qwen/Qwen3.5-397B-A17B": 396_802_360_816,
        "google/gemma-4-26B-A4B-it": 25_805_933_872,
        "google/gemma-4-31B-it": 31_273_086_512,
        "mistralai/Mistral-7B-Instruct-v0.3": 7_248_023_552,
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": 120_668_687_360,
        "zai-org/GLM-5.2": 743_377_000_704,
    }
    for source, count in num_parameters.items():
        assert needs[source] == round(2 * count / 2**30, 1), source


def test_a_shape_needs_the_memory_of_the_model_it_is_named_after() -> None:
    needs = {t.name: t.model.weights_gib for t in PAIRINGS.targets}
    assert needs["shape-8b"] == needs["llama-3.1-8b"]
    assert needs["shape-70b"] == needs["llama-3.3-70b"]


def test_int4_keeps_embedding_and_lm_head_in_sixteen_bits() -> None:
    target = PAIRINGS.select(["llama-3.3-70b-int4"])[0].target
    wide = 2 * 128_256 * 8_192  # vocabulary x hidden size, embedding and lm_head
    packed = 70_553_706_496 - wide
    assert target.model.weights_gib == round((2 * wide + packed * 4.25 / 8) / 2**30, 1)


def test_a_method_that_no_named_pairing_has_is_refused_with_theirs() -> None:
    with pytest.raises(UsageError, match=r"eagle3.*demo/draft, demo/ngram.*draft_model, ngram"):
        PAIRINGS.select(["demo/draft", "demo/ngram"], ["eagle3"])


def test_a_gguf_file_that_is_named_as_a_pairing_and_is_missing_is_reported_as_missing() -> None:
    with pytest.raises(UsageError, match=r"file big\.gguf does not exist"):
        PAIRINGS.select(["big.gguf"])
