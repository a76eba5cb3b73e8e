"""`--variant`: the same K under several sets of engine arguments, interleaved and compared."""

import json
import re
from dataclasses import replace

import pytest

from specbench.bench.served.cycles import is_over
from specbench.bench.served.host import ManagedServers
from specbench.bench.served.sessions import cycle_of, served_cells
from specbench.cli.checks import checked
from specbench.decide.objective import Objective, joint_recommendation, recommend_for
from specbench.errors import UsageError
from specbench.export.winner import Selection, winner
from specbench.gate.baseline import snapshot
from specbench.gate.check import check
from specbench.gate.fingerprint import changes
from specbench.inputs.config import load_pairings
from specbench.records import DraftConfig, Kind
from specbench.report.comparisons import variant_reasons, variants_grid
from specbench.report.document import build_document
from specbench.report.document_json import to_json
from specbench.report.recommendation import headline, recommendation_json, recommendations_of
from specbench.report.sessions import sessions_grid
from specbench.settings.words import parse_variants
from tests.bench.served.served_runs import fake, measured, plan_of, settings_for
from tests.cell_keys import with_axes
from tests.cli.calls import specbench
from tests.report.stored_runs import keep
from tests.served_sessions import Sweep, served_sweep, varied_sweep
from tests.settings.flat_settings import settings_of

TWO = {"eager": ("--enforce-eager",), "graphs": ()}
ONE_ROW = Sweep(rows=(1,))
STARTED = {"pairings": ("a/b",), "workloads": (), "engines": ("vllm",)}


@pytest.fixture(scope="module")
def slower_eager():
    """A run in which eager takes 1.2 times as long at every K."""
    return varied_sweep({"eager": 1.2, "graphs": 1.0})


def test_variants_are_names_with_arguments_and_one_is_compared_with_the_plain_ones():
    assert parse_variants([]) is None
    words = ["eager=--enforce-eager", "small='--max-num-seqs=4' -x"]
    assert parse_variants(words) == {
        "eager": ("--enforce-eager",),
        "small": ("--max-num-seqs=4", "-x"),
    }
    assert parse_variants(["eager=-x"]) == {"default": (), "eager": ("-x",)}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eager"], "'eager'"),
        (["=--x"], "'=--x'"),
        (["a b=--x"], "'a b=--x'"),
        (["a=--x", "a="], "--variant a"),
        (["a='--x"], "--variant a"),
        (["default=--x"], "--variant default"),
    ],
)
def test_wrong_variants_are_refused(words, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_variants(words)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engines": ("builtin",)}, "engine builtin"),
        ({"engines": ("builtin", "vllm")}, "engine builtin"),
        ({"engines": ("openai",), "base_urls": ("http://localhost:1",)}, "engine openai"),
        ({"engines": ("sglang", "vllm")}, "sglang, vllm"),
        ({"base_urls": ("http://localhost:1",)}, "--base-url"),
        ({"variants": {"a": ("--speculative-config", "{}"), "b": ()}}, "--speculative-config"),
        ({"variants": {"a": ("--speculative_config={}",), "b": ()}}, "--speculative-config"),
        ({"engines": ("llama_cpp",), "variants": {"a": ("-md", "x"), "b": ()}}, "-md"),
        ({"variants": {"a": (), "b": ("--port", "80")}}, "--port"),
        ({"variants": {"a": (), "b": ("--api-key", "x")}}, "--api-key"),
    ],
)
def test_engines_without_arguments_and_flags_of_other_axes_are_refused(changes, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        checked(settings_of(**{**STARTED, "variants": TWO, **changes}))


def test_a_wrong_variant_ends_the_command_with_code_2_and_its_plan_names_each(tmp_path):
    settings_for(tmp_path)
    typed = ("run", "big/lookup", "-c", "pairings.yaml", "-w", "talk.jsonl", "--dry-run")
    wrong = specbench(*typed, "--variant", "eager=-x", cwd=tmp_path)
    assert (wrong.code, wrong.out) == (2, "")
    assert "builtin" in wrong.err
    verified = ("verify", "big/lookup", "-c", "pairings.yaml", "--engine", "vllm")
    refused = specbench(*verified, "--variant", "eager=-x", cwd=tmp_path)
    assert refused.code == 2
    assert "--variant: verify" in refused.err
    ran = specbench(
        *typed, "--engine", "vllm", "-k", "0,4", "--variant", "eager=-x", "--json", cwd=tmp_path
    )
    planned = json.loads(ran.out)
    assert planned["sessions"][0]["cycle"] == [
        *("K=0 (default)", "K=0 (eager)", "lookup K=4 (default)", "lookup K=4 (eager)"),
        *("lookup K=4 (eager)", "lookup K=4 (default)", "K=0 (eager)", "K=0 (default)"),
    ]
    variants = [cell["variant"] for cell in planned["cells"]]
    assert variants == ["default", "eager", "default", "eager"]


def test_each_k_and_variant_is_a_server_with_its_arguments(tmp_path):
    plan = plan_of(tmp_path, variants=TWO, engine_args=("--all",))
    sessions = [*cycle_of(served_cells(plan, "vllm"), 0)]
    assert len({session.place for session in sessions}) == len(sessions) == 2 * 3 * 2
    host = ManagedServers(plan, "vllm")
    for session in sessions:
        command = host._start_of(session, tmp_path).command
        assert command[command.index("--all") :] == ["--all", *TWO[session.variant]]
        assert {cell.key.condition.variant for cell in session.cells} == {session.variant}


def test_a_variant_that_fails_twice_is_not_confused_with_the_other():
    draft = replace(DraftConfig.none, drafter="d", length=replace(DraftConfig.none.length, most=4))
    plain, starts = DraftConfig.none, {(d, v) for d in (DraftConfig.none, draft) for v in "ab"}
    refused = "unrecognized arguments"
    assert not is_over({(draft, "a"): (refused, refused)}, starts)
    assert is_over({(draft, "a"): (refused,), (draft, "b"): (refused,)}, starts)
    assert is_over({(plain, "a"): (refused,), (draft, "a"): (refused,)}, starts)


def test_a_run_compares_variants_and_a_resumed_one_repeats_none(tmp_path, monkeypatch):
    fake(monkeypatch, tmp_path)
    small = {"num_speculative_tokens": (0, 4), "num_prompts": 3, "cycles": 1}
    settings = settings_for(tmp_path, variants=TWO, **small)
    stored = measured(tmp_path, settings)
    served = [(s.num_speculative_tokens, s.variant) for s in stored.servers]
    up = [(0, "eager"), (0, "graphs"), (4, "eager"), (4, "graphs")]
    assert served == [*up, *up[::-1]]
    for server in stored.servers:
        assert ("--enforce-eager" in server.command) == (server.variant == "eager")
    pairs = build_document(stored).variants
    assert [(p.cell.draft.k, p.peer.draft.k) for p in pairs] == [(0, 0), (4, 4)]
    assert {(p.cell.condition.variant, p.peer.condition.variant) for p in pairs} == {
        ("graphs", "eager")
    }
    again = measured(tmp_path, settings, resume=stored.run.run_id)
    assert len(again.servers) == len(stored.servers)


def test_the_faster_variant_is_named_with_its_interval_at_the_same_k(slower_eager):
    document = build_document(slower_eager)
    assert len(document.variants) == 2 * 3  # two concurrencies, K = 0, 2 and 4
    for pair in document.variants:
        assert pair.cell.draft == pair.peer.draft
        assert pair.valid
        assert pair.num_prompts == 6
        assert pair.decode.low > 1
        assert 1.15 < pair.decode.estimate < 1.25
    told = [*variant_reasons(document)]
    assert len(told) == 2 * 2  # K = 0 and the decided one
    assert {said.kind for said in told} == {Kind.FASTER_VARIANT}
    assert {(said.figures["variant"], said.figures["other"]) for said in told} == {
        ("graphs", "eager")
    }
    assert told[0].figures["speedup"] == document.variants[0].decode
    turned = build_document(varied_sweep({"graphs": 1.0, "eager": 1.2}, ONE_ROW))
    assert all(pair.decode.high < 1 for pair in turned.variants)
    assert all(said.figures["variant"] == "graphs" for said in variant_reasons(turned))
    equal = build_document(varied_sweep({"a": 1.0, "b": 1.0}, ONE_ROW))
    assert {said.kind for said in variant_reasons(equal)} == {Kind.OPEN_VARIANTS}
    (pick,) = recommendations_of(equal, Objective())
    assert "undecided whether faster than variant" in headline(equal, pick, Objective())
    (pick,) = recommendations_of(turned, Objective())
    assert "undecided" not in headline(turned, pick, Objective())
    assert len(variants_grid(document.variants).rows) == 6
    assert build_document(served_sweep(ONE_ROW)).variants == ()


def test_speedups_are_over_k_0_of_the_same_variant_and_json_and_sessions_name_it(slower_eager):
    document = build_document(slower_eager)
    alone = {d.condition: d for d in build_document(served_sweep()).decisions}
    assert len(document.decisions) == 2 * len(alone)
    for cell in document.cells:
        if cell.key.draft.k == 4 and cell.key.condition.concurrency == 1:
            assert cell.speedup.estimate == pytest.approx(2.0, rel=0.05)
    json_document = to_json(document)
    assert {cell["variant"] for cell in json_document["cells"]} == {"eager", "graphs"}
    assert json_document["variants"][0]["cell"]["variant"] == "graphs"
    names = [row[0] for row in sessions_grid(document).rows]
    assert names == ["vllm of demo, eager"] * 3 + ["vllm of demo, graphs"] * 3


@pytest.mark.parametrize("order", [("eager", "graphs"), ("graphs", "eager")])
def test_the_fastest_variant_is_recommended_and_exported_with_its_arguments(tmp_path, order):
    stored = varied_sweep({name: {"eager": 1.2, "graphs": 1.0}[name] for name in order}, ONE_ROW)
    document, objective = build_document(stored), Objective()
    picks = recommendations_of(document, objective)
    (pick,) = recommendation_json(document, picks, objective)["picks"]
    assert (pick["best"]["variant"], pick["best"]["num_speculative_tokens"]) == ("graphs", 4)
    # On two workloads, as one configuration for both.
    chat = {"workload": "chat"}
    cells = [replace(c, key=with_axes(c.key, **chat)) for c in document.cells]
    decided = [replace(d, leader=with_axes(d.leader, **chat)) for d in document.decisions]
    both = recommend_for((*document.cells, *cells), (*document.decisions, *decided), objective)
    joint = joint_recommendation(both)
    assert (joint.key.condition.variant, set(joint.regret.values())) == ("graphs", {0.0})
    keep(tmp_path / "reports", "run", stored)
    typed = ("export", "demo/draft", "--run", "run", "--json", "--engine")
    made = json.loads(specbench(*typed, "vllm", cwd=tmp_path).out)
    assert made["command"][-1] == "--graphs"
    variant = {"variant": "graphs", "arguments": "--graphs"}
    assert variant in [reason["figures"] for reason in made["conditions"]]
    elsewhere = json.loads(specbench(*typed, "sglang", cwd=tmp_path).out)
    assert "--graphs" not in elsewhere["command"]
    assert any("--graphs" in lost for lost in elsewhere["not_expressed"])


def test_a_gate_matches_variants_by_name_and_reports_other_arguments(slower_eager):
    before = snapshot(slower_eager)
    assert check(before, before).judgments
    renamed = varied_sweep({"eager": 1.2, "other": 1.0})
    with pytest.raises(UsageError, match="variant: graphs in the baseline, other"):
        check(before, snapshot(renamed))
    servers = (
        replace(s, command=(*s.command, "--enforce-eager") if s.variant == name else s.command)
        for name in ["eager"]
        for s in slower_eager.servers
    )
    changed = replace(slower_eager, servers=tuple(servers))
    (difference,) = changes(before.fingerprint, snapshot(changed).fingerprint)
    assert difference.name == "server vllm of demo, variant eager, --enforce-eager"
    assert (difference.baseline, difference.candidate) == ("absent", "given")


def test_a_variant_with_only_k_0_is_exported_without_speculation(tmp_path):
    """The decision against drafts also holds for one set of arguments."""
    settings_for(tmp_path)
    (pairing,) = load_pairings(tmp_path / "pairings.yaml").select(["big/lookup"])
    slow = varied_sweep({"a": 1.1, "b": 1.0}, replace(ONE_ROW, ks=(2,), confirmed=None))
    document = build_document(slow)
    decisions = [
        replace(d, draft=replace(d.draft, length=DraftConfig.none.length))
        for d in document.decisions
    ]
    pairing = replace(
        pairing,
        target=replace(pairing.target, name="demo"),
        drafter=replace(pairing.drafter, name="draft"),
    )
    made = winner([pairing], decisions, document.cells, Selection(), {"a": ("--a",), "b": ("--b",)})
    assert (made.k, made.arguments) == (0, ("--b",))
