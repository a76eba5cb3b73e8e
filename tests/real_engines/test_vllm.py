"""vLLM itself, in its build for CPUs, compared with our decoder on the same prompts.

A start takes a minute: all drafters are in one sweep and share K = 0.
"""

import json
import os
import subprocess

import pytest

from specbench.bench.planning import plan_run
from specbench.bench.served.host import ManagedServers
from specbench.bench.served.sessions import cycle_of, served_cells
from specbench.inputs.config import load_pairings
from specbench.shipped import shipped
from specbench.words.answers import text
from tests.padded_pair import write_padded_pair
from tests.real_engines.environments import VLLM
from tests.real_engines.sweeps import (
    ASKED,
    WORKLOADS,
    K,
    Sweep,
    faults_of_streams,
    pair_with_builtin,
    print_table,
    sweep,
    texts_other_than_without_speculation,
)
from tests.settings.flat_settings import settings_of

pytestmark = pytest.mark.engines

MODELS = ("draft", "eagle", "eagle3", "medusa")  # the lookups of n-grams are not the same
DRAFTERS = (*MODELS, "ngram")
PAIRINGS = [f"demo/{drafter}" for drafter in DRAFTERS]
ASKED_OF_BOTH = ("--dtype", "float32", *ASKED)
EAGER = "--enforce-eager --max-model-len 1024 --max-num-seqs 8"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(scope="module")
def builtin(tmp_path_factory) -> Sweep:
    out = tmp_path_factory.mktemp("builtin")
    return sweep("run", *PAIRINGS, "-k", str(K), *ASKED_OF_BOTH, cwd=out, out=out)


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Sweep:
    out = tmp_path_factory.mktemp("vllm")
    started = ("--engine", "vllm", "--engine-python", VLLM, "--engine-args", EAGER)
    options = ("-k", f"0,{K}", "--restart-cycles", "2", *started, *ASKED_OF_BOTH)
    return sweep("sweep-k", *PAIRINGS, *options, cwd=out, out=out, **ENVIRONMENT)


def test_every_vllm_session_is_free_of_problems(served):
    assert served.run.is_complete
    assert {server.drafter for server in served.run.servers} == {"none", *DRAFTERS}
    assert not [(s.place, s.problems) for s in served.run.servers if s.problems]
    assert not faults_of_streams(served)


def test_vllm_accepts_as_many_drafts_as_our_decoder(served, builtin):
    """For ngram only texts are compared: vLLM looks up other n-grams, and more of them."""
    print_table(served, builtin, "vLLM", DRAFTERS)
    for drafter in MODELS:
        for workload in WORKLOADS:
            same = pair_with_builtin(served, builtin, drafter, workload, K)
            assert same.num_equal > same.num_texts / 2
            assert (same.rounds, same.accepted) == (same.own_rounds, same.own_accepted)


def test_drafts_leave_the_text_of_vllm_unchanged(served):
    for drafter in DRAFTERS:
        assert not texts_other_than_without_speculation(served, drafter, K)


def test_the_engines_figure_is_never_below_ours(served):
    """vLLM counts past the ends of answers, and only rounds that drafted."""
    for drafter in DRAFTERS:
        for workload in WORKLOADS:
            cell = served.cells[drafter, workload, K]
            engines = float(cell["mean_acceptance_length_of_engine"])
            assert engines >= float(cell["mean_acceptance_length"])


def test_a_draft_model_reduces_the_kv_cache_capacity_of_vllm(served):
    for workload in WORKLOADS:
        assert int(served.cells["draft", workload, K]["kv_capacity_lost_tokens"]) > 0


def test_a_padded_pair_is_started_as_exported_and_its_drafts_are_accepted(tmp_path):
    folder = write_padded_pair(tmp_path)
    started = ("--engine", "vllm", "--engine-python", VLLM, "--engine-args", EAGER)
    options = ("-k", f"0,{K}", "--restart-cycles", "2", *started, *ASKED_OF_BOTH)
    run = sweep("sweep-k", "padded/draft", *options, cwd=folder, out=folder / "out", **ENVIRONMENT)
    assert not [s.problems for s in run.run.servers if s.problems]
    assert any("use_heterogeneous_vocab" in text(warning) for warning in run.run.run.warnings)
    for workload in WORKLOADS:
        assert float(run.cells["draft", workload, K]["mean_acceptance_length"]) > 1.5
    assert not texts_other_than_without_speculation(run, "draft", K)


# vLLM's own parser, and the checks of its config that read no weights.
PARSE = """
import json, sys
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup
arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[1:])
try:
    config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config().speculative_config
except ValueError as error:
    print(json.dumps({"refused": str(error)}))
else:
    table = config.num_speculative_tokens_per_batch_size
    k = config.num_speculative_tokens
    lookup = build_dynamic_sd_schedule_lookup(table, 5, k) if table else None
    print(json.dumps({"k": k, "by_batch_size": lookup}))
"""


def parsed(command: list[str]) -> dict:
    """What vLLM makes of the words after `--model`, or why its config refuses them."""
    words = command[command.index("--model") :]
    environment = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(
        [VLLM, "-c", PARSE, *words], capture_output=True, text=True, env=environment, check=True
    )
    found: dict = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_plan_of_adaptive_schemes_is_taken_by_vllms_own_parser(tmp_path):
    settings = settings_of(
        command="sweep-k",
        pairings=("demo/draft",),
        workloads=("mixed",),
        num_speculative_tokens=(0, 4),
        adaptive=True,
        engines=("vllm",),
        engine_python=VLLM,
        concurrency=(1, 4),
    )
    pairings = load_pairings(shipped("pairings.yaml")).select(settings.workload.pairings)
    (plan,) = plan_run(settings, pairings).targets
    assert [*plan.settings.servers.variants] == [
        *("default", "adaptive_verification", "by_batch_size")
    ]
    host = ManagedServers(plan, "vllm")
    found = {
        session.variant: parsed(host._start_of(session, tmp_path).command)
        for session in cycle_of(served_cells(plan, "vllm"), 0)
        if session.draft.k
    }
    assert found["default"] == {"k": 4, "by_batch_size": None}
    assert found["by_batch_size"] == {"k": 4, "by_batch_size": [0, 4, 2, 2, 2, 2]}
    # Every word was parsed before this: on a CPU only its older runner exists.
    assert "adaptive draft verification" in found["adaptive_verification"]["refused"]
