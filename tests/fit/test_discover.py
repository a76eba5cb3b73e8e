"""Models found in folders and in the hub's cache; nothing found there ever runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.files.model import ModelFiles
from specbench.fit import candidates
from specbench.fit.candidates import Discovery, discover, drafter_of, draftless, with_unique_names
from specbench.methods import find_method
from tests.fit.test_compatibility import Mark
from tests.tiny_models import (
    HEADS,
    change_config,
    replace_weights,
    write_files,
    write_head,
    write_model,
)

DRAFTLESS = {
    *("lookahead", "ngram", "previous_turn", "self_speculation", "suffix", "token_recycling"),
}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target, a draft, every kind of head, and things that are neither."""
    root = tmp_path_factory.mktemp("pool")
    target = write_model(root / "big" / "target")
    write_model(root / "small" / "draft", num_hidden_layers=1)
    for method in HEADS:
        write_head(root / "heads" / method, method, target)
    write_model(root / "huge", num_hidden_layers=9)
    write_files(root / "bert", {"architectures": ["BertModel"], "model_type": "bert"})
    translator = {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}
    write_files(root / "t5", translator)
    (root / "broken").mkdir()
    (root / "broken" / "config.json").write_text("{")
    (root / ".hidden").mkdir()
    (root / ".hidden" / "config.json").write_text("{}")
    return root


@pytest.fixture
def target(pool: Path) -> ModelFiles:
    from tests.tiny_models import files_of

    return files_of(pool / "big" / "target")


def find(target: ModelFiles, *folders: Path) -> Discovery:
    return discover(target, folders, in_hub_cache=False)


def test_drafts_and_heads_are_found_with_their_methods(target, pool):
    discovery = find(target, pool)
    methods = {d.name: d.method for d in discovery.drafters if d.model is not None}
    assert methods == {"draft": "draft_model", **{method: method for method in HEADS}}


def test_methods_without_a_draft_model_are_always_found(target):
    discovery = find(target)
    methods = {drafter.method for drafter in discovery.drafters}
    assert methods >= DRAFTLESS
    assert all(find_method(method).model == "refused" for method in methods)
    assert discovery.left_out == ()


def test_a_model_that_cannot_draft_is_refused_with_a_reason(target, pool):
    reasons = {Path(out.source).name: out.reason for out in find(target, pool).left_out}
    assert set(reasons) == {"huge", "bert", "t5", "broken"}
    assert "not smaller" in reasons["huge"]
    assert "BertModel" in reasons["bert"]
    assert "cannot be read" in reasons["broken"]


def test_hostile_folders_are_listed_and_nothing_in_them_runs(target, tmp_path):
    pool = tmp_path / "pool"
    pickled = write_model(pool / "pickled", num_hidden_layers=1)
    replace_weights(pickled, "pytorch_model.bin", Mark(tmp_path / "unpickled"))
    coded = write_model(pool / "coded", num_hidden_layers=1)
    (coded.folder / "configuration_own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    change_config(coded, model_type="own", auto_map={"AutoConfig": "configuration_own.Own"})
    (pool / "away").symlink_to(tmp_path)

    discovery = find(target, pool)

    assert {d.name for d in discovery.drafters if d.model} == {"pickled", "coded"}
    assert not (tmp_path / "unpickled").exists()
    assert not (tmp_path / "ran").exists()


def test_a_config_of_a_billion_layers_is_listed_with_the_reason(target, tmp_path):
    change_config(write_model(tmp_path / "deep", num_hidden_layers=1), num_hidden_layers=10**9)
    (left_out,) = find(target, tmp_path).left_out
    assert "num_hidden_layers is 1000000000" in left_out.reason


def test_draft_models_are_found_in_the_hub_cache(tmp_path):
    """A cache laid out by huggingface_hub, in a process with the path in its environment."""
    home = tmp_path / "home"
    commit = "a" * 40
    for name, layers in (("target", 6), ("draft", 1)):
        repository = home / "hub" / f"models--owner--{name}"
        write_model(repository / "snapshots" / commit, num_hidden_layers=layers)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(commit)
    code = (
        "import json\n"
        "from specbench.files.model import open_model\n"
        "from specbench.inputs.model_spec import model_spec\n"
        "from specbench.fit.candidates import discover\n"
        "found = discover(open_model(model_spec('owner/target')))\n"
        "print(json.dumps([[d.name, d.method, d.model.source] for d in found.drafters if d.model]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"HF_HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2]), "HOME": "/"},
    )
    assert json.loads(done.stdout) == [["draft", "draft_model", "owner/draft"]]


def test_a_path_that_is_not_a_folder_is_a_usage_error(target, tmp_path):
    with pytest.raises(UsageError, match=r"--search-dir .*nowhere"):
        find(target, tmp_path / "nowhere")


def test_a_folder_with_too_many_folders_is_a_usage_error(target, pool, monkeypatch):
    monkeypatch.setattr(candidates, "_MAX_FOLDERS", 3)
    with pytest.raises(UsageError, match=f"--search-dir {pool}: .* 3 folders"):
        find(target, pool)


@pytest.mark.parametrize(
    ("word", "name", "method"),
    [
        ("ngram", "ngram", "ngram"),
        ("demo:draft", "draft", "draft_model"),
        ("demo:eagle3", "eagle3", "eagle3"),
        ("demo:medusa", "medusa", "medusa"),
        ("mtp", "mtp", "mtp"),
        ("owner/not-here", "not-here", "draft_model"),
    ],
)
def test_a_draft_option_is_parsed_into_name_and_method(word, name, method):
    drafter = drafter_of(word)
    assert (drafter.name, drafter.method) == (name, method)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("eagle", "the method needs weights; name their folder"),
        ("eagle=./head", "eagle=./head: write ./head; the method follows from its files"),
        ("./nowhere", "the folder ./nowhere does not exist"),
        ("demo:nothing", "no demo model 'nothing'"),
        ("a b", "is not a target in pairings.yaml"),
    ],
)
def test_an_unknown_draft_name_is_a_usage_error(word, message):
    with pytest.raises(UsageError, match=message):
        drafter_of(word)


def test_drafters_of_equal_name_get_numbers():
    names = [d.name for d in with_unique_names([drafter_of("ngram")] * 3)]
    assert names == ["ngram", "ngram-2", "ngram-3"]


def test_mtp_is_offered_if_the_targets_files_have_its_layers(tmp_path):
    import torch

    shape = {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "mimo",
        "num_hidden_layers": 2,
        "num_nextn_predict_layers": 1,
    }
    name = "model.mtp_layers.0.input_proj.weight"
    with_mtp = write_files(tmp_path / "with", shape, {name: torch.zeros(1)})
    without = write_files(tmp_path / "without", shape, {"model.norm.weight": torch.zeros(1)})
    assert "mtp" in {d.method for d in draftless(with_mtp)}
    assert "mtp" not in {d.method for d in draftless(without)}
