"""`lossy:` from pairings.yaml to the answer, and in `verify`."""

import json
import re
import shutil
from pathlib import Path

import pytest

from specbench.engines.builtin import BuiltinEngine
from specbench.runs import load_run
from tests.cli.calls import CommandResult, specbench
from tests.report.test_json import VALIDATOR
from tests.tiny_pair import make_pair

pytestmark = pytest.mark.slow  # whole runs

PAIRINGS = """\
targets:
  tiny:
    model: ./target
    drafters:
      copy: {method: ngram}
      wild:
        method: draft_model
        model: ./stranger
        lossy: {rule: typical, threshold: 0.01}
      bold: {method: draft_model, model: ./draft, lossy: typical}
"""
ALL = ("tiny/copy", "tiny/wild", "tiny/bold")
SMALL = ("--threads", "1", "--device", "cpu", "--max-new-tokens", "16", "--config", "lossy.yaml")


@pytest.fixture(scope="session")
def lossy(tiny: Path) -> Path:
    """The tiny pair, and a draft that seldom agrees with the target."""
    (tiny / "lossy.yaml").write_text(PAIRINGS)
    shutil.copytree(tiny / "draft", tiny / "stranger")
    _, draft = make_pair(agreement=1.0)
    for parameter in draft.parameters():
        parameter.data.mul_(1.5)
    draft.save_pretrained(tiny / "stranger")
    return tiny


@pytest.fixture(scope="module")
def lossy_run(lossy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[CommandResult, Path]:
    out = tmp_path_factory.mktemp("lossy")
    options = ("-w", "prompts.jsonl", "--num-prompts", "5", "-k", "3,auto", "--concurrency", "2")
    return specbench(
        "run", *ALL, *options, *SMALL, "--repeats", "1", "--runs-dir", out, cwd=lossy
    ), out


def test_a_lossy_run_stores_the_rule_and_names_it_in_every_output(lossy_run, lossy: Path) -> None:
    done, out = lossy_run
    assert done.is_complete
    (folder,) = out.iterdir()
    keys = load_run(folder, out).run.keys
    assert {key.draft.drafter: key.draft.lossy for key in keys} == {
        "none": None,
        "copy": None,
        "wild": "typical threshold=0.01",
        "bold": "typical",
    }
    for line in done.out.partition("report: ")[2].splitlines():
        if "bold" in line:
            assert "(lossy)" in line
            assert line.endswith("[lossy: typical]")
        if "wild" in line:
            assert "(lossy)" in line
            assert line.endswith("[lossy: typical threshold=0.01]")
    again = specbench("report", folder.name, "--runs-dir", out, "--json", cwd=lossy)
    document = json.loads(again.out)
    VALIDATOR.validate(document)
    assert {c["lossy"] for c in document["cells"] if c["drafter"] == "bold"} == {"typical"}
    assert document["adaptive_comparisons"]


def test_lossy_texts_stop_at_their_own_end_and_differ_from_k_0(lossy_run) -> None:
    done, out = lossy_run
    (folder,) = out.iterdir()
    stored = load_run(folder, out)
    texts: dict[str, dict[str, tuple[int, ...]]] = {}
    for block in stored.blocks:
        for request in block.requests:
            texts.setdefault(request.cell_id, {})[request.prompt_id] = request.output_ids
    by_drafter = {key.draft.drafter: texts[key.id] for key in stored.run.keys if key.id in texts}
    assert by_drafter["copy"] == by_drafter["none"]
    assert by_drafter["wild"] != by_drafter["none"]
    output = " ".join(done.out.split())
    assert re.search("outputs differ .*K=0 .*rule typical", output)


def test_samples_are_also_drawn_under_a_lossy_rule(lossy: Path, tmp_path: Path) -> None:
    options = ("-w", "prompts.jsonl", "-k", "2", "--temperature", "0.8", "--best-of", "3")
    sizes = ("--num-prompts", "2", "--repeats", "1", "--runs-dir", tmp_path)
    done = specbench("run", "tiny/bold", *options, *sizes, *SMALL, "--json", cwd=lossy)
    assert done.is_complete
    best = json.loads(done.out)["best_of"]
    assert {entry["key"]["lossy"] for entry in best} == {None, "typical"}


def test_lists_and_plans_mark_lossy_drafters(lossy: Path) -> None:
    listed = specbench("list pairings --config lossy.yaml", cwd=lossy).out
    marks = {line.split()[0]: "(lossy)" in line for line in listed.splitlines()[1:]}
    assert marks == {"tiny/copy": False, "tiny/wild": True, "tiny/bold": True}
    rows = json.loads(specbench("list pairings --config lossy.yaml --json", cwd=lossy).out)
    assert [row["lossy"] for row in rows] == [None, "typical threshold=0.01", "typical"]
    dry = ("run", *ALL, "-w", "prompts.jsonl", "--dry-run", "--config", "lossy.yaml")
    plan = specbench(*dry, cwd=lossy).out
    assert plan.count("(lossy)") == 2
    cells = json.loads(specbench(*dry, "--json", cwd=lossy).out)["cells"]
    assert [cell["lossy"] for cell in cells] == [None, None, "typical threshold=0.01", "typical"]


def test_lossy_drafters_run_only_on_the_built_in_engine(lossy: Path) -> None:
    dry = ("run", *ALL, "-w", "prompts.jsonl", "--dry-run", "--config", "lossy.yaml")
    both = ("--engine", "builtin,transformers", "--json")
    cells = json.loads(specbench(*dry, *both, cwd=lossy).out)["cells"]
    peers = {cell["pairing"] for cell in cells if cell["engine"] == "transformers"}
    assert peers == {"tiny", "tiny/copy"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--simulate-acceptance 0.7", "--simulate-acceptance: tiny/wild, tiny/bold "),
        ("--engine transformers", "that only the built-in decoder has; add --engine builtin"),
    ],
)
def test_options_that_contradict_the_acceptance_rule_are_refused(
    arguments: str, says: str, lossy: Path, tmp_path: Path
) -> None:
    options = ("-w", "prompts.jsonl", *SMALL, "--runs-dir", tmp_path)
    done = specbench("run", *ALL, *options, *arguments.split(), cwd=lossy)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    fine = specbench("run", "tiny/copy", *options, *arguments.split(), "--dry-run", cwd=lossy)
    assert fine.code == 0


VERIFY = ("-w", "prompts.jsonl", "--num-prompts", "3", "--num-tokens", "1000", "-k", "3", "--json")


def verdicts(done: CommandResult) -> dict[tuple[str, float], str]:
    results = json.loads(done.out)["results"]
    return {(r["pairing"], r["temperature"]): r["verdict"] for r in results}


def test_verify_reports_a_lossy_drafter_and_exits_1(lossy: Path) -> None:
    done = specbench("verify tiny/copy tiny/wild", *VERIFY, *SMALL, cwd=lossy)
    assert done.code == 1
    assert verdicts(done) == {
        **{("tiny", 0.0): "identical", ("tiny", 0.7): "matches_distribution"},
        **{("tiny/copy", 0.0): "identical", ("tiny/copy", 0.7): "matches_distribution"},
        **{("tiny/wild", 0.0): "lossy", ("tiny/wild", 0.7): "lossy"},
    }
    document = json.loads(done.out)
    for result in document["results"]:
        is_bold = result["pairing"] == "tiny/wild"
        assert result["lossless"] is not is_bold
        assert result["lossy"] == ("typical threshold=0.01" if is_bold else None)
    answer = document["answers"][-1]
    assert (answer["subject"], answer["verdict"]) == ("tiny/wild", "lossy")
    assert answer["reasons"][0]["figures"]["setting"] == "builtin draft_model K=3 at T=0"


def test_verify_detects_an_unmarked_lossy_drafter_by_statistics(
    lossy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BuiltinEngine, "lossy_option", lambda *_: None)
    done = specbench("verify", "tiny/wild", *VERIFY, *SMALL, cwd=lossy)
    assert done.code == 1
    by_pairing = verdicts(done)
    assert by_pairing["tiny/wild", 0.0] == by_pairing["tiny/wild", 0.7] == "mismatch"
    assert by_pairing["tiny", 0.7] == "matches_distribution"
