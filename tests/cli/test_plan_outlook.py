"""`--dry-run` estimates a plan's time, and its memory in the dtype of this device."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specbench import demo
from specbench.bench.budget import block_seconds
from specbench.bench.expected_time import expected_time
from specbench.bench.planning import plan_run
from specbench.cli.plan_table import PlanOutlook, time_lines
from specbench.fit.memory_plan import DeploymentSpec
from specbench.inputs.config import load_pairings
from specbench.probes import gpu
from specbench.runs import SCHEMA_VERSION, create_run
from specbench.stats.machine_noise import MachineKind, least_margin
from tests.bench.fake_runs import write_prompts
from tests.cli.calls import specbench
from tests.probes.fake_nvml import FakeGpu, FakeNvml
from tests.report.served_runs import served_run
from tests.report.stored_runs import keep
from tests.settings.flat_settings import settings_of

GIB = 2**30
DEMO_MODELS = Path(demo.__file__).parent / "models"


def outlook(folder: Path, *words: str, device: str = "cpu") -> dict[str, Any]:
    ran = specbench("run", *words, "--dry-run", "--json", "--device", device, cwd=folder)
    assert ran.code == 0, ran.err
    (estimate,) = json.loads(ran.out)["estimates"]
    return estimate


def test_memory_is_that_of_the_dtype_that_this_device_takes(tmp_path: Path) -> None:
    words = ("shape-8b", "-w", "chat")
    plain, half = outlook(tmp_path, *words), outlook(tmp_path, *words, "--dtype", "bfloat16")
    assert (plain["dtype"], half["dtype"]) == ("float32", "bfloat16")
    assert plain["memory_bytes"] == pytest.approx(34.8 * GIB, rel=0.01)
    assert half["memory_bytes"] == pytest.approx(17.4 * GIB, rel=0.01)
    assert plain["seconds"] > 1.5 * half["seconds"]


def test_a_budget_that_is_too_short_is_named_with_the_shortest_that_is_not(tmp_path: Path) -> None:
    words = ("demo/draft", "-k", "4", "-w", "code", "--concurrency", "1,4")
    short = outlook(tmp_path, *words, "--time-budget", "10s")
    least = short["least_budget_s"]
    assert least > 10
    assert short["open_settings"] == ["one request at a time", "4 concurrent requests"]
    almost = outlook(tmp_path, *words, "--time-budget", f"{least - 1:.0f}s")
    assert almost["least_budget_s"] == pytest.approx(least)
    assert almost["open_settings"] == ["4 concurrent requests"]  # its passes come last
    for enough in (("--time-budget", f"{least + 1:.0f}s"), ()):
        planned = outlook(tmp_path, *words, *enough)
        assert (planned["least_budget_s"], planned["open_settings"]) == (None, [])


def test_targets_share_the_budget(tmp_path: Path) -> None:
    words = ("demo/draft", "-k", "4", "-w", "code", "--time-budget", "10s")
    alone = outlook(tmp_path, *words)
    options = ("--dry-run", "--json", "--device", "cpu")
    both = specbench("run", *words, "shape-8b", *options, cwd=tmp_path)
    demo, _ = json.loads(both.out)["estimates"]
    assert alone["seconds"] - demo["seconds"] == pytest.approx(5)
    assert demo["least_budget_s"] == pytest.approx(2 * alone["least_budget_s"])


def test_a_margin_that_the_machine_alone_exceeds_is_refused(tmp_path: Path) -> None:
    least = least_margin(MachineKind.QUIET_CPU, num_requests=3 * 40)  # repeats and prompts
    words = ("run", "demo/draft", "--device", "cpu", "--margin-of-error")
    assert not specbench(*words, f"{least + 0.001:.3f}", "--dry-run", cwd=tmp_path).err
    refused = specbench(*words, f"{least / 1.9:.4f}", cwd=tmp_path)
    planned = specbench(*words, f"{least / 1.9:.4f}", "--dry-run", cwd=tmp_path)
    assert (planned.code, "--margin-of-error" in planned.err) == (0, True)
    assert refused.code == 2
    assert " 4 runs " in refused.err.replace("\n", " ")  # 1.9 squared is 3.6


def test_the_dtype_of_a_gpu_that_emulates_bfloat16_is_float16(tmp_path, monkeypatch) -> None:
    """In the plan of this process, of a server, and of `pair`."""
    t4 = FakeGpu(name="Tesla T4", total=64 * GIB, used=0, capability=(7, 5))
    opened = partial(gpu.open_probe, nvml=FakeNvml(t4), environment={})
    monkeypatch.setattr(gpu, "open_probe", opened)
    monkeypatch.setattr(gpu, "_GPU_FILES", ("/",))

    def planned(*words: str) -> dict[str, Any]:
        ran = specbench(*words, "--dry-run", "--json", cwd=tmp_path)
        assert ran.code == 0, ran.err
        document: dict[str, Any] = json.loads(ran.out)
        return document

    (here,) = planned("run", "shape-8b", "-w", "chat", "--device", "cuda")["estimates"]
    words = ("sweep-k", "demo/draft", "-w", "chat", "--engine", "vllm", "--device", "cuda")
    (server,) = planned(*words)["estimates"]
    assert (here["dtype"], server["dtype"]) == ("float16", "float16")
    for place in (("--device", "cuda"), ("--gpu", "T4")):
        document = planned("pair", "demo", "--draft", "ngram", *place)
        assert document["machine"]["compute_capability"] == [7, 5]
        assert document["target_alone"]["dtype"] == "float16"
        assert any("float16" in note for note in document["target_alone"]["notes"])
    assert "float16" in specbench("pair demo --gpu V100-32GB --dry-run", cwd=tmp_path).out


def test_a_plan_names_the_models_without_which_memory_is_unknown(tmp_path: Path) -> None:
    words = ("run", "--target", "demo", "--draft", "owner/far-away", "-w", "chat", "--dry-run")
    ran = specbench(*words, "--json", "--device", "cpu", cwd=tmp_path)
    (estimate,) = json.loads(ran.out)["estimates"]
    assert estimate["memory_bytes"] is None
    assert estimate["memory_unknown_because"].endswith(": owner/far-away")
    text = " ".join(specbench(*words, "--device", "cpu", cwd=tmp_path).out.split())
    assert estimate["memory_unknown_because"] in text
    assert outlook(tmp_path, "demo/draft", "-w", "chat")["memory_unknown_because"] is None


def test_time_grows_with_the_plan_and_ends_with_the_budget(tmp_path: Path) -> None:
    few = outlook(tmp_path, "demo/draft", "-w", "chat", "--num-prompts", "5", "-k", "4")
    more = outlook(tmp_path, "demo/draft", "-w", "chat", "--num-prompts", "10", "-k", "2,4,6")
    begin_s = 15
    assert (more["seconds"] - begin_s) == pytest.approx(4 * (few["seconds"] - begin_s), rel=0.05)
    assert not few["seconds_are_measured"]
    short = outlook(tmp_path, "demo/draft", "-w", "chat", "--time-budget", "5s")
    assert short["is_ended_by_budget"]
    assert short["seconds"] == pytest.approx(begin_s + 5, rel=0.05)
    ran = specbench("run demo/draft -w chat --dry-run --device cpu", cwd=tmp_path)
    assert "demo: about " in ran.out
    words = " ".join(ran.out.split())  # line breaks depend on the free memory's digits
    assert re.search(r"\(estimated from model sizes; .*a factor of 3\)", words)
    assert re.search("MiB .*float32, of ", words)


def test_time_counts_the_requests_of_a_pass_rather_than_prompts(tmp_path: Path) -> None:
    words = ("demo/draft", "-w", "chat", "-k", "4", "--concurrency", "4", "--num-prompts", "4")
    few, more = (outlook(tmp_path, *words, "--num-requests", num) for num in ("8", "32"))
    begin_s = 15
    assert (more["seconds"] - begin_s) == pytest.approx(4 * (few["seconds"] - begin_s), rel=0.05)


def test_an_earlier_run_gives_the_time_per_token(tmp_path: Path) -> None:
    stored = served_run()
    run = replace(stored.run, run_id="earlier", schema_version=SCHEMA_VERSION)
    with create_run(tmp_path / "reports", run) as writer:
        for record in stored.blocks:
            writer.append(record)
        writer.finish()
    estimate = outlook(tmp_path, "demo/draft", "-w", "chat", "--num-prompts", "10", "-k", "4")
    assert estimate["seconds_are_measured"]
    alone = {key.id for key in stored.run.keys if key.condition.batch_size == 1}
    spent = (item for block in stored.blocks for item in block_seconds(block).items())
    spent_s = sum(seconds for cell_id, seconds in spent if cell_id in alone)
    requests = (request for block in stored.blocks for request in block.requests)
    num_tokens = sum(r.num_output_tokens for r in requests if r.cell_id in alone)
    plan = json.loads(
        specbench(
            "run demo/draft -w chat --num-prompts 10 -k 4 --max-new-tokens 100 --dry-run --json "
            "--device cpu",
            cwd=tmp_path,
        ).out
    )
    turns = 1.0  # the demo's chat has some with more
    least = 2 * 10 * turns * 100 * spent_s / num_tokens
    assert least < plan["estimates"][0]["seconds"] < 15.1 + 1.3 * 2.5 * least


@pytest.mark.parametrize(
    ("words", "is_measured"),
    [
        ((), True),
        (("--concurrency", "1,4"), True),
        (("--concurrency", "1,8"), False),  # 1, 2 and 4 were measured
        (("--dtype", "bfloat16"), False),
    ],
)
def test_an_earlier_run_of_another_batch_size_or_dtype_gives_no_time(
    tmp_path: Path, words: tuple[str, ...], is_measured: bool
) -> None:
    keep(tmp_path / "reports", "earlier", served_run())
    estimate = outlook(tmp_path, "demo/draft", "-w", "chat", "-k", "4", *words)
    assert estimate["seconds_are_measured"] == is_measured


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Plants a GPU by its name, instead of any that was planted before."""
    open_probe = gpu.open_probe
    monkeypatch.setattr(gpu, "_GPU_FILES", ("/",))

    def plant(name: str) -> None:
        nvml = FakeNvml(FakeGpu(name=name, total=64 * GIB, used=0))
        monkeypatch.setattr(gpu, "open_probe", partial(open_probe, nvml=nvml, environment={}))

    return plant


def test_an_earlier_run_on_another_card_gives_no_time(
    tmp_path: Path, planted: Callable[[str], None]
) -> None:
    stored = served_run()
    environment = replace(stored.run.environment, device="cuda:0", gpu="NVIDIA L4")
    run = replace(stored.run, environment=environment)
    keep(tmp_path / "reports", "earlier", replace(stored, run=run))
    words = ("demo/draft", "-w", "chat", "-k", "4", "--dtype", "float32")
    for name, is_measured in (("NVIDIA L4", True), ("NVIDIA H200", False)):
        planted(name)
        assert outlook(tmp_path, *words, device="cuda")["seconds_are_measured"] == is_measured


def test_a_card_of_unknown_bandwidth_is_not_as_slow_as_a_cpu(
    tmp_path: Path, planted: Callable[[str], None]
) -> None:
    words = ("shape-8b", "-w", "chat", "--num-prompts", "5", "-k", "4")
    planted("NVIDIA GeForce RTX 4090")
    listed = outlook(tmp_path, *words, device="cuda")
    planted("NVIDIA GeForce RTX 4070")
    other, on_cpu = (outlook(tmp_path, *words, device=device) for device in ("cuda", "cpu"))
    assert listed["seconds"] < other["seconds"] < 3 * listed["seconds"] < on_cpu["seconds"]
    assert (listed["tolerance"], other["tolerance"]) == (3, 10)
    out = specbench("run", *words, "--dry-run", "--device", "cuda", cwd=tmp_path).out
    assert "off by a factor of 10)" in " ".join(out.split())


def test_only_the_drafters_that_are_measured_take_time() -> None:
    names = ("demo/draft", "demo/ngram", "demo/eagle3")
    pairings = load_pairings().select(names)

    def seconds(num: int, **changes: Any) -> float:
        settings = settings_of(
            pairings=names[:num],
            workloads=("chat",),
            num_speculative_tokens=(0, 2, 4),
            forecast=True,
            **changes,
        )
        (plan,) = plan_run(settings, pairings[:num]).targets
        planned = expected_time(plan, DeploymentSpec(device="cpu"), None)
        assert planned.seconds is not None
        return planned.seconds

    assert seconds(3, most_drafters=1) == pytest.approx(seconds(1), rel=1e-3)
    assert seconds(3, most_drafters=9) == pytest.approx(seconds(3))
    assert seconds(3) > 1.5 * seconds(1)


def test_a_failed_run_gives_no_estimate(tmp_path: Path) -> None:
    stored = served_run()
    failed = [
        replace(block, requests=tuple(replace(r, error="no") for r in block.requests))
        for block in stored.blocks
    ]
    run = replace(stored.run, run_id="earlier", schema_version=SCHEMA_VERSION)
    with create_run(tmp_path / "reports", run) as writer:
        for block in failed:
            writer.append(block)
        writer.finish()
    assert not outlook(tmp_path, "demo/draft", "-w", "chat", "-k", "4")["seconds_are_measured"]


def test_a_server_uses_the_checkpoints_dtype_and_llama_cpp_starts_quickly(tmp_path: Path) -> None:
    words = ("run", "demo/draft", "-w", "chat", "-k", "4", "--dry-run", "--json")
    seconds = {}
    for engine in ("vllm", "llama_cpp"):
        plan = json.loads(specbench(*words, "--engine", engine, cwd=tmp_path).out)
        (memory,) = plan["estimates"]
        assert (memory["server"], memory["dtype"], memory["seconds"]) == (engine, "bfloat16", None)
        assert memory["memory_bytes"] > 0
        (sessions,) = plan["sessions"]
        seconds[engine] = sessions["seconds"]
    assert seconds["vllm"] - seconds["llama_cpp"] > 600
    ran = specbench(*words[:-1], "--engine", "llama_cpp", cwd=tmp_path)
    assert re.search("demo .*llama_cpp, per server: ", ran.out)


def test_prompts_that_exceed_the_context_are_counted_in_a_plan_and_not_planned(
    tmp_path: Path,
) -> None:
    """Lengths count in tokens: 3,200 characters of one word are far fewer."""
    long, short = "short " * 3000, "short " * 500
    rows = [{"turns": [text]} for text in (long, short, "Hello", long)]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ("run", "demo/draft", "-w", "./own.jsonl", "--max-new-tokens", "24", "--dry-run")
    ran = specbench(*words, "--device", "cpu", "--json", cwd=tmp_path)
    assert ran.code == 0
    plan = json.loads(ran.out)
    assert {cell["num_prompts"] for cell in plan["cells"]} == {2}
    (warning,) = (warning["text"] for warning in plan["warnings"])
    for value in ("own.jsonl", "left out", "2 of 4 prompts", "1,024"):
        assert value in warning


def test_prompts_that_may_exceed_a_servers_context_are_planned(
    tmp_path: Path,
) -> None:
    """Only the server has its chat template; here its tokens are an estimate."""
    write_prompts(tmp_path / "own.jsonl", ["short " * 3000] * 2)
    server = ("--engine", "vllm", "--engine-command", "true {args}", "-k", "2")
    words = ("run", "demo/draft", "-w", "./own.jsonl", *server, "--dry-run", "--json")
    plan = json.loads(specbench(*words, cwd=tmp_path).out)
    assert {cell["num_prompts"] for cell in plan["cells"]} == {2}
    (warning,) = (warning["text"] for warning in plan["warnings"])
    assert "2 of 2 prompts" in warning
    assert "left out" not in warning


def test_the_plan_reports_a_target_without_a_chat_template(tmp_path: Path) -> None:
    shutil.copytree(DEMO_MODELS / "target", tmp_path / "bare")
    words = ("run", "--target", "./bare", "--draft", "demo:draft", "-w", "chat", "--dry-run")
    assert "chat template" not in specbench(*words, "--device", "cpu", cwd=tmp_path).err
    (tmp_path / "bare" / "chat_template.jinja").unlink()
    err = specbench(*words, "--device", "cpu", cwd=tmp_path).err
    assert re.search("bare .*chat template", err)

    (tmp_path / "pairings.yaml").write_text(
        "targets: {mine: {model: ./bare, drafters: {n: {method: ngram}}}}\n"
    )
    ran = specbench("doctor mine/n --json", cwd=tmp_path)
    (row,) = json.loads(ran.out)["pairings"]
    assert (ran.code, row["ready"]) == (0, True)
    assert any("no chat template" in note for note in row["notes"])


def test_a_plan_wraps_long_names_without_truncation(tmp_path: Path) -> None:
    name = "a-target-with-a-name-of-some-length"
    (tmp_path / "pairings.yaml").write_text(
        f"targets:\n  {name}:\n    model: demo:target\n    drafters:\n      n: {{method: ngram}}\n"
    )
    ran = specbench("run", f"{name}/n", "-w", "chat", "--dry-run", "--device", "cpu", cwd=tmp_path)
    folded = "".join(line.split("  ")[0].strip() for line in ran.out.splitlines())
    assert f"{name}/n" in folded
    assert "…" not in ran.out


def test_any_axis_in_which_rows_differ_has_a_column(tmp_path: Path) -> None:
    planned = specbench(
        *("sweep-k", "demo/draft", "-w", "code", "-k", "4", "--dry-run", "--device", "cpu"),
        *("--draft-p-min", "0,0.6"),
        cwd=tmp_path,
    ).out.splitlines()
    heading = next(line for line in planned if line.startswith("pairing"))
    assert heading.split() == ["pairing", "workload", "method", "p_min", "K"]
    start = heading.index("p_min")
    rows = planned[planned.index(heading) + 1 :][:3]
    assert [row[start : start + 5].strip() for row in rows] == ["", "", "0.6"]


def test_the_plan_states_the_expected_time_and_its_limit() -> None:
    whole = PlanOutlook(
        target="big",
        dtype="float32",
        seconds=600.0,
        seconds_are_measured=True,
        is_ended_by_budget=False,
        memory_bytes=None,
        free_bytes=None,
    )
    (line,) = time_lines([whole])
    assert line.startswith("big: about 10 minutes")
    assert "--time-budget" in line  # what would shorten it
    (limited,) = time_lines([whole], is_limited=True)  # it ends before the budget does
    assert "--time-budget" not in limited
    (ended,) = time_lines([replace(whole, seconds=75.0, is_ended_by_budget=True)])
    assert "75 s" in ended
    assert "--time-budget" in ended
    assert list(time_lines([replace(whole, seconds=None)])) == []
