"""What specbench relies on inside other libraries holds on the installed versions."""

import inspect
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.utils.chat_template_utils import render_jinja_template
from transformers.utils.quantization_config import QuantizationMethod

from specbench import library_facts
from specbench.decode.clock import Clock
from specbench.engines import loaded_drafters
from specbench.engines.kernel_choices import KernelChoices
from specbench.engines.model_pool import ModelPool
from specbench.errors import LibraryError, ModelError
from specbench.files.model_spec import ModelSpec
from specbench.forward.state_layers import cache_of
from specbench.library_facts import (
    READERS,
    TEMPLATE_CLOCK,
    cache_argument,
    knows_format,
    knows_model_type,
    load_on_meta,
    newer_than_tested,
)
from tests import versions
from tests.cli.calls import specbench
from tests.decoding.models import tiny_llama
from tests.versions import requirements

MODELS = Path(library_facts.__file__).parent / "demo" / "models"


def test_forwards_of_models_decoders_and_layers_take_the_cache_under_a_known_name() -> None:
    model = tiny_llama()
    layer = model.model.layers[0]
    for forward in (model.forward, model.model.forward, layer.forward, layer.self_attn.forward):
        assert cache_argument(forward) in inspect.signature(forward).parameters


def test_the_argument_of_the_cache_is_the_name_of_the_cache_in_the_output() -> None:
    model = tiny_llama()
    out = model(**model.dummy_inputs, use_cache=True)
    assert out[cache_argument(model.forward)] is cache_of(out)


def test_chat_templates_read_the_time_by_the_known_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module, name = TEMPLATE_CLOCK
    monkeypatch.setattr(import_module(module), name, _Year1999)
    rendered, _ = render_jinja_template([[]], chat_template="{{ strftime_now('%Y') }}")
    assert rendered == ["1999"]


class _Year1999:
    @staticmethod
    def now() -> "_Year1999":
        return _Year1999()

    @staticmethod
    def strftime(_: str) -> str:
        return "1999"


def test_every_type_of_model_is_known_and_no_other() -> None:
    unknown = {kind for kind in CONFIG_MAPPING_NAMES if not knows_model_type(kind)}
    assert not unknown
    assert knows_model_type("lama") is False


def test_loading_on_meta_gives_the_account_of_loading(tmp_path: Path) -> None:
    model = tiny_llama()
    tensors = model.state_dict()
    tensors["model.layers.0.mlp.up_proj.scale"] = torch.ones(1)
    tensors["model.norm.weight"] = torch.ones(3)
    del tensors["lm_head.weight"]
    model.config.save_pretrained(tmp_path)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    _, loaded = type(model).from_pretrained(
        tmp_path, output_loading_info=True, ignore_mismatched_sizes=True
    )
    with torch.device("meta"):
        empty = type(model)(model.config)
        account = load_on_meta(empty, {name: t.to("meta") for name, t in tensors.items()})
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert account[kind] == loaded[kind] != set()
    assert not account["conversion_errors"]


def test_a_loader_that_moved_is_one_error_with_the_version_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library_facts, "_LOADER", {"transformers.modeling_utils": ("no_loader",)})
    with pytest.raises(LibraryError, match=r"no_loader.*pip install"):
        load_on_meta(None, {})


def test_every_format_of_weights_is_known_and_no_other() -> None:
    assert all(knows_format(str(method.value)) for method in QuantizationMethod)
    assert set(READERS) <= {str(method.value) for method in QuantizationMethod} | {"awq"}
    assert [knows_format(name) for name in ("qptq", "gemm", "marlin", "auto")] == [False] * 4


def test_without_transformers_nothing_is_said_about_types_and_formats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_absent(name: str) -> None:
        raise library_facts.PackageNotFoundError(name)

    monkeypatch.setattr(library_facts, "distribution", is_absent)
    library_facts._text_of.cache_clear()
    assert knows_model_type("llama") is None
    assert knows_format("gptq") is None
    library_facts._text_of.cache_clear()


def test_a_clock_that_moved_is_one_error_with_the_version_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library_facts, "TEMPLATE_CLOCK", ("transformers.utils", "no_clock"))
    reader = "specbench.models.tokenizer"  # imported again
    monkeypatch.delitem(sys.modules, reader, raising=False)
    with pytest.raises(LibraryError, match="pip install"):
        import_module(reader)


def test_a_run_on_a_newer_library_says_so_and_that_the_logits_are_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    newer = "transformers 9.0 is newer than the newest tested one, 5.24"
    monkeypatch.setattr(loaded_drafters, "newer_than_tested", lambda: [newer])
    note = loaded_drafters.take(*_of_the_draft()).notes[-1]
    assert newer in note
    assert note.endswith(": yes")

    assert newer not in "".join(loaded_drafters.take(*_of_the_draft(), role="draft").notes)

    def refuse(*_: object) -> None:
        raise ModelError("other logits")

    for place, name in ((loaded_drafters, "make_checked_runner"), (ModelPool, "load")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, refuse)
            with pytest.raises(ModelError) as refused:
                loaded_drafters.take(*_of_the_draft())
            assert newer in str(refused.value)


def _of_the_draft() -> tuple[ModelPool, ModelSpec, Literal["auto"], KernelChoices]:
    spec = ModelSpec(source="demo:draft", folder=MODELS / "draft")
    device = torch.device("cpu")
    return ModelPool(device), spec, "auto", KernelChoices("auto", Clock(), None)


def test_a_file_that_transformers_no_longer_has_is_one_error_with_the_version_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library_facts, "_FORMATS", "utils/elsewhere.py")
    with pytest.raises(LibraryError) as refused:
        knows_format("gptq")
    assert "elsewhere.py" in str(refused.value)
    bounds = next(str(r.specifier) for r in requirements() if r.name == "transformers")
    assert f"pip install 'transformers{bounds}'" in str(refused.value)


def test_bounds_of_the_installation_are_those_of_the_project() -> None:
    of_project = {r.name: str(r.specifier) for r in requirements() if "<" in str(r.specifier)}
    assert library_facts._bounds() == of_project
    assert {"torch", "transformers", "triton", "torchao"} == of_project.keys()


@pytest.mark.parametrize(
    ("installed", "is_newer"),
    [("5.24.9", False), ("5.25.0", True), ("5.25.0.dev0", True), ("6.0", True), ("5.9", False)],
)
def test_a_library_is_newer_from_the_first_minor_version_that_was_not_tested(
    installed: str, is_newer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_facts, "_bounds", lambda: {"transformers": "<5.25,>=5.17"})
    monkeypatch.setattr(library_facts, "version", lambda _: installed)
    phrases = newer_than_tested()
    assert bool(phrases) is is_newer
    assert all("5.24" in phrase for phrase in phrases)


@pytest.mark.parametrize("broken", [None, "main"])
def test_a_library_whose_metadata_are_damaged_is_not_called_newer(
    broken: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_facts, "_bounds", lambda: {"transformers": "<5.25,>=5.17"})
    monkeypatch.setattr(library_facts, "version", lambda _: broken)
    assert newer_than_tested() == []


def test_doctor_names_a_library_that_is_newer_than_tested(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    newer = "torch 9.0 is newer than the newest tested one, 2.15"
    monkeypatch.setattr(import_module("specbench.cli.doctor"), "newer_than_tested", lambda: [newer])
    assert newer in specbench("doctor demo/draft", cwd=tmp_path).out


def test_raising_bounds_writes_the_next_minor_and_the_pin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(versions.ROOT / name, tmp_path)
    installed = {"transformers": "7.3.1", "torch": "2.99.0+cpu", "triton": "3.99.0"}
    monkeypatch.setattr(
        versions.subprocess, "check_output", lambda command, **_: installed.get(command[-1], "0.18")
    )
    versions.raise_bounds(Path("python"), tmp_path)
    limits = {r.name: versions.bound(r, "<") for r in requirements(tmp_path)}
    assert {name: limits[name] for name in ("transformers", "torch", "triton", "torchao")} == {
        "transformers": "7.4",
        "torch": "2.100",
        "triton": "3.100",
        "torchao": "0.19",
    }
    pins = (tmp_path / "constraints.txt").read_text(encoding="utf-8")
    assert "transformers==7.3.1" in pins
    assert "torch==2.99" not in pins  # of which not every release has a build for CPUs


def test_bounds_are_raised_only_by_the_whole_suite() -> None:
    with pytest.raises(SystemExit):
        versions.main("raise", "tests/fit")
