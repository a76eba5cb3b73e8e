"""The pairings that come with the package."""

import pytest

from specbench.inputs.config import Pairing, load_pairings
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
REAL = [
    "llama-3.3-70b/1b",
    "llama-3.3-70b/3b",
    "llama-3.3-70b/8b",
    "llama-3.3-70b/eagle3",
    "llama-3.3-70b-int4/1b",
    "llama-3.3-70b-int4/3b",
    "llama-3.3-70b-int4/8b",
    "llama-3.1-70b/1b",
    "qwen2.5-72b/0.5b",
    "qwen2.5-72b/1.5b",
    "qwen2.5-7b/0.5b",
    "qwen2.5-14b/0.5b",
    "qwen2.5-14b-int8/0.5b",
    "llama-3.1-8b/1b",
    "llama-3.1-8b/eagle3",
    "qwen3-8b/0.6b",
    "qwen3-8b/1.7b",
    "qwen3-32b/0.6b",
    "qwen3-32b/1.7b",
    "mistral-large-2/7b",
    "gemma-7b/2b",
    "gemma-2-27b/2b",
    "qwen3-30b-a3b/0.6b",
    "llama-3-8b/1b",
    "gpt-oss-20b/eagle3",
    "gpt-oss-120b/eagle3",
]


def test_the_embedded_pair_comes_first_and_is_the_default() -> None:
    assert {p.name for p in PAIRINGS.all[: len(EMBEDDED)]} == set(EMBEDDED)
    assert [p.name for p in PAIRINGS.select()] == DEFAULT


def test_the_embedded_pair_drafts_five_tokens_and_has_its_own_workloads() -> None:
    draft = PAIRINGS.select(["demo/draft"])[0]
    assert draft.drafter.num_speculative_tokens == 5
    assert draft.target.workloads is not None
    assert draft.target.workloads.parts[-3:] == ("specbench", "demo", "workloads")


def test_every_pairing_that_people_ask_for_is_there() -> None:
    assert {p.name for p in PAIRINGS.all} == {*EMBEDDED, *REAL, *SHAPES}


@pytest.mark.parametrize("pairing", PAIRINGS.all, ids=lambda pairing: pairing.name)
def test_every_pairing_says_what_memory_it_needs_and_runs_no_foreign_code(pairing: Pairing) -> None:
    assert pairing.needs_gib is not None
    models = [m for m in (pairing.target.model, pairing.drafter.model) if m]
    assert not any(model.trust_remote_code for model in models)


def test_needs_gib_is_parameters_times_bytes() -> None:
    needs = {
        t.model.source: t.model.needs_gib for t in PAIRINGS.targets if not t.model.quantization
    }
    needs |= {d.model.source: d.model.needs_gib for p in PAIRINGS.all if (d := p.drafter).model}
    num_parameters = {
        "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
        "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
        "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
        "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
        "Qwen/Qwen2.5-72B-Instruct": 72_706_203_648,
        "Qwen/Qwen2.5-14B-Instruct": 14_770_033_664,
        "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
        "Qwen/Qwen3-30B-A3B": 30_532_122_624,
        "mistralai/Mistral-Large-Instruct-2407": 122_610_069_504,
        "google/gemma-2-27b-it": 27_227_128_320,
    }
    for source, count in num_parameters.items():
        assert needs[source] == round(2 * count / 2**30, 1), source


def test_a_shape_needs_what_the_model_needs_that_it_is_named_after() -> None:
    needs = {p.target.name: p.needs_gib for p in PAIRINGS.all if p.drafter.name == "1b"}
    assert needs["shape-8b"] == needs["llama-3.1-8b"]
    assert needs["shape-70b"] == needs["llama-3.3-70b"]


def test_int4_keeps_embedding_and_lm_head_in_sixteen_bits() -> None:
    target = PAIRINGS.select(["llama-3.3-70b-int4"])[0].target
    wide = 2 * 128_256 * 8_192  # vocabulary x hidden size, embedding and lm_head
    packed = 70_553_706_496 - wide
    assert target.model.needs_gib == round((2 * wide + packed * 4.25 / 8) / 2**30, 1)
