"""`sweep-k --adaptive` of a serving engine: its own schemes beside the fixed K."""

import json
import re
from dataclasses import replace

import pytest

from specbench.bench.planning import plan_run
from specbench.bench.served.host import ManagedServers
from specbench.bench.served.sessions import cycle_of, served_cells
from specbench.cli.checks import checked
from specbench.errors import UsageError
from specbench.inputs.config import load_pairings
from specbench.records import Auto, Kind
from specbench.report.comparisons import adaptive_reasons, variant_reasons
from specbench.report.document import build_document
from specbench.report.document_json import to_json
from tests.bench.served.served_runs import fake, measured, plan_of, settings_for
from tests.cli.calls import specbench
from tests.settings.flat_settings import settings_of

SCHEME = "adaptive_verification"
SMALL = {"pairings": ("big/small",), "adaptive": True}
STARTED = {"pairings": ("a/b",), "workloads": (), "adaptive": True}


def test_a_scheme_is_measured_up_to_the_largest_k_beside_every_fixed_one(tmp_path):
    plan = plan_of(tmp_path, **SMALL)
    labels = [session.configuration for session in cycle_of(served_cells(plan, "vllm"), 0)]
    up = ["K=0 (default)", f"K=0 ({SCHEME})"]
    up += ["small K=2 (default)", "small K=4 (default)", f"small auto ({SCHEME})"]
    assert labels == [*up, *up[::-1]]
    host = ManagedServers(plan, "vllm")
    for session in cycle_of(served_cells(plan, "vllm"), 0):
        command = host._start_of(session, tmp_path).command
        if not session.draft.k:
            assert "--speculative-config" not in " ".join(command)
            continue
        config = json.loads(command[command.index("--speculative-config") + 1])
        assert config["num_speculative_tokens"] == session.draft.k
        assert config.get("enable_adaptive_verification", False) == session.draft.is_adaptive
        assert (session.variant == SCHEME) == session.draft.is_adaptive
    assert plan.settings.servers.variants["default"] == ()


@pytest.mark.parametrize(("ks", "most"), [((2, 4), 16), ((20,), 20)])
def test_a_scheme_that_tries_more_than_k_is_measured_up_to_what_it_tries(ks, most, tmp_path):
    changes = {"engines": ("ik_llama_cpp",), "engine_version": "2026-04-08"}
    plan = plan_of(tmp_path, **SMALL, **changes, num_speculative_tokens=ks)
    drafts = {cell.key.draft for cell in served_cells(plan, "ik_llama_cpp")}
    assert [draft.length for draft in drafts if draft.is_adaptive] == [Auto(most)]
    assert {draft.k for draft in drafts if draft.is_fixed} == {0, *ks}


def test_k_by_batch_size_needs_several_concurrencies(tmp_path):
    plan = plan_of(tmp_path, **{**SMALL, "pairings": ("big/lookup",), "concurrency": (1, 4)})
    (_, table) = plan.settings.servers.variants["by_batch_size"]
    assert json.loads(table) == [[1, 1, 4], [2, 4, 2]]
    with pytest.raises(UsageError, match="vllm has no adaptive scheme for ngram"):
        plan_of(tmp_path, **{**SMALL, "pairings": ("big/lookup",)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine_version": "0.30"}, "enable_adaptive_verification"),
        ({"variants": {"default": (), "mine": ("--x",)}}, "leave --variant out"),
        ({"pairings": ("big/small", "big/lookup"), "concurrency": (1, 4)}, "one run for each"),
    ],
)
def test_what_the_engine_lacks_or_contradicts_is_refused_before_measuring(
    tmp_path, changes, message
):
    with pytest.raises(UsageError, match=re.escape(message)):
        plan_of(tmp_path, **{**SMALL, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engines": ("openai",), "base_urls": ("http://localhost:1",)}, "single engine"),
        ({"engines": ("sglang", "vllm")}, "single engine"),
        ({"engines": ("transformers",)}, "single engine"),
        ({"engines": ("vllm",), "base_urls": ("http://localhost:1",)}, "--base-url"),
    ],
)
def test_an_adaptive_k_needs_an_engine_that_is_started_with_it(changes, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        checked(settings_of(**{**STARTED, **changes}))


def test_k_auto_beside_servers_is_the_built_in_decoders_only(tmp_path):
    settings = settings_for(tmp_path, **SMALL, engines=("builtin", "vllm"))
    pairings = load_pairings(tmp_path / "pairings.yaml").select(settings.workload.pairings)
    planned = plan_run(checked(settings), pairings, render=lambda *_: {})
    assert planned.settings.servers.variants is None
    adaptive = [c.key for c in planned.targets[0].all_cells if c.key.draft.is_adaptive]
    assert {key.condition.engine for key in adaptive} == {"builtin"}


def test_a_run_compares_the_scheme_and_a_resumed_one_repeats_nothing(tmp_path, monkeypatch):
    fake(monkeypatch, tmp_path)
    settings = settings_for(
        tmp_path, **SMALL, num_speculative_tokens=(0, 2, 4), num_prompts=3, cycles=2
    )
    stored = measured(tmp_path, settings)
    assert stored.is_complete
    document = build_document(stored)
    (row,) = document.adaptive
    assert row.adaptive.condition.variant == SCHEME
    assert row.adaptive.draft.length == Auto(4)
    assert row.best_fixed.condition.variant == "default"
    assert row.mean_num_speculative_tokens == 4  # the fake always drafts all
    sound = replace(document, adaptive=(replace(row, valid=True),))  # three prompts are too few
    (said,) = adaptive_reasons(sound)
    assert (said.kind, said.figures["scheme"]) == (Kind.ADAPTIVE, SCHEME)
    assert not [r for r in variant_reasons(document) if r.figures["cell"].endswith("K=0")]
    (comparison,) = to_json(document)["adaptive_comparisons"]
    assert comparison["adaptive"]["variant"] == SCHEME
    again = measured(tmp_path, settings, resume=stored.run.run_id)
    assert len(again.servers) == len(stored.servers)


def test_the_command_adds_auto_or_the_engines_scheme(tmp_path):
    settings_for(tmp_path)
    typed = ("sweep-k", "big/small", "-c", "pairings.yaml", "-w", "talk.jsonl", "--adaptive")
    ran = specbench(*typed, "--engine", "vllm", "-k", "0,2", "--dry-run", "--json", cwd=tmp_path)
    cells = json.loads(ran.out)["cells"]
    assert [(c["variant"], c["num_speculative_tokens"], c["adaptive"]) for c in cells] == [
        *(("default", 0, False), (SCHEME, 0, False)),
        *(("default", 2, False), (SCHEME, 2, True)),
    ]
    refused = specbench(
        *typed, "--engine", "vllm", "--engine-version", "0.30", "--dry-run", cwd=tmp_path
    )
    assert refused.code == 2
    assert "enable_adaptive_verification" in refused.err
    ours = ("sweep-k", "demo/draft", "-k", "0,2", "--adaptive", "-w", "mixed")
    ran = specbench(*ours, "--dry-run", "--json", cwd=tmp_path)
    assert any(cell["adaptive"] for cell in json.loads(ran.out)["cells"])
