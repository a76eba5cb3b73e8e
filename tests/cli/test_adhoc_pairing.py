"""A pair without a file: --target and --draft."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from specbench.cli.export import measured_deployment
from specbench.errors import UsageError
from specbench.export.winner import Selection
from specbench.inputs.stored_targets import pairings_of
from specbench.runs import load_run
from tests.cli.calls import specbench
from tests.cli.conftest import SMALL
from tests.gguf_files import write_gguf
from tests.tiny_pair import write_pair


@pytest.mark.slow
def test_a_pair_of_two_folders_is_measured_stored_and_printed_as_yaml(tiny: Path, tmp_path: Path):
    ran = specbench(
        "run --target ./target --draft ./draft --draft ngram",
        *("-w", "prompts.jsonl", "-k", "2", "--runs-dir", tmp_path / "out", *SMALL),
        cwd=tiny,
    )
    assert ran.code in (0, 3), ran.err
    (folder,) = (tmp_path / "out").glob("*/run.json")
    assert [*(tmp_path / "out").iterdir()] == [folder.parent]
    run = load_run(folder.parent, tmp_path / "out")
    assert run.run.settings.workload.pairings == ("target/draft", "target/ngram")
    assert [p.drafter.method for p in pairings_of(run.run).all] == ["draft_model", "ngram"]

    _, _, rest = ran.err.partition("To keep this pair, write to pairings.yaml:\n\n")
    kept = yaml.safe_load(rest.partition("\n\n")[0])
    assert kept["targets"]["target"]["model"] == "./target"
    assert kept["targets"]["target"]["drafters"]["draft"]["model"] == "./draft"


@pytest.mark.slow
def test_an_interrupted_ad_hoc_run_resumes_without_model_options(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("specbench.bench.session.OpenTarget.serve", interrupt)
        ran = specbench(
            "run --target target --draft draft -w prompts.jsonl -k 2",
            *("--runs-dir", tmp_path / "out", *SMALL),
            cwd=tiny,
        )
    assert ran.code == 130
    (command,) = re.findall(r"Resume with: specbench (.*)$", ran.err, re.MULTILINE)
    again = specbench(*shlex.split(command), cwd=tiny)
    assert again.code in (0, 3), again.err


@pytest.mark.slow
def test_each_p_min_is_a_drafter_of_its_own_and_an_export_knows_it(tiny: Path, tmp_path: Path):
    ran = specbench(
        "run --target target --draft draft,ngram --draft-p-min 0,0.3",
        *("-w", "prompts.jsonl", "-k", "3", "--runs-dir", tmp_path / "out", *SMALL),
        cwd=tiny,
    )
    assert ran.code in (0, 3), ran.err
    stored = load_run("latest", tmp_path / "out")
    names = ("target/draft", "target/draft-p0.3", "target/ngram")
    assert stored.run.settings.workload.pairings == names
    assert {p.drafter.name: p.drafter.p_min for p in pairings_of(stored.run).all} == {
        "draft": None,
        "draft-p0.3": 0.3,
        "ngram": None,
    }
    p_mins = {cell.key.draft.drafter: cell.key.draft.p_min for cell in stored.run.cells}
    assert p_mins == {"none": None, "draft": None, "draft-p0.3": 0.3, "ngram": None}
    drafted = {name: 0 for name in p_mins}
    texts: dict[str, set[tuple[int, ...]]] = {name: set() for name in p_mins}
    for block in stored.blocks:
        for request in block.requests:
            (name,) = (c.key.draft.drafter for c in stored.run.cells if c.key.id == request.cell_id)
            drafted[name] += sum(request.rounds.num_drafted)
            texts[name].add(request.output_ids)
    assert drafted["draft-p0.3"] < drafted["draft"]
    assert all(of == texts["none"] for of in texts.values())
    chosen = measured_deployment(
        tuple(p for p in pairings_of(stored.run).all if p.drafter.p_min is None),
        Selection(),
        str(stored.folder),
        tmp_path / "out",
    )[0]
    assert chosen.pairing.name in names


def test_a_dry_run_writes_nothing(tiny: Path, tmp_path: Path):
    ran = specbench(
        "sweep-k --target ./target --method ngram --dry-run",
        *("-w", "prompts.jsonl", "--runs-dir", tmp_path / "out"),
        cwd=tiny,
    )
    assert ran.code == 0, ran.err
    assert "target/ngram" in ran.out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--target ./target --draft ''", "--draft is empty"),
        ("--draft ./draft", "--draft './draft' needs --target MODEL"),
        ("tiny --target ./target", "--target ./target: leave out tiny"),
        ("--target ./target --draft draft --draft-p-min 2", "--draft-p-min '2': expected"),
        ("--target ./target --draft ngram --draft-p-min 0.5", "target/ngram draft no chain"),
        ("--target ./target --draft a b", "type --draft a --draft b"),
        ("--target ./nowhere", "the folder ./nowhere does not exist"),
        ("--target ./target --draft eagle", "--draft eagle: the method needs weights"),
        ("--resume latest --target ./target", "--resume keeps the pair of its run"),
    ],
)
@pytest.mark.parametrize("command", ["run", "sweep-k"])
def test_bad_model_options_are_refused(tiny: Path, command: str, words: str, message: str):
    ran = specbench(f"{command} {words}", cwd=tiny)
    assert ran.code == 2
    assert message in ran.err


@pytest.mark.parametrize("target", ["owner/not-on-this-machine", "demo:target"])
@pytest.mark.parametrize("engine", ["builtin", "llama_cpp"])
def test_a_gguf_file_with_another_kind_of_model_is_refused_before_anything_is_written(
    target: str, engine: str, tmp_path: Path
):
    write_gguf(tmp_path / "x.gguf")
    words = ("--target", target, "--draft", "./x.gguf", "--engine", engine)
    ran = specbench("run", *words, "--runs-dir", "out", cwd=tmp_path)
    assert ran.code == 2
    assert " ./x.gguf is " in ran.err
    assert "GGUF" in ran.err
    assert "To keep this pair" not in ran.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", ["demo:target", "demo", "./target"])
def test_pair_measures_the_prompts_that_run_measures(
    target: str, tiny: Path, monkeypatch: pytest.MonkeyPatch
):
    planned = []

    def plan_only(plan, *_: object, **__: object) -> None:
        planned.append({(w.name, w.sha256) for target in plan.targets for w in target.workloads})
        raise UsageError("planned")

    for module in ("measure", "pair"):  # the package has functions of these names
        monkeypatch.setattr(sys.modules[f"specbench.cli.{module}"], "run_planned", plan_only)
    options = ("--draft", "ngram", "-w", "code", "--max-new-tokens", "16", "--device", "cpu")
    for words in (("run", "--target", target), ("pair", target)):
        assert specbench(*words, *options, cwd=tiny).code == 2
    of_run, of_pair = planned
    assert of_run == of_pair
    assert {name for name, _ in of_run} == {"code" if target == "./target" else "demo code"}


def test_pair_accepts_the_model_options_of_run(tiny: Path):
    ran = specbench("pair --target ./target --draft ./draft --dry-run", cwd=tiny)
    assert ran.code == 0, ran.err
    assert "draft" in ran.out
    assert specbench("pair", cwd=tiny).code == 2


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose only run, in reports/, is of ./models/big with ./models/small."""
    folder = tmp_path_factory.mktemp("own")
    write_pair(folder)
    (folder / "models").mkdir()
    (folder / "target").rename(folder / "models" / "big")
    (folder / "draft").rename(folder / "models" / "small")
    (folder / "pairings.yaml").unlink()
    pair = ("--target", "./models/big", "--draft", "./models/small", "--draft", "ngram")
    ran = specbench("run", *pair, "-w", "prompts.jsonl", "-k", "2", *SMALL, cwd=folder)
    assert ran.code in (0, 3), ran.err
    return folder


def exported(folder: Path, name: str = "big/small") -> str:
    ran = specbench("export", name, "--engine", "vllm", "-k", "2", cwd=folder)
    assert ran.code == 0, ran.err
    return ran.out.splitlines()[-1]


@pytest.mark.slow
def test_every_command_knows_an_ad_hoc_pairing_by_name(measured: Path):
    for command in (
        ["inspect", "big/small", "--prompt", "Hello", "--max-new-tokens", "4", "-k", "1"],
        ["doctor", "big/small"],
        ["run", "big/small", "--dry-run", "--max-new-tokens", "16"],
        ["sweep-k", "big", "--dry-run", "--max-new-tokens", "16"],
        ["pair", "big", "--dry-run", "--max-new-tokens", "16"],
        ["export", "big/ngram", "--engine", "vllm"],
    ):
        ran = specbench(*command, cwd=measured)
        assert ran.code in (0, 3), (command, ran.err)
    short = ("--max-new-tokens", "16")
    dry = specbench("run big/small --dry-run --json", *short, cwd=measured)
    assert {cell["pairing"] for cell in json.loads(dry.out)["cells"]} == {"big", "big/small"}


@pytest.mark.slow
def test_model_paths_in_an_exported_command_exist_in_the_working_folder(measured: Path):
    words = shlex.split(exported(measured))
    config = json.loads(words[words.index("--speculative-config") + 1])
    for model, name in ((words[2], "big"), (config["model"], "small")):
        assert (measured / model / "config.json").is_file()
        assert Path(model).name == name


@pytest.mark.slow
def test_a_copied_run_can_be_exported_and_resumed_anywhere(measured: Path, tmp_path: Path):
    (run,) = measured.glob("reports/*/run.json")
    copy = tmp_path / "elsewhere" / run.parent.name
    shutil.copytree(run.parent, copy)
    ran = specbench("export big/small --engine vllm --json --run", copy, cwd=tmp_path)
    assert ran.code in (0, 3), ran.err
    assert json.loads(ran.out)["pairing"] == "big/small"
    shutil.copy(measured / "prompts.jsonl", tmp_path)
    ran = specbench("run --dry-run --json --resume", copy, cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert {cell["pairing"] for cell in json.loads(ran.out)["cells"]} == {
        *("big", "big/small", "big/ngram")
    }


@pytest.mark.slow
def test_export_prefers_the_pairings_file_and_then_the_latest_run(measured: Path, tmp_path: Path):
    folder = tmp_path / "copy"
    shutil.copytree(measured, folder)
    (first,) = folder.glob("reports/*/run.json")
    second = folder / "reports" / "20990101-000000-beef"
    shutil.copytree(first.parent, second)
    run = json.loads((second / "run.json").read_text())
    (target,) = run["targets"]
    target["drafters"] = [{"name": "small", "method": "suffix"}]
    run["run_id"] = second.name
    run["environment"]["created_at"] = "2099-01-01T00:00:00+00:00"
    (second / "run.json").write_text(json.dumps(run))
    assert '"suffix"' in exported(folder)
    assert '"ngram"' in exported(folder, "big/ngram")  # the later file has none
    entry = {"model": "./models/big", "drafters": {"small": {"method": "ngram"}}}
    (folder / "pairings.yaml").write_text(yaml.safe_dump({"targets": {"big": entry}}))
    assert '"ngram"' in exported(folder)


@pytest.mark.slow
def test_a_missing_model_and_a_similar_name_are_reported(measured: Path, tmp_path: Path):
    folder = tmp_path / "copy"
    shutil.copytree(measured, folder)
    ran = specbench("export big/smal --engine vllm", cwd=folder)
    assert ran.code == 2
    assert "did you mean 'big/small'" in ran.err
    (run,) = folder.glob("reports/*/run.json")
    run.write_text(run.read_text().replace(str(measured), str(folder)))
    shutil.rmtree(folder / "models" / "small")
    ran = specbench("export big/small --engine vllm", cwd=folder)
    assert ran.code == 2
    assert run.parent.name in ran.err
    assert "models/small" in ran.err
    assert "--draft" in ran.err
    other = specbench("export demo/draft --engine vllm -k 2", cwd=folder)
    assert other.code == 0, other.err


@pytest.mark.parametrize(
    ("adapter", "words"),
    [
        # As peft writes it for a hub model; for a folder; without the model's name; damaged.
        (
            '{"base_model_name_or_path": "meta-llama/Llama-3.1-8B", "peft_type": "LORA", "r": 8}',
            "LoRA adapter of meta-llama/Llama-3.1-8B,",
        ),
        ('{"base_model_name_or_path": "../base"}', "LoRA adapter of ../base,"),
        ('{"base_model_name_or_path": null}', "LoRA adapter,"),
        ("{", "LoRA adapter,"),
    ],
)
def test_an_adapter_alone_is_named_with_its_model_and_how_to_merge_it(
    tiny: Path, tmp_path: Path, adapter: str, words: str
):
    for name in ("adapter", "loras/one"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "adapter_config.json").write_text(adapter)
    (tmp_path / "pairings.yaml").write_text("targets:\n  case:\n    model: ./adapter\n")
    for command in (
        ("pair", tiny / "target", "--draft", "./adapter", "--dry-run"),
        ("run", "--target", "./adapter", "--draft", "ngram", "--dry-run"),
        ("pair", tiny / "target", "--draft", "loras/one", "--dry-run"),  # as a hub id is written
        ("doctor", "case"),
        ("pair", "case", "--dry-run"),
    ):
        ran = specbench(*command, cwd=tmp_path)
        assert ran.code == 2, (command, ran)
        assert words in ran.err
        assert "merge_and_unload" in ran.err
