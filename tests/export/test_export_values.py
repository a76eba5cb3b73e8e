"""Numbers and names of an export, one by one: what a parser takes need not be what is meant."""

import re
from dataclasses import replace

import pytest
import yaml

from specbench.errors import UsageError
from specbench.records.lossy import GREEDY, MATCHED, REJECTION
from tests.export.deployments import (
    SEVERAL,
    TARGET,
    config_of,
    deployment,
    exported,
    flag,
    with_draft,
)


@pytest.mark.parametrize(
    ("method", "settings", "rule"),
    [
        ("draft_model", {}, REJECTION),
        ("self_speculation", {"num_layers": 2}, REJECTION),
        ("mtp", {}, REJECTION),
        ("dflash", {}, REJECTION),
        ("eagle", {"tree": "chain"}, REJECTION),
        ("eagle", {"tree": "dynamic"}, MATCHED),
        ("medusa", {}, MATCHED),
        ("token_intersection", {}, REJECTION),
        ("string_match", {}, MATCHED),
        ("ngram", {}, MATCHED),
        ("suffix", {}, MATCHED),
    ],
)
def test_the_rule_above_temperature_0_is_the_one_that_the_drafter_was_measured_with(
    method, settings, rule
):
    assert deployment(method, temperature=0.7, **settings).acceptance_rule == rule
    assert deployment(method, **settings).acceptance_rule == GREEDY


def test_vllm_gets_revisions_and_leave_to_run_code_and_only_models_are_sampled():
    target = replace(TARGET, model=replace(TARGET.model, revision="abc", trust_remote_code=True))
    made = with_draft(deployment("draft_model", target=target), revision="def")
    out = exported("vllm", made)
    assert flag(out, "--revision") == "abc"
    assert "--trust-remote-code" in out.command
    assert config_of(out)["revision"] == "def"
    assert "draft_sample_method" not in config_of(
        exported("vllm", deployment("ngram", temperature=1))
    )


def test_every_setting_of_suffix_decoding_goes_to_vllm():
    made = deployment("suffix", max_spec_factor=2.5, min_token_prob=0.2, max_cached_requests=7)
    found = config_of(exported("vllm", made))
    assert found["suffix_decoding_max_spec_factor"] == 2.5
    assert found["suffix_decoding_min_token_prob"] == 0.2
    assert found["suffix_decoding_max_cached_requests"] == 7


def test_sglang_counts_the_current_token_among_the_drafts():
    assert (
        flag(exported("sglang", deployment("dflash", 5)), "--speculative-dflash-block-size") == "6"
    )
    assert flag(exported("sglang", deployment("ngram", 5)), "--speculative-num-draft-tokens") == "6"


def test_sglang_gets_the_lossless_rule_above_temperature_0():
    drawn = exported("sglang", deployment("draft_model", temperature=0.7))
    assert flag(drawn, "--speculative-accept-threshold-single") == "1.0"
    assert flag(drawn, "--speculative-accept-threshold-acc") == "1.0"
    assert "--speculative-use-rejection-sampling" in drawn.command
    matched = exported("sglang", deployment("eagle3", temperature=0.7))
    assert "--speculative-use-rejection-sampling" not in matched.command
    greedy = exported("sglang", deployment("draft_model"))
    assert not any("accept" in word or "rejection" in word for word in greedy.command)


def test_sglang_grows_no_more_than_a_beam_has():
    # Two levels of a beam of 3: 3 + 9 = 12 drafts and the root.
    made = exported("sglang", deployment("eagle3", 2, top_k=3, max_drafts=59))
    assert flag(made, "--speculative-num-draft-tokens") == "13"


def test_llama_cpp_drafts_k_in_every_round_in_both_dialects():
    old = exported("llama_cpp", deployment("draft_model", 3), "2026-01")
    assert (flag(old, "--draft-max"), flag(old, "--draft-min")) == ("3", "0")
    assert flag(old, "--draft-p-min") == "0"
    new = exported("llama_cpp", deployment("draft_model", 3))
    assert (flag(new, "--spec-draft-n-max"), flag(new, "--spec-draft-n-min")) == ("3", "0")
    found = exported("llama_cpp", deployment("ngram", 3, max_ngram=5))
    assert flag(found, "--spec-ngram-simple-size-n") == "5"
    assert flag(found, "--spec-ngram-simple-size-m") == "3"


def test_the_first_build_that_is_known_to_be_new_is_new():
    made = exported("llama_cpp", deployment("draft_model"), "b9235")
    assert "--spec-draft-n-max" in made.command


def test_the_llama_cpp_export_notes_missing_rejection_sampling():
    drawn = exported("llama_cpp", deployment("draft_model", temperature=0.7))
    assert any("rejection sampling" in said for said in drawn.not_expressed)
    greedy = exported("llama_cpp", deployment("draft_model"))
    assert not any("rejection sampling" in said for said in greedy.not_expressed)


@pytest.mark.parametrize("engine", ["vllm", "llama_cpp", "transformers"])
def test_the_tree_of_a_draft_model_is_reported_as_lost(engine):
    made = exported(engine, deployment("draft_model", tree="4,2"))
    assert any("tree" in said for said in made.not_expressed)


def speculative(made):
    return yaml.safe_load(made.config.text)["speculative_config"]


def test_tensorrt_llm_takes_the_tree_and_the_lookup_as_they_were_measured():
    tree = exported("tensorrt_llm", deployment("eagle3", 5, top_k=8, max_drafts=31), "1.3")
    assert speculative(tree)["dynamic_tree_max_topK"] == 8
    lookup = speculative(exported("tensorrt_llm", deployment("ngram", max_ngram=5)))
    assert (lookup["max_matching_ngram_size"], lookup["is_use_oldest"]) == (5, False)


def test_the_tensorrt_llm_export_notes_k_beyond_the_last_tier():
    rising = deployment("draft_model", tiers=SEVERAL[:2])
    for version, k in (("1.2", 3), ("1.3", 0)):
        said = " ".join(exported("tensorrt_llm", rising, version).not_expressed)
        assert re.search(f"above 4 concurrent requests.*TensorRT-LLM keeps K={k}", said)


def test_the_sglang_export_notes_batch_padding_if_k_has_tiers():
    tiered = exported("sglang", deployment("eagle3", tree="chain", tiers=SEVERAL))
    flat = exported("sglang", deployment("eagle3", tree="chain"))
    assert ["padded to" in " ".join(made.not_expressed) for made in (tiered, flat)] == [True, False]


def test_transformers_drafts_k_in_every_round_from_the_whole_distribution():
    made = exported("transformers", deployment("draft_model", 3, temperature=0.7)).config.text
    for said in (
        "num_assistant_tokens=3",
        "num_assistant_tokens_schedule='constant'",
        "assistant_confidence_threshold=0.0",
        "top_k=0, top_p=1.0",
    ):
        assert said in made
    early = exported("transformers", deployment("self_speculation", 3, num_layers=2)).config.text
    assert "assistant_early_exit=2" in early


def test_a_draft_of_another_vocabulary_drafts_greedily_in_vllm():
    made = exported("vllm", deployment("token_intersection", 3, temperature=0.7))
    assert config_of(made) == {
        "method": "draft_model",
        "num_speculative_tokens": 3,
        "use_heterogeneous_vocab": True,
        "model": "org/Other-1B",
        "draft_sample_method": "greedy",
    }
    assert any("drawn" in lost for lost in made.not_expressed)


@pytest.mark.parametrize(
    ("method", "temperature"), [("string_match", 0.0), ("token_intersection", 0.7)]
)
def test_the_transformers_export_passes_both_tokenizers_if_they_differ(method, temperature):
    text = exported("transformers", deployment(method, temperature=temperature)).config.text
    assert "assistant_tokenizer = AutoTokenizer.from_pretrained('org/Other-1B')" in text
    assert "tokenizer=tokenizer, assistant_tokenizer=assistant_tokenizer)" in text
    with pytest.raises(UsageError, match="string_match at temperature 0 and token_intersection"):
        exported("transformers", deployment(method, temperature=0.7 - temperature))


def test_llama_cpp_translated_drafts_until_may_2026():
    made = exported("llama_cpp", deployment("string_match", 3), "2026-04")
    assert flag(made, "--model-draft") == "Other-1B.gguf"
    with pytest.raises(UsageError, match="translates drafts"):
        exported("llama_cpp", deployment("string_match", 3))
