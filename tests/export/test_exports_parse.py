"""Every export is accepted by the engine's recorded parser."""

import ast
import re
from dataclasses import replace

import pytest
from transformers import GenerationConfig

from specbench.engines.deployment import Deployment, Tier
from specbench.errors import UsageError
from specbench.inputs.config import load_pairings
from specbench.methods import METHODS as ALL_METHODS
from specbench.shipped import shipped
from tests.export.deployments import ONE, SEVERAL, deployment, exported
from tests.export.recorded_parser import (
    BETWEEN_TOKENIZERS,
    METHODS,
    SAME_TOKENIZER,
    SCHEMAS,
    SERVERS,
    parse,
)


def every_setting(method: str) -> list[Deployment]:
    settings = {"num_layers": 2} if method == "self_speculation" else {}
    return [
        deployment(method, tiers=tiers, temperature=t, dtype="bfloat16", **settings)
        for tiers in (ONE, SEVERAL, (Tier(None, 0),))
        for t in (0.0, 0.7)
    ]


@pytest.mark.parametrize("method", ALL_METHODS)
@pytest.mark.parametrize("engine", SERVERS)
def test_servers_take_every_method_that_they_have(engine, method):
    for made in every_setting(method):
        if made.k and method not in METHODS[engine]:
            with pytest.raises(UsageError, match=f"{engine}.*{re.escape(method)}.*nearest: "):
                exported(engine, made)
        else:
            parse(exported(engine, made))


@pytest.mark.parametrize("engine", SERVERS)
def test_every_shipped_pairing_is_exported_or_refused_with_an_alternative(engine):
    pairings = load_pairings(shipped("pairings.yaml")).all
    methods_taken = set()
    for pairing in pairings:
        made = Deployment(pairing=pairing, tiers=ONE, temperature=1.0)
        if pairing.target.model.is_shape:
            complaint = "no weights"
        elif pairing.drafter.method not in METHODS[engine]:
            complaint = "nearest: "
        elif made.unequal_vocab_sizes and SCHEMAS[engine].get("refuses_other_vocab_sizes"):
            complaint = "vocab_size 152,064"
        else:
            parse(exported(engine, made))
            methods_taken.add(pairing.drafter.method)
            continue
        with pytest.raises(UsageError, match=complaint):
            exported(engine, made)
    shipped_methods = {p.drafter.method for p in pairings if not p.target.model.is_shape}
    assert methods_taken == shipped_methods & {*METHODS[engine]}
    assert methods_taken


@pytest.mark.parametrize("engine", SERVERS)
def test_k_0_is_exported_as_the_plain_command(engine):
    made = exported(engine, deployment("draft_model", 0))
    assert made.acceptance_rule is None
    assert "spec" not in made.command_line
    assert "Small" not in made.command_line
    parse(made)


def test_medusa_is_exported_only_to_vllm_releases_that_have_it():
    made = exported("vllm", deployment("medusa"), "0.32.0")
    assert '"method": "medusa"' in made.command_line
    with pytest.raises(UsageError, match=r"medusa.*vLLM"):
        exported("vllm", deployment("medusa"), "0.33")


@pytest.mark.parametrize("method", ["draft_model", "ngram"])
def test_llama_cpp_before_may_2026_gets_its_own_flags(method):
    old = "llama_cpp_before_2026_05_16"
    for version in ("2026-05-15", "2026-04", "b8000"):
        parse(exported("llama_cpp", deployment(method), version), old)
    for version in (None, "2026-05-16", "2026-11", "b9300"):
        parse(exported("llama_cpp", deployment(method), version))
    with pytest.raises(ValueError, match=r"is unknown|is not one of"):
        parse(exported("llama_cpp", deployment(method)), old)


FIRST_BUILDS = {
    "gemma4_mtp": ("2026-06-08", "b9568"),
    "dspark": ("2026-07-28", "b10236"),
    "dflash2": ("2026-08-27", "b10760"),
}


@pytest.mark.parametrize("method", FIRST_BUILDS)
def test_llama_cpp_without_a_method_is_refused(method):
    for version in FIRST_BUILDS[method]:
        made = exported("llama_cpp", deployment(method), version)
        parse(made)
    newest = exported("llama_cpp", deployment(method))
    assert newest.written_for == f"builds since {FIRST_BUILDS[method][0]}"
    for version in ("2026-05-16", "2026-06-07", "b9300"):
        with pytest.raises(UsageError, match=FIRST_BUILDS[method][0]):
            exported("llama_cpp", deployment(method), version)


IN_TRANSFORMERS = [(m, t) for m in SAME_TOKENIZER for t in (0.0, 0.7)]
IN_TRANSFORMERS += BETWEEN_TOKENIZERS.items()


@pytest.mark.parametrize(("method", "temperature"), IN_TRANSFORMERS)
def test_generation_configs_are_built_by_transformers_itself(method, temperature):
    settings = {"num_layers": 2} if method == "self_speculation" else {}
    made = exported("transformers", deployment(method, temperature=temperature, **settings))
    calls = [
        node
        for node in ast.walk(ast.parse(made.config.text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "GenerationConfig"
    ]
    assert len(calls) == (
        2 if method in ("draft_model", "dflash", "gemma4_mtp", *BETWEEN_TOKENIZERS) else 1
    )
    options: dict[str, object] = {}
    for call in calls:
        keywords = {kw.arg: ast.literal_eval(kw.value) for kw in call.keywords}
        config = GenerationConfig(**keywords)
        config.validate(strict=True)
        assert {name: getattr(config, name) for name in keywords} == keywords
        options |= keywords
    assert options["do_sample"] is (temperature > 0)
    assert 4 in (options.get("num_assistant_tokens"), options.get("prompt_lookup_num_tokens"))


def test_the_recorded_parser_refuses_invalid_flags():
    made = exported("vllm", deployment("draft_model"))
    words = {
        "--no-such-flag": (*made.command, "--no-such-flag"),
        "num_speculative_tokens": tuple(w.replace(": 4", ": 0") for w in made.command),
        "before the flags": (*made.command[:2], *made.command[3:]),
    }
    for complaint, command in words.items():
        changed = replace(made, command=command)
        with pytest.raises(
            ValueError, match=complaint if complaint != "num_speculative_tokens" else "0 is less"
        ):
            parse(changed)


def test_recorded_schemas_name_their_versions_and_source():
    for schema in SCHEMAS.values():
        assert schema["versions"]
        assert schema["source"]
