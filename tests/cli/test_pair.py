"""`specbench pair`: refusals, memory, the ranking, what it writes, and its exit codes."""

import json
import re
import shutil
from pathlib import Path

import pytest

from specbench.errors import CompatibilityError
from specbench.inputs.config import load_pairings
from specbench.runs import list_runs, load_run
from tests.cli.calls import specbench
from tests.cli.conftest import SMALL
from tests.tiny_models import change_json, swap_tokens, write_head, write_model
from tests.tiny_pair import write_refusing
from tests.workloads.test_workloads import write_workload

HERE = ("--workload", "prompts.jsonl", *SMALL)


@pytest.fixture(scope="session")
def shelf(tiny: Path) -> Path:
    """The folder of the tiny pair with a draft that does not fit and a head next to it."""
    target = write_model(tiny / "drafts" / "other", num_hidden_layers=1)

    change_json(target.folder / "tokenizer.json", swap_tokens)
    write_head(tiny / "drafts" / "eagle", "eagle", write_model(tiny / "wide", hidden_size=64))
    return tiny


def plan(*arguments: str, cwd: Path):
    return specbench("pair", *arguments, "--dry-run", cwd=cwd)


def test_a_dry_run_prints_refusals_warnings_and_memory(shelf):
    ran = plan(
        "tiny",
        "--draft",
        "draft",
        "--draft",
        "./drafts/other",
        "--draft",
        "ngram",
        "--gpu",
        "L4",
        cwd=shelf,
    )
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("refused  other: tokenizer: 2 ")
    assert [words[5:12].strip() for words in ran.out.split("\nfits")[1:]] == ["draft:", "ngram:"]
    assert re.search(r"\(target 259 .*draft 259 ", ran.out.replace("\n", " "))
    memory = [line.split()[0] for line in ran.out.splitlines() if "KiB" in line]
    assert memory == ["target", "draft", "ngram"]
    assert re.search(r"22\.5 GiB \(.*L4\)", ran.out)


def test_the_json_output_of_pair_has_every_finding(shelf):
    ran = plan(
        *("tiny", "--discover", "--search-dir", "drafts", "--gpu-memory", "24GiB"),
        *("--gpu-bandwidth", "1008GB/s", "--json"),
        cwd=shelf,
    )
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(ran.out)
    by_name = {entry["drafter"]: entry for entry in document["drafters"]}
    assert {"other", "eagle", "ngram", "suffix"} <= set(by_name)
    refused = [f for f in by_name["eagle"]["findings"] if f["level"] == "refused"]
    assert {(f["field"], f["target"], f["draft"]) for f in refused} >= {("hidden_size", "32", "64")}
    memory = by_name["ngram"]["memory"]
    assert memory["break_even_length"] == 1.0
    assert memory["headroom_bytes"] > 0
    assert by_name["ngram"]["lost_context"] == 0
    assert document["target_alone"]["target"]["is_exact"]
    assert document["ranking"] == []


def test_a_drafter_that_is_too_large_is_refused_with_what_is_missing(shelf):
    from specbench.fit.gpus import RESERVED_BYTES

    alone = json.loads(plan("tiny", "--draft", "ngram", "--gpu", "T4", "--json", cwd=shelf).out)
    just_enough = RESERVED_BYTES + alone["target_alone"]["peak_bytes"] + 2000
    ran = plan("tiny", "--draft", "draft", "--gpu-memory", f"{just_enough}b", cwd=shelf)
    assert ran.code == 2
    assert "refused  draft: memory: " in ran.out
    assert "too large" in ran.out
    assert re.search("error: .*of 1 .*tiny: draft ", ran.err)


@pytest.mark.slow
def test_pair_measures_ranks_and_writes_the_drafts_that_fit(shelf):
    ran = specbench(
        "pair ./target --draft ./draft --draft ./drafts/other --draft ngram -k 1,2",
        *("--output", "best.yaml", *HERE),
        cwd=shelf,
    )
    assert ran.is_complete, ran.err
    assert "refused  other: tokenizer" in ran.out
    lines = ran.out.splitlines()
    table = [line.split() for line in lines if line[:1].isdigit()]
    assert [row[0] for row in table] == ["1", "2"]
    assert {row[1] for row in table} == {"draft", "ngram"}
    assert lines[-1].split()[0] in ("use", "undecided:", "no")  # times of this few tokens are noise
    if lines[-1].startswith("use draft"):
        best = load_pairings(shelf / "best.yaml").all[0]
        assert (best.drafter.method, best.drafter.name) == ("draft_model", "draft")
        assert best.drafter.num_speculative_tokens in (1, 2)
    run = next(line for line in lines if line.startswith("report: ")).split("/")[1]
    again = specbench("sweep-k", "--resume", run, cwd=shelf)
    assert again.is_complete, again.err


def test_a_missing_folder_is_refused_before_anything_is_read(shelf):
    ran = specbench("pair ./target --output nowhere/best.yaml", *HERE, cwd=shelf)
    assert (ran.code, ran.out) == (2, "")
    assert "--output nowhere/best.yaml" in ran.err


def test_a_broken_link_is_refused_before_anything_is_read(tmp_path):
    (tmp_path / "link.yaml").symlink_to("nowhere.yaml")
    ran = specbench("pair ./missing --output link.yaml", *HERE, cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert "--output link.yaml: file exists" in ran.err


def test_a_dry_run_writes_what_fits_and_overwrites_nothing(shelf):
    arguments = ("./target", "--draft", "./draft", "--draft", "./drafts/other", "--draft", "ngram")
    ran = plan(*arguments, "--output", "fits.yaml", cwd=shelf)
    assert (ran.code, ran.err) == (0, "written: fits.yaml\n")
    read = load_pairings(shelf / "fits.yaml")
    assert [pairing.name for pairing in read.all] == ["target/draft", "target/ngram"]
    assert read.all[0].drafter.model.folder == shelf / "draft"
    stopping = plan(*arguments, "--draft-p-min", "0.6", "--output", "stops.yaml", cwd=shelf)
    assert stopping.code == 0
    stops = [pairing.drafter.p_min for pairing in load_pairings(shelf / "stops.yaml").all]
    assert stops == [0.6, None]
    again = plan(*arguments, "--output", "fits.yaml", cwd=shelf)
    assert again.code == 2
    assert re.search(r"fits\.yaml.*file exists; .*new", again.err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("tiny --draft eagle", "the method needs weights"),
        ("tiny --draft ngrm", "no such method, did you mean 'ngram'?, and no model of"),
        ("tiny --draft nobody", "none of 1 drafters fits tiny"),
        ("nobody", "no target 'nobody'"),
        ("owner/nobody", "owner/nobody is not in the hub's cache"),
        ("tiny --search-dir drafts", "add --discover"),
        ("tiny --discover --search-dir nowhere", "folder not found"),
        ("tiny --gpu Voodoo", "--gpu 'Voodoo' is unknown"),
        ("tiny --gpu-memory much", "--gpu-memory 'much': expected"),
        ("tiny --gpu-memory 24", "add a unit, such as 24GiB"),
        ("tiny --gpu-memory 24GiB --gpu-bandwidth 1008", "such as 1008GB/s"),
        ("tiny --gpu-memory 1MiB", "CUDA itself takes 0.75 GiB"),
        ("tiny --gpu-bandwidth 1GB/s", "--gpu-bandwidth needs --gpu-memory"),
        ("tiny --plan-context 1k,2k", "--plan-context '1k,2k': expected a single length"),
        ("tiny -k 0", "ranking needs fixed K above 0"),
        ("tiny -k auto", "ranking needs fixed K above 0"),
        ("tiny --output nowhere/best.yaml", "directory does not exist"),
        ("tiny --output prompts.jsonl/best.yaml", "directory does not exist"),
        ("./drafts/eagle --draft ngram", "cannot be a target"),
    ],
)
def test_pair_exits_2_for_invalid_arguments(shelf, arguments, message):
    ran = plan(*arguments.split(), cwd=shelf)
    assert ran.code == 2
    assert message in ran.err
    assert "Traceback" not in ran.err


def test_a_target_without_weights_cannot_be_measured(shelf, tmp_path):
    without = shutil.ignore_patterns("*.safetensors")
    shutil.copytree(shelf / "target", tmp_path / "bare", ignore=without)
    ran = specbench("pair", "./bare", "--draft", "ngram", cwd=tmp_path)
    assert (ran.code, ran.error) == (2, CompatibilityError)
    assert re.search("error: .*bare.*--dry-run", ran.err)


def test_a_truncated_context_names_the_limit(shelf):
    longest = json.loads((shelf / "target" / "config.json").read_text())["max_position_embeddings"]
    arguments = ("tiny", "--draft", "ngram", "--gpu", "L4", "--plan-context")
    cut = plan(*arguments, str(4 * longest), cwd=shelf)
    note = f"capped at {longest:,} tokens, the maximum by the target's files, instead of"
    assert f"{note} {4 * longest:,}" in cut.out
    assert "the target's config.json" not in plan(*arguments, str(longest), cwd=shelf).out


def test_a_lossy_drafter_is_planned_only_if_named(tmp_path):
    lines = plan("demo", cwd=tmp_path).out.splitlines()
    named = plan("demo", "--draft", "medusa-typical", cwd=tmp_path).out.splitlines()
    assert not any(line.startswith("medusa-typical") for line in lines)
    assert any(line.startswith("medusa-typical") for line in named)


@pytest.mark.slow
def test_the_bundled_pair_can_be_planned_from_any_folder(tmp_path):
    ran = plan("demo", "--gpu", "H100", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert "token-recycling" in ran.out


@pytest.mark.slow
def test_too_few_rounds_write_no_file_and_give_no_advice(shelf):
    ran = specbench(
        "pair ./target --draft ngram -k 1 --output none.yaml",
        *HERE,
        *("--num-prompts", "1", "--max-new-tokens", "4"),
        cwd=shelf,
    )
    assert ran.out.splitlines()[-1].startswith("undecided: no valid measurement")
    assert "none.yaml not written: " in ran.err
    assert not (shelf / "none.yaml").exists()


def test_a_report_folder_that_cannot_be_one_is_named(shelf):
    (shelf / "file.txt").write_text("no folder")
    ran = specbench("pair ./target --draft ngram --runs-dir file.txt", *HERE, cwd=shelf)
    assert ran.code == 2
    assert "file.txt" in ran.err.splitlines()[-1]
    assert "Traceback" not in ran.err


@pytest.mark.slow
def test_requests_that_failed_exit_4(shelf, tmp_path):
    refusing = write_refusing(shelf / "target", tmp_path)
    ran = specbench(
        *("pair", refusing, "--draft", "ngram", "-k", "1", "--workload", "./prompts.jsonl"),
        *(*SMALL, "--runs-dir", tmp_path),
        cwd=tmp_path,
    )
    assert ran.code == 4, ran.err


@pytest.mark.slow
def test_other_prompts_of_a_target_are_not_those_of_an_earlier_ranking(shelf, tmp_path):
    """Two targets that differ only in their workloads are stored with them."""
    for name in ("one", "two"):
        write_workload(shelf / name, "talk", text=name)
        (shelf / f"{name}.yaml").write_text(
            f"targets:\n  mine:\n    model: ./target\n    workloads: ./{name}\n"
            "    drafters:\n      ngram: {method: ngram}\n"
        )
        ran = specbench(
            *("pair", "mine", "--config", f"{name}.yaml", "-w", "talk", "-k", "1"),
            *(*SMALL, "--runs-dir", tmp_path),
            cwd=shelf,
        )
        assert ran.is_complete or ran.code == 4, ran.err
    files = {run.run_id: load_run(run.run_id, tmp_path) for run in list_runs(tmp_path)}
    assert {Path(t["workloads"]).name for s in files.values() for t in s.run.targets} == {
        *("one", "two")
    }
    assert len({tuple(stored.run.workload_sha256.items()) for stored in files.values()}) == 2


@pytest.mark.parametrize("names", [("num_local_experts", "num_experts_per_tok"), None])
def test_a_plan_states_how_many_experts_a_verification_reads(tmp_path, names):
    spec = write_model(tmp_path / "target", num_hidden_layers=1)
    if names is not None:
        sizes = dict(zip(names, (8, 2), strict=True))
        change_json(spec.folder / "config.json", lambda config: config.update(sizes))
    typed = ("./target", "--draft", "ngram", "-k", "4")
    experts = json.loads(plan(*typed, "--json", cwd=tmp_path).out)["experts"]
    printed = plan(*typed, cwd=tmp_path).out.replace("\n", " ")
    if names is None:
        assert experts is None
        assert "experts" not in printed
    else:
        expected = sum(1 - 0.75**5 for _ in range(8))  # each expert is missed by 5 tokens
        assert experts == {"num": 8, "per_token": 2, "num_tokens": 5, "expected": expected}
        assert re.search(r"2 of 8 .* 5 tokens .* 6\.1 .* 3\.1 times", printed)
