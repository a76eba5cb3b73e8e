"""Each engine's own adaptive schemes: for which methods and versions, and with which arguments."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.engines.deployment import Tier, find_exporter, tiers_of
from specbench.errors import UsageError
from specbench.methods import all_methods
from tests.export.deployments import config_of, deployment, exported
from tests.export.recorded_parser import METHODS, SERVERS, parse

BY_USERS = tiers_of((1, 4, 16), 5)
SCHEMES = {
    "vllm": {
        **dict.fromkeys(METHODS["vllm"], ("adaptive_verification",)),
        **dict.fromkeys(("medusa", "ngram", "suffix"), ()),
    },
    "sglang": {"eagle": ("adaptive",), "eagle3": ("adaptive",)},
    "tensorrt_llm": {},
    "ik_llama_cpp": dict.fromkeys(METHODS["ik_llama_cpp"], ("autotune",)),
    "llama_cpp": dict.fromkeys(
        ("draft_model", "eagle3", "mtp", "gemma4_mtp", "dflash", "dflash2", "dspark"), ("p_min",)
    ),
}


def test_k_halves_at_each_further_concurrency():
    assert tiers_of((1, 4, 16), 5) == (Tier(1, 5), Tier(4, 2), Tier(16, 1))
    assert tiers_of((64, 1), 1) == (Tier(1, 1), Tier(64, 1))


@pytest.mark.parametrize("method", [method.name for method in all_methods()])
@pytest.mark.parametrize("engine", SERVERS)
def test_the_schemes_of_every_method_are_taken_by_the_engines_parser(engine, method):
    if method not in METHODS[engine]:
        return
    made = deployment(method, **({"tree": "chain"} if method.startswith("eagle") else {}))
    schemes = find_exporter(engine).adaptive(made, None, None)
    assert tuple(schemes) == SCHEMES[engine].get(method, ())
    for arguments in schemes.values() if engine != "llama_cpp" else ():
        parse(exported(engine, replace(made, measured_with=engine, arguments=arguments)))


def test_vllm_has_k_by_batch_size_with_several_concurrencies():
    made = deployment("eagle3", tiers=BY_USERS)
    schemes = find_exporter("vllm").adaptive(made, "0.32.0", None)
    table = schemes["by_batch_size"]
    fixed = deployment("eagle3", 5)
    config = config_of(exported("vllm", replace(fixed, measured_with="vllm", arguments=table)))
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 1, 5], [2, 4, 2], [5, 16, 1]]
    on = schemes["adaptive_verification"]
    config = config_of(exported("vllm", replace(fixed, measured_with="vllm", arguments=on)))
    assert (config["enable_adaptive_verification"], config["num_speculative_tokens"]) == (True, 5)
    lookup = find_exporter("vllm").adaptive(deployment("ngram", tiers=BY_USERS), None, None)
    assert [*lookup] == ["by_batch_size"]


@pytest.mark.parametrize(
    ("engine", "version", "message"),
    [
        ("vllm", "0.30", r"enable_adaptive_verification of eagle3 .*0\.31.* this is 0\.30"),
        ("sglang", "0.5.11", r"--speculative-adaptive .*0\.5\.12.* this is 0\.5\.11"),
    ],
)
def test_a_release_that_lacks_the_scheme_is_refused(engine, version, message):
    with pytest.raises(UsageError, match=message):
        find_exporter(engine).adaptive(deployment("eagle3", tree="chain"), version, None)


@pytest.mark.parametrize(
    ("word", "flag"),
    [
        ("--enforce-eager", "--enforce-eager"),
        ("--enforce_eager", "--enforce-eager"),
        ("--data-parallel-size=2", "--data-parallel-size"),
        ("-dp=2", "--data-parallel-size"),
    ],
)
def test_arguments_with_which_vllm_would_not_adapt_are_refused(word, flag):
    made = replace(deployment("eagle3", tiers=BY_USERS), arguments=(word,))
    with pytest.raises(UsageError, match=flag):
        find_exporter("vllm").adaptive(made, None, None)


def test_sglang_adapts_no_tree():
    for tree, is_refused in (("dynamic", True), ("static", False), ("chain", False)):
        made = deployment("eagle", tree=tree)
        with pytest.raises(UsageError, match="tree: chain") if is_refused else nullcontext():
            assert [*find_exporter("sglang").adaptive(made, None, None)] == ["adaptive"]


def program(folder: Path, options: str) -> Path:
    """A program whose help has these options."""
    made = folder / "llama-server"
    made.write_text(f"#!/bin/sh\necho '{options}'\n")
    made.chmod(0o755)
    return made


def test_llama_cpp_ends_drafts_by_confidence_if_its_program_can(tmp_path):
    llama = find_exporter("llama_cpp")
    made = deployment("draft_model")
    server = program(tmp_path, "--spec-draft-p-min P")
    assert llama.adaptive(made, None, server) == {"p_min": ("--spec-draft-p-min", "0.75")}
    assert llama.adaptive(made, "2026-04", None) == {"p_min": ("--draft-p-min", "0.75")}
    with pytest.raises(UsageError, match="has no --spec-draft-p-min"):
        llama.adaptive(made, None, program(tmp_path, "--draft-min N"))
    with pytest.raises(UsageError, match="--engine ik_llama_cpp"):
        llama.adaptive(made, None, program(tmp_path, "--spec-type SPEC --spec-autotune"))


def test_llama_cpps_scheme_does_not_replace_a_p_min_that_is_measured():
    made = deployment("draft_model")
    stopping = replace(made.pairing, drafter=made.pairing.drafter.at_p_min(0.6))
    with pytest.raises(UsageError, match=r"drafter-p0\.6.*0\.75 instead of 0\.6.*--adaptive"):
        find_exporter("llama_cpp").adaptive(replace(made, pairing=stopping), None, None)
