"""A written pairings file reads back as the same target and drafters."""

from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.files.model_spec import ModelSpec
from specbench.fit.pairings_file import write_pairings
from specbench.inputs.config import load_pairings
from specbench.inputs.model_spec import model_spec
from specbench.inputs.pairing import DrafterSpec, Target
from specbench.records import LossyRule
from specbench.shipped import shipped

DRAFTERS = (
    DrafterSpec(name="ngram", method="ngram", num_speculative_tokens=3),
    DrafterSpec(
        name="tree",
        method="draft_model",
        model=model_spec("demo:draft"),
        parameters={"tree": (3, 2)},
    ),
    DrafterSpec(
        name="far",
        method="draft_model",
        model=ModelSpec(source="owner/draft", revision="123", dtype="bfloat16"),
    ),
    DrafterSpec(
        name="typical",
        method="draft_model",
        model=model_spec("demo:draft"),
        lossy=LossyRule(name="typical", parameters={"threshold": 0.2, "alpha": 0.3}),
    ),
)


def test_targets_and_drafters_read_back(tmp_path: Path):
    model = ModelSpec(source="owner/big", quantization="int8", weights_gib=15.5)
    target = Target(name="big", model=model, drafters=(), workloads=tmp_path)
    file = tmp_path / "pairings.yaml"
    write_pairings(file, target, DRAFTERS, "made\nby a test")
    assert file.read_text().startswith("# made\n# by a test\n")
    (read,) = load_pairings(file).targets
    assert (read.name, read.model, read.workloads) == ("big", model, tmp_path)
    assert read.drafters == DRAFTERS


@pytest.mark.parametrize("of_target", ["auto", "bfloat16", "float16"])
def test_a_drafter_keeps_its_dtype_whatever_that_of_its_target(tmp_path: Path, of_target):
    drafters = [
        DrafterSpec(name=d, method="draft_model", model=ModelSpec(source="owner/draft", dtype=d))
        for d in ("auto", "bfloat16")
    ]
    model = ModelSpec(source="owner/big", dtype=of_target)
    file = tmp_path / "pairings.yaml"
    write_pairings(file, Target(name="big", model=model, drafters=()), drafters, "")
    (read,) = load_pairings(file).targets
    assert (read.model, list(read.drafters)) == (model, drafters)


def test_a_folder_in_a_pairings_file_is_relative_to_the_file(tmp_path: Path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    spec = ModelSpec(source="./model", folder=folder)
    target = Target(name="t", model=spec, drafters=())
    for file, name in (("pairings.yaml", "./model"), ("ci/pairings.yaml", "../model")):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        write_pairings(tmp_path / file, target, DRAFTERS[:1], "")
        assert f"    model: {name}\n" in (tmp_path / file).read_text()
        (read,) = load_pairings(tmp_path / file).targets
        assert read.model.folder is not None
        assert read.model.folder.resolve() == folder


def test_every_target_that_is_shipped_can_be_written(tmp_path: Path):
    for target in load_pairings(shipped("pairings.yaml")).targets:
        file = tmp_path / f"{target.name}.yaml"
        write_pairings(file, target, target.drafters, "")
        (read,) = load_pairings(file).targets
        assert read.model == target.model
        assert [(d.method, d.model, d.parameters) for d in read.drafters] == [
            (d.method, d.model, d.parameters) for d in target.drafters
        ]


def test_an_existing_pairings_file_is_not_overwritten(tmp_path: Path):
    file = tmp_path / "pairings.yaml"
    file.write_text("mine")
    target = Target(name="t", model=ModelSpec(source="owner/big"), drafters=())
    with pytest.raises(UsageError, match="file exists"):
        write_pairings(file, target, DRAFTERS, "")
    assert file.read_text() == "mine"
