"""A plan leaves out a K that a drafter cannot draft or no server runs, and other methods."""

import re
from pathlib import Path
from typing import Any

import pytest

from specbench.bench.benchmark import plan_warnings
from specbench.bench.plan import DEFAULT_K, TargetPlan
from specbench.bench.planning import plan_run
from specbench.errors import UsageError
from specbench.files.gguf import read_gguf
from specbench.inputs.config import load_pairings
from specbench.methods import gguf_depth
from specbench.records import DraftConfig, Kind
from specbench.report.document import Document, build_document
from specbench.report.notes import run_warnings
from specbench.settings import RunSettings
from tests.bench.fake_runs import SETTINGS, make_plan, measure
from tests.bench.fakes import Call, FakeEngine
from tests.bench.served.served_runs import plan_of
from tests.gguf_files import HIDDEN, NUM_TOKENS, write_gguf
from tests.settings.flat_settings import changed, settings_of

KS = changed(SETTINGS, num_speculative_tokens=(0, 2, 4, 6))
UNSAID = changed(SETTINGS, num_speculative_tokens=None)


def too_deep(call: Call) -> Exception | None:
    """The error of the built-in engine."""
    is_too_deep = call.drafter == "good" and call.k > 4
    return UsageError("good drafts at most 4 tokens ahead") if is_too_deep else None


def measured(settings: RunSettings, folder: Path, **depths: int) -> Document:
    plan = make_plan(folder, settings, depths=depths or {"good": 4})
    return build_document(measure(plan, FakeEngine(breaks=too_deep), folder))


def ks_of(document: Document, drafter: str) -> set[int]:
    cells = (cell for cell in document.cells if cell.key.draft.drafter == drafter)
    return {cell.key.draft.k for cell in cells}


def test_a_default_range_is_limited_to_what_can_be_drafted(tmp_path: Path) -> None:
    document = measured(changed(KS, is_default_range=True), tmp_path)

    assert ks_of(document, "good") == {2, 4}
    assert ks_of(document, "bad") == {2, 4, 6}
    assert document.failures == ()
    assert document.missing == ()
    assert run_warnings(document) == [Kind.K_TOO_DEEP(pairing="big/good", k=6)]


def test_a_requested_k_that_is_too_large_fails_and_others_are_measured(tmp_path: Path) -> None:
    document = measured(KS, tmp_path)

    assert ks_of(document, "good") == {2, 4}
    (failure,) = document.failures
    assert (failure.pairing, failure.stage) == ("big/good", "warm_up")
    assert re.match("ngram K=6: good .*4 tokens", failure.reason)
    assert [key.draft.k for key in document.missing] == [6]


def test_an_adaptive_k_is_warmed_up_as_deep_as_it_goes(tmp_path: Path) -> None:
    settings = changed(KS, num_speculative_tokens=(0,), adaptive=True, pairings=("big/good",))
    engine = FakeEngine()
    measure(make_plan(tmp_path, settings, depths={"good": 2}), engine, tmp_path)
    warmed_up = {call.k for call in engine.calls if call.request.max_new_tokens == 12}
    assert warmed_up == {0, 1, 2}


def test_a_default_k_is_at_most_the_drafters_maximum(tmp_path: Path) -> None:
    document = measured(UNSAID, tmp_path, good=2, bad=2)  # `bad` names no K, `good` names 3
    assert ks_of(document, "bad") == {2}
    assert {p.key.draft.k for p in document.run.cells} == {0, 2, 3}
    assert [key for key in document.missing if key.draft.drafter == "bad"] == []


def test_the_default_k_holds_for_drafters_with_a_larger_limit(tmp_path: Path) -> None:
    assert ks_of(measured(UNSAID, tmp_path, good=9, bad=9), "bad") == {DEFAULT_K}


@pytest.mark.parametrize(
    ("requested", "drafter", "deepest", "k"),
    [(5, "good", 9, 5), (None, "good", 2, 3), (None, "bad", 9, DEFAULT_K), (None, "bad", 2, 2)],
)
def test_k_falls_back_from_the_option_to_the_pairing_to_the_drafter(
    requested: int | None, drafter: str, deepest: int, k: int, tmp_path: Path
) -> None:
    ks = None if requested is None else (requested,)
    plan = make_plan(
        tmp_path, changed(SETTINGS, num_speculative_tokens=ks), depths={drafter: deepest}
    )
    (pairing,) = [p for p in plan.pairings if p.drafter.name == drafter]
    assert plan.ks(pairing) == (k,)


def test_a_run_that_is_resumed_keeps_the_k_it_had(tmp_path: Path) -> None:
    before = measured(UNSAID, tmp_path, good=2, bad=2)
    again = measured(UNSAID, tmp_path, good=2, bad=2)
    assert [c.key for c in again.cells] == [c.key for c in before.cells]
    assert [c.num_requests for c in again.cells] == [c.num_requests for c in before.cells]
    assert again.missing == before.missing


PAIRINGS = """\
targets:
  big:
    model: owner/big
    drafters:
      head: {method: eagle, model: owner/head}
      copy: {method: ngram}
"""


def planned(folder: Path, *engines: str, names: tuple[str, ...]) -> TargetPlan:
    (folder / "pairings.yaml").write_text(PAIRINGS)
    pairings = load_pairings(folder / "pairings.yaml").select(names)
    settings = settings_of(command="run", pairings=names, workloads=("chat",), engines=engines)
    (plan,) = plan_run(settings, pairings).targets
    return plan


def test_a_method_that_the_only_engine_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"transformers.*eagle.*big/head"):
        planned(tmp_path, "transformers", names=("big/head",))


def test_a_method_that_one_of_two_engines_lacks_is_a_warning(tmp_path: Path) -> None:
    both = planned(tmp_path, "builtin", "transformers", names=("big",))
    assert plan_warnings(both) == (Kind.PEERS_LACK(pairings=("big/head",)),)
    assert plan_warnings(planned(tmp_path, "builtin", names=("big",))) == ()
    assert plan_warnings(planned(tmp_path, "transformers", names=("big/copy",))) == ()


def test_a_set_is_measured_by_the_engine_that_has_it_at_its_own_usual_k(tmp_path: Path) -> None:
    (tmp_path / "pairings.yaml").write_text(
        PAIRINGS + "      set: {method: draft_model+ngram_mod, model: owner/small}\n"
        "      cache: {method: ngram_cache}\n"
    )
    settings = settings_of(
        pairings=("big",),
        workloads=("chat",),
        engines=("builtin", "llama_cpp"),
        num_speculative_tokens=(0, 1, 2),
        is_default_range=True,
    )
    pairings = load_pairings(tmp_path / "pairings.yaml").select(["big"])
    (plan,) = plan_run(settings, pairings).targets
    ks: dict[tuple[str, str], set[int]] = {}
    for cell in plan.all_cells:
        key = cell.key
        ks.setdefault((key.condition.engine, key.draft.drafter), set()).add(key.draft.k)
    assert ks["llama_cpp", "set"] == {16, 48}
    assert ks["llama_cpp", "cache"] == {8}
    assert not {("builtin", "set"), ("builtin", "cache")} & {*ks}
    assert plan.in_process is not None
    assert {"set", "cache"}.isdisjoint(p.drafter.name for p in plan.in_process.pairings)
    too_deep = {Kind.K_TOO_DEEP(pairing=f"big/{name}", k=1) for name in ("set", "cache")}
    assert too_deep.isdisjoint(plan.left_out)


def test_a_default_range_measures_only_the_running_k(tmp_path):
    plan = plan_of(tmp_path, (0, 4), is_default_range=True)
    assert {cell.key.draft.k for cell in plan.all_cells} == {DraftConfig.none.k, 4}
    assert not list(plan.left_out)


def test_a_requested_k_that_no_server_runs_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"-k 2.*K=0, 4"):
        plan_of(tmp_path, (4, 0))


GGUF_PAIRINGS = """\
targets:
  big:
    model: big.gguf
    drafters:
      layers: {method: mtp}
      block: {method: dflash, model: block.gguf}
      spark: {method: dspark, model: spark.gguf}
      anchor: {method: dspark, model: anchor.gguf}
      lookup: {method: ngram}
"""


def test_each_k_that_llama_cpp_limits_is_planned_once(tmp_path, monkeypatch):
    """Each of several MTP layers drafts one token, and a single one all; a block all but its first,
    and DSpark also that one if it samples from it."""
    large, small = {"token_embd.weight": (HIDDEN, NUM_TOKENS)}, {"token_embd.weight": (32, 32)}
    mtp = {**large, "blk.0.nextn.eh_proj.weight": (32, 2)}
    write_gguf(tmp_path / "big.gguf", tensors=mtp, llama__nextn_predict_layers=3)
    of_block: dict[str, Any] = {"general__architecture": "dflash", "dflash__block_size": 6}
    write_gguf(tmp_path / "block.gguf", tensors=small, **of_block)
    markov = {**small, "markov_w1.weight": (32, 2)}
    write_gguf(tmp_path / "spark.gguf", tensors=markov, **of_block)
    write_gguf(
        tmp_path / "anchor.gguf", tensors=markov, **of_block, dflash__sample_from_anchor=True
    )
    (tmp_path / "pairings.yaml").write_text(GGUF_PAIRINGS)
    monkeypatch.chdir(tmp_path)
    ks = (0, 2, 4, 5, 6, 16)
    settings = settings_of(
        pairings=("big",),
        workloads=("chat",),
        engines=("llama_cpp",),
        num_speculative_tokens=ks,
    )
    (plan,) = plan_run(settings, load_pairings(Path("pairings.yaml")).select(["big"])).targets
    planned: dict[str, list[int]] = {}
    for cell in plan.all_cells:
        planned.setdefault(cell.key.draft.drafter, []).append(cell.key.draft.k)
    assert planned == {
        "none": [0],
        "layers": [2, 3],
        "block": [2, 4, 5],
        "spark": [2, 4, 5],
        "anchor": [2, 4, 5, 6],
        "lookup": [2, 4, 5, 6, 16],
    }
    depths = {"layers": 4, "block": 6, "spark": 6, "anchor": 16}
    notes = {Kind.K_TOO_DEEP(pairing=f"big/{name}", k=k) for name, k in depths.items()}
    assert notes <= {*plan.left_out}
    one = write_gguf(tmp_path / "one.gguf", tensors=mtp, llama__nextn_predict_layers=1)
    assert gguf_depth("mtp", read_gguf(one)) is None
