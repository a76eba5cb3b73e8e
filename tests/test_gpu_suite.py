"""The GPU suite's code, run small on a CPU: its figures mean nothing here, only their format."""

import ast
import json
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu_suite import (
    correct,
    distribution,
    machine,
    models,
    speed,
    sweep,
)
from benchmarks.gpu_suite.captures import Watched
from benchmarks.gpu_suite.decoders import GREEDY, Pair, medium_pair
from benchmarks.gpu_suite.machine import Machine
from benchmarks.gpu_suite.page import page
from benchmarks.gpu_suite.side_by_side import compare_engines
from benchmarks.gpu_suite.stage import request_of
from specbench.decode.launcher import Launcher
from specbench.engines.model_pool import ModelPool
from specbench.inputs.config import load_pairings
from specbench.methods import all_methods
from specbench.shipped import shipped

ROOT = Path(__file__).parents[1]
SMALL = ["--device", "cpu", "--small", "--limit-s", "1e6"]  # a busy machine leaves nothing out
CPU = torch.device("cpu")
PARTS = {"correct": correct.main, "speed": speed.main, "sweep": sweep.main}
NEEDS_GPU = {"captures", "host_calls", "gpu_tests"}


def small() -> Machine:
    return Machine(device=CPU, small=True, ends_s=math.inf)


@pytest.fixture
def printed(
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """The output of a part, which is also its result and its file in $OUT."""
    monkeypatch.setenv("OUT", str(tmp_path))
    part = request.param
    returned = PARTS[part](SMALL)
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((tmp_path / f"gpu_{part}.json").read_text())
    assert document == json.loads(json.dumps(returned))
    assert (tmp_path / f"gpu_{part}.md").read_text() == page(document)
    return document


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("printed", ["correct"], indirect=True)
def test_the_gpu_correctness_sections_pass(printed: Any) -> None:
    sections = printed["sections"]
    assert _without_figures(sections) == NEEDS_GPU
    ways = [way for ways in sections["identity"]["models"].values() for way in ways]
    refused = [way["forward"] for way in ways if "refused" in way]
    ran = [way for way in ways if "refused" not in way]
    assert refused == ["fused, triton"] * 2
    assert len(ran) == 24
    assert all(way["equal"] == way["of"] == 4 for way in ran)
    together = sections["together_and_alone"]
    assert together["greedy"] == together["sampled"] == {"equal": 16, "of": 16}
    paused = sections["catch_up"]
    assert paused["equal_accepted"]
    assert paused["equal_text"]
    assert sum(paused["accepted_after_pause"]) > 0
    assert (sections["memory"]["num_complete"], sections["memory"]["in_turn"]) == (12, True)
    ways = sections["sampling_law"]["ways"]
    wrong = ways.pop("wrong: keeps every draft, K=3")
    assert wrong["p"] < 1e-6
    assert all(way["p"] > 1e-3 for way in ways.values())  # fixed seeds: 3 in 1000 by chance
    distances = sections["fused_is_stock"]["distance"]
    assert max(distances["Qwen2, float32"]["fused"].values()) < 1e-5
    assert 1e-4 < max(distances["Qwen2, bfloat16"]["fused"].values()) < 0.1
    claims = [claim for section in sections.values() for claim in section.get("claims", ())]
    assert len(claims) == 21
    assert all(claim["holds"] for claim in claims if claim["reason"] is None)
    assert {claim["reason"] for claim in claims} == {None, machine.NO_GPU}
    drafters = sections["one_graph"]["drafters"]
    assert {method.name for method in all_methods()} < set(drafters)
    assert all(drafter["equal"] == drafter["of"] == 2 for drafter in drafters.values())
    assert "figures show nothing" in page(printed)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("printed", ["speed"], indirect=True)
def test_the_gpu_speed_part_compares_like_with_like(printed: Any) -> None:
    sections = printed["sections"]
    assert _without_figures(sections) == {"beside_vllm"}
    for shares in sections["plain_steps"]["shares"]:
        assert {"products", "attention", "gaps"} < set(shares["classes"])
        assert shares["share_of_read_bandwidth"] is None
        assert sum(shares["classes"].values()) >= shares["round_s"] * 0.999
    assert [p["k"] for p in sections["plain_steps"]["points"]] == [0, 0]
    sampled = {entry["name"]: entry for entry in sections["sampled"]["ways"]}
    assert len(sampled) == 6
    assert all(entry["tokens_per_round"] == 1 for name, entry in sampled.items() if "K=0" in name)
    assert [entry["name"] for entry in sections["by_choosing"]["ways"]][-1] == "auto"
    for row in sections["attention_table"]["measured"]:
        assert all(isinstance(cell, float) for cell in row["cells"].values())
    assert "flash" in sections["attention_table"]["refused"]
    assert len(sections["product_table"]["table"]["rows"]) == 5
    assert all(None not in row for row in sections["product_table"]["table"]["rows"])
    claims = [claim for section in sections.values() for claim in section.get("claims", ())]
    assert len(claims) == 4
    assert all(claim["reason"] == machine.NO_GPU for claim in claims)
    for section in ("beside_transformers", "embedded_pair"):
        pairs = {(ratio["own"], ratio["peer"]) for ratio in sections[section]["ratios"]}
        assert pairs == {
            ("builtin K=0", "generate"),
            ("builtin K=4", "assisted K=4"),
            ("builtin K=4", "assisted_default K=20"),
        }
    (static,) = sections["generate_static"]["ratios"]
    assert (static["own"], static["peer"]) == ("builtin K=0", "generate_static")
    equal = [finish["equal_texts"] for finish in sections["embedded_pair"]["finishes"]]
    assert equal == [1.0] * 5
    assert sections["large_pair"]["synthetic_acceptance"] == 0.7


@pytest.mark.slow
@pytest.mark.parametrize("printed", ["sweep"], indirect=True)
def test_sweep_changes_one_factor_at_a_time(printed: Any) -> None:
    sections = printed["sections"]
    assert not _without_figures(sections)
    by_k = [(point["k"], point["num_rows"]) for point in sections["K"]["points"]]
    assert by_k == [(0, 1), (1, 1), (2, 1)]
    rows = [(point["k"], point["num_rows"]) for point in sections["rows"]["points"]]
    assert rows == [(4, 2), (0, 2), (4, 1), (0, 1)]
    points = [point for section in sections.values() for point in section["points"]]
    assert all(point["tokens_per_round"] == 1 for point in points if point["k"] == 0)
    assert all(point["bandwidth_utilization"] is None for point in points)


def _without_figures(sections: dict[str, Any]) -> set[str]:
    return {name for name, section in sections.items() if "reason" in section}


def test_a_refusal_is_recorded_and_the_rest_continues(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(_: Machine) -> machine.Json:
        raise torch.OutOfMemoryError("no room")

    document = machine.run_part("x", {"a": refuse, "b": lambda _: {"found": 1}}, SMALL)

    assert document["sections"]["a"]["reason"] == "OutOfMemoryError: no room"
    assert document["sections"]["b"]["found"] == 1
    capsys.readouterr()


def test_sections_measured_before_a_bug_are_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(_: Machine) -> machine.Json:
        raise KeyError("bug")

    sections = {"a": lambda _: {"found": 1}, "b": broken, "c": lambda _: {"found": 2}}
    with pytest.raises(KeyError):
        machine.run_part("x", sections, SMALL)
    kept = json.loads(capsys.readouterr().out)["sections"]
    assert (kept["a"]["found"], kept["c"]["found"]) == (1, 2)
    assert "KeyError" in kept["b"]["reason"]


def test_sections_skipped_at_the_time_limit_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    document = machine.run_part("x", {"a": lambda _: {}}, [*SMALL, "--limit-s", "0"])
    assert document["sections"]["a"] == {"value": None, "reason": "no time was left for it"}
    late = Machine(device=CPU, small=True, ends_s=time.monotonic() - 1)
    star = sweep.open_star(late, models.shape("llama-8b", late), models.shape("llama-1b", late))
    decoder = star.decoder()
    section = star.measured({f"K={k}": star.point(decoder, k) for k in (0, 1)})
    assert [point["name"] for point in section["points"]] == ["K=0"]
    assert section["left_out_for_time"] == ["K=1"]
    capsys.readouterr()


def test_gpu_sections_that_compile_longest_run_last() -> None:
    order = list(correct.SECTIONS)
    early = ("identity", "sampling_law", "host_calls", "failed_captures")
    late = ("own_kernels", "other_cases")  # other heads and dtypes: each compiles its kernels
    assert max(map(order.index, early)) < min(map(order.index, late))
    order = list(speed.sections())
    early = ("product_table", "beside_transformers")
    assert max(map(order.index, early)) < order.index("generate_static")


def test_each_section_prints_its_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    document = machine.run_part("x", {"a": lambda _: {}}, SMALL)
    assert f"a: {document['sections']['a']['seconds']:g} s\n" in capsys.readouterr().err


def test_a_large_pair_reports_the_needed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full shapes as skeletons, on a GPU with 80 GiB."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (78 * 2**30, 80 * 2**30))
    card = Machine(device=torch.device("cuda"), small=False, ends_s=math.inf)
    section = speed.large_pair(card)
    assert "136.7 GiB" in section["reason"]  # 133.7 of weights and 3
    assert "78.0 GiB" in section["reason"]


def test_requests_without_time_are_listed() -> None:
    late = Machine(device=CPU, small=True, ends_s=time.monotonic() - 1)
    (pairing,) = load_pairings(shipped("pairings.yaml")).select(["demo/draft"])
    ours, *_ = speed._candidates(late, pairing.target, pairing.drafter, ModelPool(CPU, "float32"))
    requests = [request_of([1, 2, 3], 4) for _ in range(3)]
    comparison = compare_engines([ours], requests, late)
    assert comparison["left_out_for_time"] == ["request 2", "request 3"]


def test_the_draft_agrees_at_the_requested_rate_and_shares_no_memory() -> None:
    target = models.make_model(models.medium(4, small()), torch.float32, CPU)
    draft = models.make_draft(target, 1)
    scale, agreed = models.agree(target, draft, 0.7, num_tokens=200)

    assert 0 < scale < 1
    assert 0.6 < agreed < 0.8
    pointers = {p.data_ptr() for p in target.parameters()}
    assert not pointers & {p.data_ptr() for p in draft.parameters()}
    first = target.model.layers[0].mlp.down_proj.weight
    assert torch.equal(first, draft.model.layers[0].mlp.down_proj.weight)


def test_read_bytes_exclude_the_embedding_table() -> None:
    config = models.medium(1, small())
    untied = models.make_model(config, torch.float32, CPU)
    table = 512 * 64 * 4
    everything = sum(p.nbytes for p in untied.parameters())
    assert models.read_bytes(untied) == everything - table
    config.tie_word_embeddings = True
    tied = models.make_model(config, torch.float32, CPU)
    assert models.read_bytes(tied) == everything - table  # one matrix, and it is the output's


def test_a_distribution_that_lacks_a_token_is_detected() -> None:
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(
        0, distribution.VOCAB_SIZE, (5000, distribution.NUM_TOKENS), generator=generator
    )
    flat = torch.full(
        (distribution.VOCAB_SIZE,) * 3, distribution.VOCAB_SIZE**-3.0, dtype=torch.float64
    )
    assert distribution.p_value(texts, flat) > 1e-3
    assert distribution.p_value(texts.clamp(max=distribution.VOCAB_SIZE - 2), flat) < 1e-6


def test_the_sync_watch_is_off_by_default() -> None:
    made: list[Watched] = []

    def watching(*parts: object) -> Watched:
        made.append(Watched(Launcher(*parts)))  # type: ignore[arg-type]
        return made[-1]

    pair = medium_pair(small(), torch.float32, layers=2)
    decoder = Pair(machine=small(), target=pair.target).decoder(make_launcher=watching)
    decoder.decode(pair.requests(1, prompt=4, new_tokens=4), GREEDY, k=0)
    assert made[0].num_launches == 0


def _imported_by(names: Iterable[str]) -> set[str]:
    """All modules that these import on import, including those of their packages."""
    modules: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in modules:
            continue
        modules.add(name)
        path = ROOT / name.replace(".", "/")
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name.split(".")[0] not in ("benchmarks", "specbench") or not file.exists():
            continue
        waiting += {name.rpartition(".")[0]} - {""}
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
    return modules


def test_the_gpu_suite_does_not_import_cli_and_report_packages() -> None:
    modules = _imported_by(f"benchmarks.gpu_suite.{part}" for part in PARTS)
    roots = {name.split(".")[0] for name in modules}
    assert {"torch", "transformers", "specbench"} < roots
    assert not roots & {"typer", "rich", "pydantic", "pandas", "matplotlib", "pytest", "tests"}
    assert "pydantic" in {name.split(".")[0] for name in _imported_by(["specbench.runs.reader"])}
