"""`sweep-k --forecast` and `--step-times` on the tiny pair, through to the answer."""

import json
import re
from pathlib import Path

import pytest

from specbench.report.document import build_document
from specbench.runs import load_run
from tests.bench.served.running import is_warm_up
from tests.cli.calls import CommandResult, specbench
from tests.cli.conftest import SMALL
from tests.servers.fake_server import FakeServer, serving

pytestmark = pytest.mark.slow  # whole runs

COSTS = "k,cost,unit,engine\n0,10,ms,vllm 0.32.0\n1,12,ms,vllm 0.32.0\n3,15,ms,vllm 0.32.0\n"
ASKED = ("sweep-k", "tiny/draft", "-w", "prompts.jsonl", *SMALL)


@pytest.fixture(scope="session")
def forecast(tiny: Path) -> CommandResult:
    return specbench(*ASKED, "-k", "0..3", "--forecast", "--runs-dir", "forecasts", cwd=tiny)


def test_the_answer_of_a_forecast_run_comes_from_measurements(tiny, forecast):
    assert forecast.is_complete, forecast.err
    assert "Forecast against measured" in forecast.out
    stored = load_run("latest", tiny / "forecasts")
    (made,) = stored.forecasts
    measured = {
        plan.key.draft.k
        for plan in stored.run.cells
        if any(plan.key.id in block.order for block in stored.blocks)
    }
    assert measured == {0, *made.to_measure}
    assert len(stored.traces) == 6
    assert {cost.num_speculative_tokens for cost in stored.round_costs} == {0, 1, 2, 3}


def test_at_temperature_0_the_replayed_rounds_are_the_measured_ones(tiny, forecast):
    assert forecast.is_complete
    ran = specbench("report --runs-dir forecasts --json", cwd=tiny)
    (forecast_json,) = json.loads(ran.out)["forecasts"]
    measured = [p["measured"] for p in forecast_json["points"] if p["measured"]]
    assert measured
    assert all(abs(point["length_error"]) < 1e-9 for point in measured)


def test_run_can_also_forecast(tiny):
    ran = specbench("run", *ASKED[1:], "-k", "2", "--forecast", "--runs-dir", "run", cwd=tiny)
    assert ran.is_complete, ran.err
    assert load_run("latest", tiny / "run").forecasts[0].to_measure == (2,)


@pytest.mark.long
def test_validating_a_forecast_measures_every_forecast_k(tiny):
    options = ("-k", "0..3", "--forecast", "--validate-forecast", "--runs-dir", "exhaustive")
    ran = specbench(*ASKED, *options, cwd=tiny)
    assert ran.is_complete, ran.err
    stored = load_run("latest", tiny / "exhaustive")
    (made,) = build_document(stored).forecasts
    ks = {p.num_speculative_tokens for p in made.forecast.points} - {0}
    assert set(made.measured) == ks
    assert len(ks) > 1
    lengths = [point.length_error for point in made.measured.values()]
    assert lengths == pytest.approx([0] * len(ks), abs=1e-9)


def test_a_method_that_cannot_be_traced_is_measured(tiny):
    (tiny / "lookahead.yaml").write_text(
        "targets:\n  tiny:\n    model: ./target\n"
        "    drafters:\n      lookahead: {method: lookahead}\n"
    )
    options = ("--config", "lookahead.yaml", "--forecast", "--runs-dir", "lookahead", "-k", "0..2")
    ran = specbench("sweep-k", *ASKED[2:], *options, cwd=tiny)
    assert ran.is_complete, ran.err
    assert ran.err.count("cannot be forecast") == 1
    stored = load_run("latest", tiny / "lookahead")
    assert stored.forecasts == ()
    measured = {plan.key.draft.k for plan in stored.run.cells}
    assert measured == {0, 1, 2}
    assert {len(b.order) for b in stored.blocks if b.purpose == "explore"} == {3}


@pytest.mark.parametrize("ks", ["auto", "0"])
def test_costs_without_a_fixed_k_to_forecast_are_refused(tiny, ks):
    (tiny / "costs.csv").write_text(COSTS)
    ran = specbench(
        *ASKED, "-k", ks, "--step-times", "costs.csv", "--runs-dir", "refused", cwd=tiny
    )
    assert ran.code == 2
    assert "such as -k 1..8" in ran.err
    assert not (tiny / "refused").exists()


@pytest.fixture(scope="session")
def from_step_times(tiny: Path) -> CommandResult:
    (tiny / "costs.csv").write_text(COSTS)
    return specbench(
        *ASKED,
        "-k",
        "0..3",
        "--step-times",
        "costs.csv",
        "--temperature",
        "1",
        "--runs-dir",
        "told",
        cwd=tiny,
    )


def test_a_forecast_from_imported_step_times_recommends_k(tiny, from_step_times):
    assert from_step_times.is_complete, from_step_times.err
    last = from_step_times.out.strip().splitlines()[-1]
    assert "prompts.jsonl: forecast: " in last
    assert re.search(r"vllm 0\.32\.0 \(costs\.csv\), .*greedily$", last)
    stored = load_run("latest", tiny / "told")
    assert stored.blocks == ()
    assert len(stored.engine_costs) == 3
    assert {trace.drafting for trace in stored.traces} == {"greedy"}
    (made,) = stored.forecasts
    assert [p.num_speculative_tokens for p in made.points] == [0, 1, 2, 3]
    assert made.points[2].cost == pytest.approx(1.35)


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize(
    ("file", "told_ks", "ks", "shown", "message"),
    [
        ("wide.csv", (0, 1, 3), "1..3", {1, 2, 3}, None),
        ("few.csv", (0, 2, 3), "1..4", {2, 3}, "K=1, 4 left out: {} cover K=0 and 2..3;"),
        ("one.csv", (0, 2), "1,2", {2}, "K=1 left out: {} cover K=0 and 2;"),
        ("step.csv", (0,), "2", set(), "K=2 left out: {} cover only K=0;"),
    ],
)
def test_a_k_beyond_the_step_times_is_reported_once(tiny, file, told_ks, ks, shown, message):
    (tiny / file).write_text("k,cost\n" + "".join(f"{k},{10 + k}\n" for k in told_ks))
    both = ("--temperature", "0,1")  # two settings, and no message is repeated
    ran = specbench(
        *ASKED, *both, "-k", ks, "--step-times", file, "--runs-dir", file[:-4], cwd=tiny
    )
    made = load_run("latest", tiny / file[:-4], also_empty=not shown).forecasts
    assert all({p.num_speculative_tokens for p in f.points} == {0, *shown} for f in made)
    assert len(made) == (2 if shown else 0)
    assert ran.is_complete if shown else ran.code == 4
    if message is None:
        assert "left out" not in ran.err
    else:
        assert ran.err.count("left out") == 1
        assert "warning: " + message.format(f"the costs of your engine ({file})") in ran.err


def test_a_forecast_run_resumes_without_its_costs_file(tiny, from_step_times):
    assert from_step_times.is_complete
    stored = load_run("latest", tiny / "told")
    lines = (stored.folder / "records.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(('{"type":"forecast"', '{"type":"done"'))]
    (stored.folder / "records.jsonl").write_text("".join(kept))
    (tiny / "costs.csv").rename(tiny / "gone.csv")
    ran = specbench("sweep-k --runs-dir told --resume latest", cwd=tiny)
    assert ran.is_complete, ran.err
    (again,) = load_run("latest", tiny / "told").forecasts
    assert again.points == stored.forecasts[0].points


def test_a_forecast_measures_the_step_times_of_running_servers(tiny):
    fake, other = FakeServer(k=0), tiny / "other.jsonl"
    other.write_text(json.dumps({"id": "o", "turns": ["of another workload"]}) + "\n")
    with serving(fake) as without, serving(FakeServer(k=3)) as with_k:
        sources = ("--step-times", without, "--step-times", with_k, "-w", "other.jsonl")
        ran = specbench(*ASKED, "-k", "0..3", *sources, "--runs-dir", "served", cwd=tiny)
    assert ran.is_complete, ran.err
    measured = [body["messages"][0]["content"] for body in fake.requests if not is_warm_up(body)]
    assert measured[1] == "of another workload"
    made, _ = load_run("latest", tiny / "served").forecasts
    assert [p.num_speculative_tokens for p in made.points] == [0, 3]
    assert made.points[1].length_there == pytest.approx(2.0)
    assert made.points[1].cost_error is not None  # several batches show it
    assert with_k in ran.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--step-times none.csv", "none.csv: cannot be read"),
        ("--step-times bad.csv", "bad.csv:3: cost: expected a number above 0"),
        ("--step-times rows.csv --concurrency 4", "no data for 4 concurrent requests; it has 1"),
        ("--step-times no_step.csv", "a step without speculation (K=0)"),
        ("--step-times http://127.0.0.1:9", "cannot be reached"),
        ("--step-times gopher://x", "expected an address"),
        ("--forecast --acceptance-rule exact", "add --step-times"),
        ("--step-times rows.csv --acceptance-rule lossy", "exact, greedy_draft"),
        ("--forecast --engine builtin,transformers", "leave out --engine"),
        ("--forecast --request-rate 2", "drop --request-rate"),
        ("--forecast --best-of 2 --temperature 1", "drop --best-of"),
        ("--forecast --simulate-acceptance 0.7", "drop --simulate-acceptance"),
        ("--validate-forecast", "add --forecast"),
        ("--validate-forecast --step-times rows.csv", "use one of them"),
    ],
)
def test_forecast_exits_2_for_invalid_options_before_measuring(tiny, options, message):
    (tiny / "rows.csv").write_text(COSTS)
    (tiny / "bad.csv").write_text("k,cost\n0,1\n3,much\n")
    (tiny / "no_step.csv").write_text("k,cost\n3,1\n")
    ran = specbench(*ASKED, *options.split(), "--runs-dir", "mistakes", cwd=tiny)
    assert ran.code == 2
    assert message in ran.err
    assert "Traceback" not in ran.err
    assert not (tiny / "mistakes").exists()
