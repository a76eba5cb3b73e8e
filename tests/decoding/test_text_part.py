"""Only the text part of a multimodal model is loaded, and its outputs stay the same."""

import logging
import re
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    CLIPVisionConfig,
    Florence2Config,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from specbench.bench.built_weights import built_weights
from specbench.errors import ModelError
from specbench.fit.loaded_tensors import loaded_difference
from specbench.fit.memory_plan import DeploymentSpec, plan_target
from specbench.forward.self_test import make_checked_runner
from specbench.models import loading
from specbench.models.loading import LoadedModel, load_model
from specbench.models.parts import keep_text_part, text_class
from tests.decoding.models import SHAPE, plain_logits
from tests.tiny_models import files_of, spec_of

CPU = torch.device("cpu")
DROPPED = ("model.vision_tower", "model.multi_modal_projector")
DROPPED_FILES = ("multi_modal_projector", "vision_tower")  # as the files name them


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A tiny Llava and the folder it is stored in."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    small = {"num_attention_heads": 2, "image_size": 28, "patch_size": 14, "projection_dim": 16}
    config = LlavaConfig(
        text_config=LlamaConfig(**SHAPE),
        vision_config=CLIPVisionConfig(**vision, **small),
        image_token_index=96,
    )
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config).eval()
    folder = tmp_path_factory.mktemp("llava")
    model.save_pretrained(folder)
    return model, folder


@pytest.fixture(scope="module")
def loaded(whole: tuple[Any, Path]) -> LoadedModel:
    return load_model(spec_of(whole[1]), CPU)


def test_a_vision_model_with_a_text_encoder_is_refused() -> None:
    with pytest.raises(ModelError, match="florence2 has an encoder"):
        text_class(Florence2Config())


def test_modules_without_weights_are_kept(whole: tuple[Any, Path]) -> None:
    model = deepcopy(whole[0])
    model.model.scale = torch.nn.Identity()
    assert keep_text_part(model) == DROPPED
    assert isinstance(model.model.scale, torch.nn.Identity)


def test_a_model_without_the_weights_of_its_towers_loads(
    whole: tuple[Any, Path], tmp_path: Path
) -> None:
    """As text-only fine-tunes store it; a tensor of the text part is still needed."""
    shutil.copytree(whole[1], tmp_path / "text")
    file = tmp_path / "text" / "model.safetensors"
    tensors = {n: t for n, t in load_file(file).items() if not n.startswith(DROPPED_FILES)}
    save_file(tensors, file, metadata={"format": "pt"})
    assert loaded_difference(files_of(file.parent)).reason is None
    assert load_model(spec_of(file.parent), CPU).dropped == DROPPED
    del tensors["language_model.model.norm.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    assert loaded_difference(files_of(file.parent)).missing == ("model.language_model.norm.weight",)


def test_vision_modules_are_dropped_and_listed_in_a_note(loaded: LoadedModel) -> None:
    assert loaded.dropped == DROPPED
    (note,) = loaded.notes
    assert re.search(r"text part .*LlavaForConditionalGeneration .*\(LlamaModel\); ", note)
    assert note.endswith(": " + ", ".join(DROPPED))


def test_dropped_vision_modules_count_neither_as_parameters_nor_as_bytes(
    whole: tuple[Any, Path], loaded: LoadedModel
) -> None:
    towers = (whole[0].model.vision_tower, whole[0].model.multi_modal_projector)
    gone = sum(p.numel() for tower in towers for p in tower.parameters())
    assert loaded.num_parameters == sum(p.numel() for p in whole[0].parameters()) - gone


def test_dropped_vision_modules_do_not_count_as_parameters_of_packed_weights(
    whole: tuple[Any, Path], loaded: LoadedModel
) -> None:
    model = deepcopy(loaded.model)
    model.config.quantization_config = {"quant_method": "gptq", "bits": 4}
    counted = loading._num_parameters(model, spec_of(whole[1]), "gptq")
    assert counted == loaded.num_parameters


@pytest.mark.parametrize("shown", [pytest.param(True, id="files"), pytest.param(False, id="built")])
def test_a_plan_counts_only_loaded_parts_and_lists_dropped_ones(
    whole: tuple[Any, Path], loaded: LoadedModel, tmp_path: Path, shown: bool
) -> None:
    files = files_of(whole[1])
    if not shown:  # only a config: the model is built without memory
        (tmp_path / "config.json").write_text((whole[1] / "config.json").read_text())
        files = files_of(tmp_path)
    plan = plan_target(files, DeploymentSpec(device="cpu", context=60), built_weights)
    assert plan is not None
    assert plan.target.num_parameters == loaded.num_parameters
    assert plan.target.nbytes == pytest.approx(loaded.weights_bytes, rel=1e-3)
    left_out = [note.partition("left out: ")[2] for note in plan.notes]
    assert not shown or left_out == [", ".join(DROPPED_FILES)]


def test_the_text_part_has_the_logits_of_the_whole_model(
    whole: tuple[Any, Path], loaded: LoadedModel
) -> None:
    tokens_BT = torch.arange(1, 20)[None]
    assert torch.equal(plain_logits(loaded.model, tokens_BT), plain_logits(whole[0], tokens_BT))
    runner, _ = make_checked_runner(loaded.model)
    assert runner.kind == "stock"


def test_transformers_does_not_warn_about_dropped_parts(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    log = logging.getLogger("transformers.modeling_utils")
    monkeypatch.setattr(log, "handle", lambda record: messages.append(record.getMessage()))
    loaded.model.set_attn_implementation("eager")
    assert "vision_config" in messages.pop()  # as it does

    make_checked_runner(loaded.model)

    assert not messages


def test_dummy_weights_cover_only_the_text_part(whole: tuple[Any, Path]) -> None:
    made = load_model(spec_of(whole[1]), CPU, dummy=True)
    assert made.dropped == DROPPED


def test_an_image_input_to_the_text_part_is_refused(loaded: LoadedModel) -> None:
    with pytest.raises(ModelError, match=r"model.vision_tower"):
        loaded.model.model.vision_tower(torch.zeros(1))
