"""Contents of an export: K by batch size, the acceptance rule, and what it cannot express."""

import ast
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from specbench.engines.deployment import Deployment, Tier, find_exporter
from specbench.errors import UsageError
from specbench.files.model_spec import ModelSpec
from specbench.records import LossyRule
from specbench.settings import EXPORTED, TRANSFORMERS
from tests.export.deployments import (
    MODELS,
    SEVERAL,
    TARGET,
    config_of,
    deployment,
    exported,
    flag,
    with_draft,
)
from tests.export.recorded_parser import BETWEEN_TOKENIZERS, METHODS, SCHEMAS

HAVING_A_MODEL = [(e, method) for e in EXPORTED for method in METHODS[e] if method in MODELS]


def drafting(method, target):
    """A deployment of the method with the settings that any engine needs for it."""
    settings = {"num_layers": 2} if method == "self_speculation" else {}
    temperature = BETWEEN_TOKENIZERS.get(method, 0.0)
    return deployment(method, target=target, temperature=temperature, **settings)


def losses(made):
    return " | ".join(made.not_expressed)


def test_a_chain_that_ends_early_is_exported_to_engines_that_have_it():
    made = deployment("draft_model")
    drafter = made.pairing.drafter.at_p_min(0.6)
    stopping = replace(made, pairing=replace(made.pairing, drafter=drafter))
    assert flag(exported("llama_cpp", stopping), "--spec-draft-p-min") == "0.6"
    assert flag(exported("llama_cpp", stopping, "2026-04"), "--draft-p-min") == "0.6"
    program = exported("transformers", stopping).config.text
    assert "assistant_confidence_threshold=0.6" in program
    for engine in ("vllm", "sglang", "tensorrt_llm"):
        with pytest.raises(UsageError, match=rf"{engine} has no p_min.*llama_cpp"):
            exported(engine, stopping)
        assert exported(engine, replace(stopping, tiers=(Tier(None, 0),)))


def test_vllm_takes_k_per_batch_size_without_gaps():
    made = exported("vllm", deployment("eagle3", tiers=SEVERAL, tree="chain"))
    assert config_of(made) == {
        "method": "eagle3",
        "num_speculative_tokens": 5,
        "model": "org/Big-EAGLE3",
        "num_speculative_tokens_per_batch_size": [[1, 1, 5], [2, 4, 3], [5, 16, 0]],
    }
    assert re.search("more than 16 concurrent requests", losses(made))


def test_lookup_lengths_are_exported():
    made = exported("vllm", deployment("ngram", max_ngram=5, min_ngram=2))
    assert config_of(made)["prompt_lookup_max"] == 5
    assert config_of(made)["prompt_lookup_min"] == 2
    settings = {"max_spec_factor": 2.5, "min_token_prob": 0.2, "max_cached_requests": 7}
    suffix = config_of(exported("vllm", deployment("suffix", 16, max_depth=32, **settings)))
    assert suffix["suffix_decoding_max_tree_depth"] == 32
    assert settings == {name: suffix[f"suffix_decoding_{name}"] for name in settings}
    old = exported("llama_cpp", deployment("ngram", max_ngram=5), "2026-01")
    assert (flag(old, "--spec-ngram-size-n"), flag(old, "--spec-ngram-size-m")) == ("5", "4")
    new = exported("llama_cpp", deployment("ngram", max_ngram=5))
    assert flag(new, "--spec-ngram-simple-size-n") == "5"
    lookup = speculative(exported("tensorrt_llm", deployment("ngram", max_ngram=5)))
    assert (lookup["max_matching_ngram_size"], lookup["is_use_oldest"]) == (5, False)


@pytest.mark.parametrize(
    ("engine", "flag"),
    [("vllm", "--trust-remote-code"), ("tensorrt_llm", "--trust_remote_code")],
)
def test_an_engine_may_run_a_models_code_only_if_the_pairing_allows_it(engine, flag):
    target = replace(TARGET, model=replace(TARGET.model, trust_remote_code=True))
    assert flag in exported(engine, deployment("ngram", target=target)).command
    assert flag not in exported(engine, deployment("ngram")).command


def test_transformers_loads_a_model_as_the_pairing_says():
    model = replace(TARGET.model, trust_remote_code=True, device_map="auto")
    target = replace(TARGET, model=model)
    program = exported("transformers", deployment("draft_model", target=target)).config.text
    (target_line,) = [line for line in program.splitlines() if line.startswith("target = ")]
    assert "device_map='auto'" in target_line
    assert "trust_remote_code=True" in target_line
    assert ".to(device)" not in target_line
    (draft_line,) = [line for line in program.splitlines() if "org/Small-1B" in line]
    assert "trust_remote_code" not in draft_line
    assert ".to(device)" in draft_line


def test_transformers_needs_the_number_of_layers_that_draft():
    with pytest.raises(UsageError, match=r"num_layers.*parameters:"):
        exported("transformers", deployment("self_speculation", num_layers=0))


def test_a_lookup_length_that_tensorrt_llm_does_not_have_is_named():
    assert "min_ngram 2" in losses(exported("tensorrt_llm", deployment("ngram", min_ngram=2)))
    assert "min_ngram" not in losses(exported("tensorrt_llm", deployment("ngram", min_ngram=1)))


def test_sglang_counts_the_root_of_a_tree():
    tree = exported("sglang", deployment("eagle3", 5, top_k=8, max_drafts=31))
    assert flag(tree, "--speculative-eagle-topk") == "8"
    assert flag(tree, "--speculative-num-draft-tokens") == "32"
    chain = exported("sglang", deployment("eagle3", 5, tree="chain"))
    assert flag(chain, "--speculative-num-steps") == "5"
    assert flag(chain, "--speculative-num-draft-tokens") == "6"
    # One level of a beam of 2 has no more than 2 drafts.
    small = exported("sglang", deployment("eagle3", 1, top_k=2, max_drafts=59))
    assert flag(small, "--speculative-num-draft-tokens") == "3"
    # Two levels of a beam of 3: 3 + 9 = 12 drafts and the root.
    two = exported("sglang", deployment("eagle3", 2, top_k=3, max_drafts=59))
    assert flag(two, "--speculative-num-draft-tokens") == "13"


def test_sglang_has_k_by_batch_size_since_0_5_12():
    tiered = deployment("eagle3", tiers=SEVERAL, tree="chain")
    for version in (None, "0.5.12"):
        assert flag(exported("sglang", tiered, version), "--speculative-adaptive-config")
    older = exported("sglang", tiered, "0.5.11")
    assert older.config is None
    assert "--speculative-adaptive" not in older.command
    assert flag(older, "--speculative-num-steps") == "5"
    assert "K by batch size" in losses(older)


def speculative(made):
    return yaml.safe_load(made.config.text)["speculative_config"]


def test_the_tensorrt_llm_draft_schedule_depends_on_the_version():
    tiered = deployment("draft_model", tiers=SEVERAL)
    made = exported("tensorrt_llm", tiered)  # 1.2: the smallest batch of each K
    assert speculative(made)["draft_len_schedule"] == {1: 5, 2: 3, 5: 0}
    assert speculative(made)["max_draft_len"] == 5
    assert yaml.safe_load(made.config.text)["disable_overlap_scheduler"] is True
    newer = exported("tensorrt_llm", tiered, "1.3")  # the largest batch of each K
    assert speculative(newer)["draft_len_schedule"] == {1: 5, 4: 3, 16: 0}
    # Its first tier has to be the deepest; another order is served with one K.
    rising = exported("tensorrt_llm", deployment("draft_model", tiers=(Tier(1, 2), Tier(8, 4))))
    assert "draft_len_schedule" not in rising.config.text
    assert speculative(rising)["max_draft_len"] == 2
    for version, k in (("1.2", 3), ("1.3", 0)):
        message = losses(exported("tensorrt_llm", replace(tiered, tiers=SEVERAL[:2]), version))
        assert re.search(f"above 4 concurrent requests.*TensorRT-LLM keeps K={k}", message)


def test_tensorrt_llm_grows_trees_from_1_3_on():
    tree = deployment("eagle3", 5, top_k=8, max_drafts=31)
    grown = speculative(exported("tensorrt_llm", tree, "1.3"))
    assert (grown["max_total_draft_tokens"], grown["dynamic_tree_max_topK"]) == (31, 8)
    older = exported("tensorrt_llm", tree, "1.2")
    assert "use_dynamic_tree" not in speculative(older)
    assert "chain of depth K=5" in losses(older)


@pytest.mark.parametrize(("engine", "method"), HAVING_A_MODEL)
def test_names_from_pairings_yaml_reach_the_engine_through_a_shell_unharmed(engine, method):
    name = "./odd name; rm -rf $HOME `id` 'x'"
    made = drafting(method, replace(TARGET, model=ModelSpec(source=name)))
    made = with_draft(made, source='./it\'s "quoted"', revision="a b")
    out = exported(engine, made)
    assert tuple(shlex.split(out.command_line)) == out.command
    text = " ".join(out.command) + (out.config.text if out.config else "").replace("\\", "")
    assert "odd name; rm -rf $HOME `id` 'x'" in text


def test_model_names_are_escaped_in_the_program_for_transformers():
    name = './it\'s "odd" \\ \U0001f600'
    made = exported(
        "transformers",
        deployment("ngram", target=replace(TARGET, model=ModelSpec(source=name))),
    )
    texts = [n.value for n in ast.walk(ast.parse(made.config.text)) if isinstance(n, ast.Constant)]
    assert texts.count(name) == 2  # the tokenizer and the target


@pytest.mark.parametrize("engine", EXPORTED)
def test_a_shape_cannot_be_served(engine):
    shape = replace(TARGET, model=ModelSpec(source="shape:llama-8b"))
    with pytest.raises(UsageError, match="no weights"):
        exported(engine, drafting(METHODS[engine][0], shape))


@pytest.mark.parametrize("engine", EXPORTED)
def test_weights_packed_on_loading_are_reported_as_lost(engine):
    packed = replace(TARGET, model=ModelSpec(source="org/Big-8B", quantization="int4"))
    for method in METHODS[engine]:
        assert "int4 weights" in losses(exported(engine, drafting(method, packed)))


@pytest.mark.parametrize(("engine", "method"), HAVING_A_MODEL)
def test_revisions_reach_the_engine_or_are_reported_as_lost(engine, method):
    pinned = replace(TARGET, model=ModelSpec(source="org/Big-8B", revision="abc1"))
    made = with_draft(drafting(method, pinned), revision="def2")
    out = exported(engine, made)
    text = out.command_line + (out.config.text if out.config else "")
    for revision in ("abc1", "def2"):
        assert revision in text or f"revision {revision}" in losses(out)
    if engine == "llama_cpp":  # what is not drafted has no revision
        assert "def2" not in losses(exported(engine, replace(made, tiers=(Tier(None, 0),))))


def test_a_dtype_that_no_server_knows_is_omitted_with_a_warning():
    for engine in ("vllm", "sglang", "tensorrt_llm"):
        made = exported(engine, deployment("ngram", dtype="float64"))
        assert "float64" not in made.command_line + (made.config.text if made.config else "")
        assert "float64" in losses(made)
    assert (
        "--dtype bfloat16" in exported("vllm", deployment("ngram", dtype="bfloat16")).command_line
    )
    local = exported("transformers", deployment("ngram", dtype="float64"))
    assert "float64" in local.config.text


@pytest.mark.parametrize(
    ("engine", "version", "complaint"),
    [
        ("vllm", "0.13", "before 0.30 had other flags"),
        ("vllm", "newest", "expected a release such as 0.33"),
        ("sglang", "0.4.9", "before 0.5"),
        ("tensorrt_llm", "0.21", "before 1.2"),
        ("llama_cpp", "b9100", "give the build's date"),
        ("llama_cpp", "2026-13", "expected a date"),
        ("llama_cpp", "", "expected a date"),
        ("transformers", "4.57", "before 5.17"),
    ],
)
def test_versions_that_are_not_known_are_refused(engine, version, complaint):
    with pytest.raises(UsageError, match=complaint):
        exported(engine, deployment("draft_model"), version)


def test_llama_cpp_build_9235_gets_the_new_flags():
    made = exported("llama_cpp", deployment("draft_model"), "b9235")
    assert "--spec-draft-n-max" in made.command


def test_a_method_that_came_later_is_refused_for_an_earlier_build():
    with pytest.raises(UsageError, match=r"llama\.cpp.*eagle3.*draft_model"):
        exported("llama_cpp", deployment("eagle3"), "2026-01")


def test_a_newer_release_is_exported_as_the_newest_known_with_a_note():
    made = exported("vllm", deployment("draft_model"), "0.34.1")
    (note,) = made.not_expressed
    assert re.match(r"0\.34\.1 .*0\.33, ", note)
    assert exported("vllm", deployment("draft_model"), "0.33.2").not_expressed == ()


def test_engines_are_found_by_their_files():
    recorded = {schema["engine"] for schema in SCHEMAS.values()}
    assert [*EXPORTED] == sorted(recorded | {TRANSFORMERS})
    assert all(find_exporter(engine).__name__.endswith(f".{engine}") for engine in EXPORTED)


def with_rule(made, name, **parameters):
    drafter = replace(made.pairing.drafter, lossy=LossyRule(name=name, parameters=parameters))
    return replace(made, pairing=replace(made.pairing, drafter=drafter))


def test_sglang_has_the_threshold_rule_above_temperature_0():
    made = with_rule(deployment("draft_model", temperature=0.7), "threshold", single=0.5)
    out = exported("sglang", made)
    assert flag(out, "--speculative-accept-threshold-single") == "0.5"
    assert flag(out, "--speculative-accept-threshold-acc") == "1.0"
    assert "--speculative-use-rejection-sampling" not in out.command  # it has no threshold
    assert out.not_expressed == ()
    cold = exported("sglang", replace(made, temperature=0.0))
    assert "lossy rule threshold" in losses(cold)
    other = exported("sglang", with_rule(made, "typical", threshold=0.09, alpha=0.3))
    assert flag(other, "--speculative-accept-threshold-single") == "1.0"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_lossy_rule_is_named_and_reported_as_lost(temperature):
    made = deployment("eagle3", temperature=temperature)
    made = with_rule(made, "typical", threshold=0.09, alpha=0.3)
    for engine in ("vllm", "sglang", "tensorrt_llm", "llama_cpp"):
        out = exported(engine, made)
        assert "lossy rule typical" in out.acceptance_rule
        assert any("lossy rule typical" in text for text in out.not_expressed)


CONFIG = {"model_type": "qwen3_5_text", "layer_types": ["linear_attention", "full_attention"]}


def served(folder: Path, k: int = 3, **config: object) -> Deployment:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    target = replace(TARGET, model=ModelSpec(source="org/Hybrid", folder=folder))
    return deployment("ngram", k, target=target)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("vllm", "issues 39273"),
        ("llama_cpp", "pull request 19493"),
        ("sglang", "no source that was read says"),
        ("tensorrt_llm", "no source that was read says"),
    ],
)
def test_each_export_notes_how_recurrent_state_is_rolled_back(
    engine: str, message: str, tmp_path: Path
) -> None:
    text = "\n".join(exported(engine, served(tmp_path)).not_expressed)
    assert "org/Hybrid has recurrent layers" in text
    assert message in text
    assert "recurrent" not in "".join(exported(engine, served(tmp_path, k=0)).not_expressed)
    kinds = ["full_attention", "full_attention"]
    dense = exported(engine, served(tmp_path, layer_types=kinds))
    assert "recurrent" not in "".join(dense.not_expressed)


def test_the_transformers_export_refuses_targets_with_recurrent_state(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"org/Hybrid.*-k 0"):
        exported("transformers", served(tmp_path))
    exported("transformers", served(tmp_path, k=0))
    convolutions = served(tmp_path, model_type="lfm2", layer_types=["conv", "full_attention"])
    assert "recurrent layers" in "".join(exported("transformers", convolutions).not_expressed)


def test_a_missing_target_gets_no_notes() -> None:
    assert "recurrent" not in "".join(exported("vllm", deployment("ngram", 3)).not_expressed)
