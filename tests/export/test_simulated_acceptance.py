"""Acceptance that an engine simulates: its own flags and variables, or an error."""

import json

import pytest

from specbench.engines.deployment import Deployment, find_exporter
from specbench.errors import UsageError
from specbench.records import SIMULATED
from specbench.settings import EXPORTED
from tests.cli.calls import specbench
from tests.export.deployments import deployment
from tests.export.recorded_parser import SERVERS, parse
from tests.importers.test_acceptance_files import PROFILE

RATES = (0.8, 0.56, 0.336)


def simulated(method="eagle3", k=3, acceptance=RATES, **settings) -> Deployment:
    made = deployment(method, k, **settings)
    return Deployment(pairing=made.pairing, tiers=made.tiers, acceptance=acceptance)


def export(engine, made, version=None):
    return find_exporter(engine).export(made, version, "config")


def test_vllm_takes_joint_rates_by_position():
    made = export("vllm", simulated(tree="chain"))
    config = parse(made)["--speculative-config"]
    assert config["rejection_sample_method"] == "synthetic"
    assert config["synthetic_acceptance_rates"] == list(RATES)
    assert made.acceptance_rule == SIMULATED
    by_k = export("vllm", simulated(acceptance={3: (1.0, 0.3, 0.0)}, tree="chain"))
    assert parse(by_k)["--speculative-config"]["synthetic_acceptance_rates"] == [1.0, 0.3, 0.0]
    alpha = export("vllm", simulated(k=2, acceptance=(0.5,), tree="chain"))
    assert parse(alpha)["--speculative-config"]["synthetic_acceptance_rates"] == [0.5, 0.25]


def test_sglang_takes_the_mean_length_with_the_bonus_token_in_variables():
    made = export("sglang", simulated(tree="chain"))
    assert made.environment == {
        "SGLANG_SIMULATE_ACC_LEN": "2.696",
        "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
        "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
    }
    assert made.command_line.startswith("SGLANG_SIMULATE_ACC_LEN=2.696 SGLANG_")
    assert any("only the mean length" in lost for lost in made.not_expressed)
    with pytest.raises(UsageError, match="SGLang simulates chains"):
        export("sglang", simulated(tree="dynamic"))


def test_tensorrt_llm_takes_accepted_draft_tokens_without_the_bonus_token():
    variable = "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"
    assert export("tensorrt_llm", simulated(), "1.3").environment == {variable: "1.696"}
    whole = simulated(acceptance={3: (1.0, 1.0, 0.0)})
    assert export("tensorrt_llm", whole, "1.2").environment == {variable: "2"}
    for made, version in (
        (simulated(), "1.2"),  # an int there: a fraction would turn it off
        (simulated("draft_model"), "1.3"),  # two models
        (simulated(acceptance={3: (0.0, 0.0, 0.0)}), "1.3"),  # 0 is off
    ):
        with pytest.raises(UsageError, match=r"TensorRT-LLM .* cannot simulate"):
            export("tensorrt_llm", made, version)


def test_synthetic_rates_are_exported_to_llama_cpp_from_2026_09():
    for version in (None, "2026-09", "b10919"):
        flags = parse(export("llama_cpp", simulated("draft_model"), version))
        assert flags["--spec-synth-rates"] == "0.8,0.56,0.336"
    for version in ("2026-08", "b10000"):
        with pytest.raises(UsageError, match=r"--simulate-acceptance: .*llama\.cpp cannot"):
            export("llama_cpp", simulated("draft_model"), version)


def test_simulated_acceptance_is_refused_for_transformers():
    with pytest.raises(UsageError, match=r"transformers verifies .*vllm, sglang"):
        export("transformers", simulated("draft_model"))


@pytest.mark.parametrize("engine", EXPORTED)
def test_acceptance_is_simulated_only_on_request_and_above_k_0(engine):
    plain = deployment("draft_model", 3)
    without = simulated("draft_model", 0)
    for made in (export(engine, plain), export(engine, without)):
        assert made.environment == {}
        assert "synth" not in made.command_line
        assert made.acceptance_rule != SIMULATED


def test_ik_llama_cpp_cannot_simulate_acceptance():
    with pytest.raises(UsageError, match=r"ik_llama\.cpp cannot simulate"):
        export("ik_llama_cpp", simulated("draft_model"))


@pytest.mark.parametrize("engine", [name for name in SERVERS if name != "ik_llama_cpp"])
def test_the_command_line_replays_a_file(engine, tiny_pairings):
    version = {"tensorrt_llm": ("--engine-version", "1.3")}.get(engine, ())
    ran = specbench(
        *("export", "org/head", "--engine", engine, *version, "-k", "3", "--json"),
        *("--simulate-acceptance", PROFILE),
        cwd=tiny_pairings,
    )
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(ran.out)
    assert document["acceptance_rule"] == SIMULATED
    values = f"{document['environment']} {document['command_line']}"
    assert any(value in values for value in ("0.56", "2.696", "1.696"))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("-k", "2", "--simulate-acceptance", PROFILE), "the file has K=3, not 2"),
        (("-k", "3", "--simulate-acceptance", "absent.json"), "absent.json: cannot be read"),
        (("-k", "3", "--simulate-acceptance", "two.yaml"), "name one, such as two.yaml#thinking"),
        (("-k", "3", "--simulate-acceptance", "0.5,0.9"), "must not rise"),
    ],
)
def test_acceptance_that_does_not_fit_is_refused(tiny_pairings, options, complaint):
    ran = specbench("export org/head --engine vllm", *options, cwd=tiny_pairings)
    assert (ran.code, ran.out) == (2, "")
    assert complaint in ran.err


@pytest.fixture
def tiny_pairings(tmp_path):
    (tmp_path / "pairings.yaml").write_text(
        "targets:\n  org:\n    model: org/Big\n    drafters:\n"
        "      head: {method: eagle3, model: org/Head, parameters: {tree: chain}}\n"
    )
    (tmp_path / "two.yaml").write_text("m: {thinking_on: {3: 2.0}, thinking_off: {3: 1.5}}\n")
    return tmp_path
