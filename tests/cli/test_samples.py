"""`run --best-of N`: the best of N responses against a single one, from command to records."""

import json
import re

import pytest

from specbench.bench.budget import block_seconds
from specbench.errors import UsageError
from specbench.metrics.cell import turn_of
from specbench.runs import load_run
from tests.cli.calls import specbench
from tests.report.test_json import VALIDATOR

pytestmark = pytest.mark.slow  # whole runs

N = 3
ARGUMENTS = (
    *("run", "tiny/draft", "-w", "talk.jsonl", "-k", "0,2", "--temperature", "0.8"),
    *("--best-of", str(N), "--max-new-tokens", "10", "--repeats", "2"),
    *("--threads", "1", "--device", "cpu"),
)


@pytest.fixture(scope="module")
def sampled(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("samples")
    return specbench(*ARGUMENTS, "--runs-dir", out, cwd=tiny), out


@pytest.fixture(scope="module")
def stored(sampled):
    _, out = sampled
    (folder,) = out.iterdir()
    return load_run(folder, out)


@pytest.fixture(scope="module")
def document(sampled, stored, tiny):
    _, out = sampled
    ran = specbench("report", stored.run.run_id, "--runs-dir", out, "--json", cwd=tiny)
    return json.loads(ran.out)


def blocks_of(stored, num_samples):
    ids = {
        plan.key.id for plan in stored.run.cells if plan.key.condition.num_samples == num_samples
    }
    return [block for block in stored.blocks if set(block.order) <= ids]


def test_each_prompt_is_answered_once_and_n_times_at_every_k(stored):
    keys = [plan.key for plan in stored.run.cells]
    assert sorted((key.condition.num_samples, key.draft.k) for key in keys) == [
        *((1, 0), (1, 2)),
        *((N, 0), (N, 2)),
    ]
    assert all(block.samples == () for block in blocks_of(stored, 1))
    for block in blocks_of(stored, N):
        for samples in block.samples:
            requests = [
                r
                for r in block.requests
                if r.cell_id == samples.served.cell_id and turn_of(r) == turn_of(samples)
            ]
            assert [r.sample for r in requests] == list(range(N))
            assert len({r.seed for r in requests}) == N
            assert len(samples.log_probs) == N
            assert samples.picked == samples.log_probs.index(max(samples.log_probs))
            assert samples.scoring_s > 0
            assert samples.served.kv_bytes > 0
            emitted = sum(sum(r.rounds.num_emitted) for r in requests)
            assert sum(samples.served.rounds.num_emitted) == emitted
    turns = {turn_of(samples) for block in blocks_of(stored, N) for samples in block.samples}
    assert {turn for _, turn, _ in turns} == {0, 1}, "a conversation is sampled turn by turn"


def test_block_seconds_are_those_of_its_passes(stored):
    for block in blocks_of(stored, N):
        passes = {cell_id: 0.0 for cell_id in block.order}
        for samples in block.samples:
            passes[samples.served.cell_id] += samples.served.seconds + samples.scoring_s
        assert block_seconds(block) == pytest.approx(passes)


def test_the_first_sample_equals_a_single_response(stored):
    """The noise is the same, so the text without drafts is also the same; its cost is compared."""

    def texts(num_samples):
        return {
            turn_of(request): request.output_ids
            for block in blocks_of(stored, num_samples)
            for request in block.requests
            if request.sample == 0 and "|k0|" in request.cell_id
        }

    assert texts(1) == texts(N) != {}


def test_several_samples_are_not_judged_by_goodput(stored):
    with pytest.raises(UsageError, match=f"--slo .*{stored.run.run_id}"):
        stored.with_slo({"ttft_s": 1.0})


def test_the_document_has_cost_and_gain_and_keeps_its_schema(document):
    VALIDATOR.validate(document)
    base, speculative = document["best_of"]
    assert base["speedup"] is None
    assert speculative["speedup"]["estimate"] > 0
    for best in (base, speculative):
        assert best["key"]["num_samples"] == N
        assert best["cost"]["estimate"] > 0
        assert 0 < best["scoring_share"] < 1
        assert best["gain"]["estimate"] == pytest.approx(
            best["picked_log_prob"] - best["first_log_prob"]
        )
        assert best["gain"]["estimate"] >= 0
    metrics = [c["metrics"] for c in document["cells"] if c["num_samples"] == N]
    names = {"best_of_s", "scoring_s", "first_log_prob", "picked_log_prob", "best_of_gain"}
    assert all(names <= values.keys() for values in metrics)
    alone = [c["metrics"] for c in document["cells"] if c["num_samples"] == 1]
    assert not any(names & values.keys() for values in alone)


def test_the_terminal_shows_one_line_per_cell_in_80_columns(sampled):
    ran, _ = sampled
    assert ran.is_complete
    assert max(map(len, ran.out.partition("report: ")[0].splitlines())) <= 80
    table = ran.out[ran.out.index(f"Best of {N}") :].partition("\n\n")[0]
    assert len(re.findall(r"\bK=[02]\b", table)) == 2
    assert re.search(r"draft K=2 .*x .*x .*\+\d\.\d{3}", table)
    answers = ran.out.splitlines()[-3:-1]
    assert answers[0].startswith("talk.jsonl, one sample: ")
    assert answers[1].startswith(f"talk.jsonl, best of {N}: ")


def test_single_answers_share_no_prefill_and_are_not_scored(tiny, tmp_path, monkeypatch):
    scored = []
    monkeypatch.setattr("specbench.engines.builtin.mean_log_probs", lambda *a: scored.append(a))
    monkeypatch.setattr("specbench.decode.rows.Rows._copy", lambda *a: scored.append(a))
    arguments = ("-w", "talk.jsonl", "-k", "1", "--concurrency", "3", "--num-prompts", "6")
    sizes = ("--max-new-tokens", "4", "--repeats", "1", "--device", "cpu", "--threads", "1")
    ran = specbench("run", "tiny/ngram", *arguments, *sizes, "--runs-dir", tmp_path, cwd=tiny)
    assert ran.is_complete
    assert scored == []


def test_a_dry_run_lists_the_number_of_samples(tiny):
    ran = specbench(*ARGUMENTS, "--dry-run", "--json", cwd=tiny)
    assert [cell["num_samples"] for cell in json.loads(ran.out)["cells"]] == [1, 1, N, N]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("", "--best-of 3: at temperature 0 all 3 answers are the same; use a temperature above 0"),
        ("--temperature 0,1", "at temperature 0 all 3 answers are the same"),
        ("--temperature 1 --concurrency 2", "leave out --concurrency and --request-rate"),
        ("--temperature 1 --request-rate 3", "leave out --concurrency and --request-rate"),
        ("--temperature 1 -k auto", "--best-of 3 needs a fixed K; drop auto from -k"),
        ("--temperature 1 --engine builtin,transformers", "needs the built-in decoder"),
        ("--temperature 1 --simulate-acceptance 0.5", "but simulated text has no meaning"),
    ],
)
def test_several_samples_at_temperature_0_are_refused(arguments, says, tiny, tmp_path):
    ran = specbench(f"run tiny/draft --best-of 3 {arguments} --runs-dir", tmp_path, cwd=tiny)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
