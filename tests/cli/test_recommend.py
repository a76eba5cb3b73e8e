"""`specbench recommend` over a synthetic run; a noisy run's warning with each recommended K."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.records import Kind
from specbench.runs import SCHEMA_VERSION, create_run, load_run
from specbench.words.answers import noise_lines
from tests.cli.calls import specbench
from tests.cli.test_check import WISH, keep
from tests.report.served_runs import served_run
from tests.report.stored_runs import renamed, stored_run
from tests.settings.flat_settings import changed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    stored = served_run()
    run = replace(stored.run, run_id="served", schema_version=SCHEMA_VERSION)
    with create_run(folder / "reports", run) as writer:
        for record in (*stored.memory, *stored.engines, *stored.blocks):
            writer.append(record)
        writer.finish()
    return folder


def test_recommend_uses_the_newest_run_and_latency_by_default(folder: Path) -> None:
    ran = specbench("recommend", cwd=folder)
    assert ran.code == 3, ran.err  # one of its questions is open
    assert ": undecided: " in ran.out
    assert "chosen" in ran.out
    assert ran.out.splitlines()[0] == "run served"
    assert "for all workloads" in ran.out


def test_an_slo_of_the_run_does_not_affect_speed_objectives(folder: Path) -> None:
    stored = load_run("served", folder / "reports")
    settings = changed(stored.run.settings, slo={"ttft_s": 10.0, "request_latency_s": 1.0})
    run = replace(stored.run, run_id="limited", settings=settings)
    with create_run(folder / "limited", run) as writer:
        for record in (*stored.memory, *stored.engines, *stored.blocks):
            writer.append(record)
        writer.finish()
    args = ("--objective", "throughput", "--json")
    plain = json.loads(specbench("recommend", "served", *args, cwd=folder).out)
    limited = json.loads(specbench("recommend limited --runs-dir limited", *args, cwd=folder).out)
    assert limited["picks"] == plain["picks"]
    report = json.loads(specbench("report limited --runs-dir limited --json", cwd=folder).out)
    assert any("requests within" in decision["text"] for decision in report["decisions"])
    slo = ("--slo", "ttft=10s,request_latency=1s")
    given = json.loads(specbench("report", "served", *slo, "--json", cwd=folder).out)
    assert given["decisions"] == report["decisions"]
    goodput = ("--objective", "goodput", "--json")
    by_run = specbench("recommend limited --runs-dir limited", *goodput, cwd=folder)
    by_option = specbench("recommend", "served", *goodput, *slo, cwd=folder)
    assert json.loads(by_option.out)["picks"] == json.loads(by_run.out)["picks"]
    rates = [
        cell["metrics"]["goodput_requests_per_s"]
        or 0.5 * cell["metrics"]["requests_per_s"] / cell["num_requests"]
        for cell in report["cells"]
        if not cell["num_speculative_tokens"]
    ]
    for pick in json.loads(by_run.out)["picks"]:
        for candidate in pick["candidates"]:
            assert candidate["value"] == candidate["requests_per_s"]
            if not candidate["num_speculative_tokens"]:
                assert any(candidate["value"] == pytest.approx(rate) for rate in rates)
        (best, *rest) = pick["candidates"]
        assert all(best["value"] >= 0.99 * other["requests_per_s_low"] for other in rest)


def test_recommend_by_cost_reports_the_price_per_million_tokens(folder: Path) -> None:
    ran = specbench("recommend served --objective cost --price-per-hour 2 --json", cwd=folder)
    document = json.loads(ran.out)
    for pick in document["picks"]:
        best = pick["best"]
        assert best["value"] == pytest.approx(2 / (best["tokens_per_s"] * 3600) * 1e6)


def test_recommend_exits_1_if_no_configuration_meets_the_limits(folder: Path) -> None:
    ran = specbench("recommend served --slo tpot=1us", cwd=folder)
    assert ran.code == 1, ran.err
    assert "no configuration" in ran.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--objective speed", "latency, throughput, goodput, cost"),
        ("served --objective goodput", "ttft=200ms,tpot=20ms"),
        ("served --objective goodput --slo tpot_p95=20ms", "request_latency, units"),
        ("--objective cost", "--price-per-hour"),
        ("--price-per-hour 2.50", "leave it out"),
        ("--slo tpot=fast", "tpot=30ms"),
        ("--slo tpot=30ms,tpot=20ms", "tpot twice"),
        ("-w poetry", "the run only measured"),
        ("--concurrency 3", "the run only measured 1, 2, 4"),
        ("no-such-run", "no run"),
    ],
)
def test_recommend_refuses_bad_arguments_with_a_hint(folder: Path, arguments, words) -> None:
    ran = specbench(f"recommend {arguments}", cwd=folder)
    assert ran.code == 2
    assert words in ran.err
    assert "Traceback" not in ran.err


BUSY = (Kind.LOAD(load=5.2, cores=(2, "core")),)
(EARLY,) = noise_lines(BUSY)
ADVICE = (
    ("export", "demo/draft", "--engine", "vllm", "--run"),
    ("export", "demo/draft", "--engine", "vllm", "--json", "--run"),
    ("recommend",),
    ("recommend", "--json"),
)


@pytest.fixture(scope="module")
def noisy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("noisy")
    usual = stored_run(WISH)
    keep(folder, "quiet", usual)
    keep(folder, "noisy", replace(usual, run=replace(usual.run, busy=BUSY)))
    return folder


@pytest.mark.parametrize("arguments", ADVICE, ids=" ".join)
def test_the_warning_of_the_report_comes_with_advice(noisy_folder: Path, arguments) -> None:
    quiet = specbench(*arguments, "quiet", cwd=noisy_folder)
    assert quiet.code == 0
    assert EARLY not in quiet.out + quiet.err
    noisy = specbench(*arguments, "noisy", cwd=noisy_folder)
    assert noisy.code == quiet.code
    assert (noisy.out + noisy.err).count(EARLY) == 1
    assert specbench("report", "noisy", cwd=noisy_folder).code == 0
    assert EARLY in (noisy_folder / "reports" / "noisy" / "report.md").read_text(encoding="utf-8")


def test_the_noise_warning_is_a_comment_before_the_exported_command(noisy_folder: Path) -> None:
    ran = specbench("export demo/draft --engine vllm --run noisy", cwd=noisy_folder)
    *lines, command = ran.out.splitlines()
    assert lines[2].startswith(f"# {EARLY}; ")
    assert command.startswith("vllm serve")


@pytest.mark.parametrize("word", ["code", "demo code"])
@pytest.mark.parametrize("command", ["recommend", "export demo/draft --engine vllm", "history"])
def test_a_workload_is_named_as_for_the_run(command: str, word: str, tmp_path: Path) -> None:
    stored = stored_run(replace(WISH, workloads=("code", "chat")))
    keep(tmp_path, "made", renamed(stored, "code", "demo code"))
    ran = specbench(*command.split(), "-w", word, "--json", cwd=tmp_path)
    assert ran.code in (0, 3), ran.err
    assert '"demo code' in ran.out
    assert '"chat' not in ran.out
    assert specbench(*command.split(), "-w", "creative", "--json", cwd=tmp_path).code == 2


def test_a_workload_by_a_part_of_its_name_may_have_no_answer(tmp_path: Path) -> None:
    stored = renamed(stored_run(replace(WISH, workloads=("code", "chat"))), "code", "demo code")
    (plain,) = (
        key.id for key in stored.run.keys if key.is_baseline and key.condition.workload != "chat"
    )
    blocks = tuple(
        replace(block, requests=tuple(r for r in block.requests if r.cell_id != plain))
        for block in stored.blocks
    )
    keep(tmp_path, "made", replace(stored, blocks=blocks))
    ran = specbench("recommend -w chat -w code", cwd=tmp_path)
    assert "demo code: no answer" in ran.out
    assert ran.code == 3


def test_without_a_valid_k_0_the_json_has_no_picks(tmp_path: Path) -> None:
    keep(tmp_path, "made", stored_run(replace(WISH, device="gpu", throttled_k=0)))
    ran = specbench("recommend --json", cwd=tmp_path)
    assert ran.code == 3
    document = json.loads(ran.out)
    assert document["picks"] == []
    assert document["without_recommendation"]["code"]["kind"] == Kind.NO_VALID_BASELINE
    text = specbench("recommend", cwd=tmp_path)
    assert (text.code, text.out.startswith("undecided: run made")) == (3, True)
