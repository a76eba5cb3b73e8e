"""What a model's files have and what its modules would read: compared without reading weights."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torchao.quantization import Int8WeightOnlyConfig
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoConfig,
    LlamaConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen3MoeConfig,
    TorchAoConfig,
)

from specbench.cli.doctor import _loading_problems
from specbench.drafters.mtp import MtpHead
from specbench.errors import ModelError
from specbench.files.head_files import Difference, unscaled
from specbench.files.model import ModelFiles, open_model, require_weights
from specbench.fit import compatibility, loaded_tensors
from specbench.fit.candidates import unsupported_reasons
from specbench.fit.compatibility import check_target, head_findings
from specbench.fit.loaded_tensors import UnknownError, asking, loaded_difference
from specbench.forward.runner import StockRunner
from specbench.inputs.pairing import DrafterSpec, Pairing, Target
from specbench.methods import find_method
from specbench.models.checkpoint import read_checkpoint
from specbench.models.loading import load_model, take_text_part
from specbench.models.parts import text_class
from tests.drafters.mtp_families import checkpoint_for, family_of
from tests.tiny_models import change_config, files_of, write_model
from tests.tiny_pair import make_tokenizer

SMALL = {
    **{"vocab_size": 272, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16},
}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
FAMILIES: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SMALL),
    "tied": LlamaConfig(**SMALL, tie_word_embeddings=True),
    "gemma3": Gemma3TextConfig(**SMALL),
    "mixtral": MixtralConfig(**SMALL, num_local_experts=4),  # one tensor per expert in its files
    "qwen3_moe": Qwen3MoeConfig(**SMALL, **MIXTURE),
    "gpt2": GPT2Config(vocab_size=272, n_embd=32, n_layer=2, n_head=2, n_positions=32),
}


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of each model as transformers saves it, with a tokenizer."""
    root = tmp_path_factory.mktemp("families")

    @cache
    def saved(name: str) -> Path:
        text_class(FAMILIES[name]).from_config(FAMILIES[name]).save_pretrained(root / name)
        make_tokenizer().save_pretrained(root / name)
        return root / name

    return saved


@pytest.fixture(params=FAMILIES)
def family(
    request: pytest.FixtureRequest, families: Callable[[str], Path], tmp_path: Path
) -> ModelFiles:
    """Its own copy of a model."""
    return files_of(Path(shutil.copytree(families(request.param), tmp_path / request.param)))


def rewrite(model: ModelFiles, change) -> ModelFiles:
    file = model.folder / "model.safetensors"
    tensors = load_file(file)
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    change(tensors)
    save_file(tensors, file, metadata=metadata)
    return files_of(model.folder)


def test_a_saved_model_reads_all_of_its_files_and_nothing_else(family):
    assert loaded_difference(family) == Difference()


def test_every_tensor_of_a_saved_model_is_needed(family):
    """Each alone; tied heads are not stored. Of the second layer, which is like the first, one."""
    names = sorted(family.tensors or ())
    second = [name for name in names if ".layers.1." in name or ".h.1." in name]
    stored = (family.folder / "model.safetensors").read_bytes()
    for name in sorted({*names} - {*second[1:]})[:24]:
        lacking = loaded_difference(rewrite(family, lambda tensors, name=name: tensors.pop(name)))
        assert lacking.missing or lacking.other, name
        (family.folder / "model.safetensors").write_bytes(stored)


def test_a_tensor_next_to_one_that_is_read_is_unread_in_every_layer(family):
    names = [name for name in family.tensors or () if name.endswith(("weight", "_proj"))]
    for name in names[:12]:
        scale = f"{name}_scale"
        with_scale = rewrite(family, lambda tensors, s=scale: tensors.update({s: torch.ones(1)}))
        difference = loaded_difference(with_scale)
        assert any(unread.endswith("_scale") for unread in difference.unread), name
        assert not difference.missing
        rewrite(family, lambda tensors, s=scale: tensors.pop(s))


def test_base_models_and_old_rotary_tables_and_cache_scales_load(tmp_path):
    model = write_model(tmp_path)

    def change(tensors):
        for name in list(tensors):
            if name != "lm_head.weight":
                tensors[name.removeprefix("model.")] = tensors.pop(name)
        tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
        tensors["layers.0.self_attn.k_scale"] = torch.ones(1)
        tensors["layers.0.mlp._extra_state"] = torch.ones(8, dtype=torch.uint8)

    difference = loaded_difference(rewrite(model, change))
    assert difference.reason is None
    added = rewrite(model, lambda t: t.update({"layers.0.mlp.up_proj.bias": torch.ones(48)}))
    assert loaded_difference(added).unread == ("model.layers.0.mlp.up_proj.bias",)


def test_masks_that_old_transformers_stored_load(tmp_path):
    """As in EleutherAI/gpt-neo-125m."""
    config = GPTNeoConfig(
        **{"vocab_size": 272, "hidden_size": 32, "num_layers": 2, "num_heads": 2},
        attention_types=[[["global", "local"], 1]],
    )
    text_class(config).from_config(config).save_pretrained(tmp_path)
    masks = {"bias": torch.ones(1, 1, 8, 8, dtype=torch.uint8), "masked_bias": torch.tensor(-1e9)}
    named = {f"transformer.h.0.attn.attention.{name}": mask for name, mask in masks.items()}
    assert loaded_difference(rewrite(files_of(tmp_path), lambda t: t.update(named))).reason is None


@pytest.mark.parametrize("name", ["mtp.layers.0.mlp.up_proj.weight", "vision.proj.weight"])
def test_modules_that_do_not_run_are_a_warning_with_their_first_tensor(tmp_path, name):
    changed = rewrite(write_model(tmp_path), lambda t: t.update({name: torch.ones(2, 2)}))
    assert loaded_difference(changed) == Difference(left_out=(name,))
    (finding,) = [found for found in check_target(changed) if found.field == "tensors"]
    assert finding.level == "warning"
    assert name in finding.reason


def test_layers_beyond_those_of_the_config_do_not_run(tmp_path):
    model = write_model(tmp_path)
    fewer = loaded_difference(change_config(model, num_hidden_layers=5))
    assert fewer.reason is None
    assert all(name.startswith("model.layers.5.") for name in fewer.left_out)


def test_experts_of_another_size_are_named(tmp_path):
    config = FAMILIES["qwen3_moe"]
    text_class(config).from_config(config).save_pretrained(tmp_path)
    wrong = loaded_difference(change_config(files_of(tmp_path), moe_intermediate_size=24))
    assert any("mlp.experts" in text for text in wrong.other)


@pytest.fixture(scope="module")
def packed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in torchao's int8, with a tokenizer."""
    folder = tmp_path_factory.mktemp("int8")
    write_model(folder / "plain")
    AutoModelForCausalLM.from_pretrained(
        folder / "plain",
        dtype=torch.float32,
        quantization_config=TorchAoConfig(Int8WeightOnlyConfig()),
    ).save_pretrained(folder / "packed")
    make_tokenizer().save_pretrained(folder / "packed")
    return folder / "packed"


@pytest.fixture
def packed_model(packed_folder: Path, tmp_path: Path) -> ModelFiles:
    """Its own copy of that model."""
    return files_of(Path(shutil.copytree(packed_folder, tmp_path / "packed")))


def test_a_sound_stored_format_loads_with_a_warning(packed_model):
    assert loaded_difference(packed_model) == Difference()
    load_model(packed_model.spec, torch.device("cpu"))
    (sound,) = [found for found in check_target(packed_model) if found.field == "tensors"]
    assert sound.level == "warning"  # values are unpacked only by loading


UP = "model.layers.0.mlp.up_proj._weight_qdata"
SCALE = "model.layers.0.mlp.up_proj._weight_scale"
NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (lambda t: t.pop(NORM), "missing: model.norm.weight"),
        (lambda t: [t.pop(n) for n in [*t] if "0.mlp.up_proj" in n], "up_proj.weight"),
        (lambda t: t.pop(UP), "up_proj.weight cannot be converted"),
        (lambda t: t.pop(SCALE), "lacks the scales of model.layers.0.mlp.up_proj"),
        (lambda t: t.update({UP: t[UP][:-1].clone()}), "up_proj.weight is "),
        (lambda t: t.update({NORM: torch.ones(3)}), "model.norm.weight is (3,)"),
    ],
    ids=["norm", "weight", "part", "scale", "packed-shape", "shape"],
)
def test_a_damaged_stored_format_is_refused_before_loading_and_while_loading(
    packed_model, fault, named
):
    """transformers gives a weight that no file has random numbers."""
    damaged = rewrite(packed_model, fault)
    (refused,) = [found for found in check_target(damaged) if found.level == "refused"]
    assert named in refused.reason
    with pytest.raises(ModelError) as raised:
        load_model(damaged.spec, torch.device("cpu"))
    assert named in str(raised.value)


def test_loading_finds_what_could_not_be_compared_before(packed_model, monkeypatch):
    def fail(_: ModelFiles) -> Difference:
        raise UnknownError("no reason")

    monkeypatch.setattr(compatibility, "loaded_difference", fail)
    lacking = rewrite(packed_model, lambda tensors: tensors.pop(NORM))
    with pytest.raises(ModelError, match=f"missing: {NORM}"):
        load_model(lacking.spec, torch.device("cpu"))


def test_what_a_stored_format_does_not_read_is_a_warning(packed_model):
    unread = "model.layers.0.mlp.up_proj.input_scale"
    more = rewrite(packed_model, lambda t: t.update({unread: torch.ones(1)}))
    assert loaded_difference(more) == Difference(left_out=(unread,))
    (found,) = [found for found in check_target(more) if found.field == "tensors"]
    assert found.level == "warning"
    load_model(more.spec, torch.device("cpu"))


def test_scales_of_activations_and_of_the_cache_are_none_of_a_weight():
    packed, plain = SimpleNamespace(dtype="F8_E4M3"), SimpleNamespace(dtype="F32")
    names = ("a.weight", "b.weight", "c.weight")
    scales = {"a.weight_scale": plain, "b.input_scale": plain, "c.k_scale": plain}
    assert unscaled({**dict.fromkeys(names, packed), **scales}, always=False) == names[1:]
    assert not unscaled(dict.fromkeys(names, packed), always=False)  # a format without scales
    assert unscaled(dict.fromkeys(names, packed), always=True) == names
    absmax = {f"{name}.absmax": plain for name in names}  # of bitsandbytes
    assert not unscaled({**dict.fromkeys(names, packed), **absmax}, always=True)


def test_a_packed_weight_without_its_shape_is_named(tmp_path):
    model = change_config(
        write_model(tmp_path), quantization_config={"quant_method": "compressed-tensors"}
    )
    layer = "model.layers.0.mlp.up_proj"
    packed = {f"{layer}.weight_packed": torch.ones(8, 4, dtype=torch.int32)}
    scaled = packed | {f"{layer}.weight_scale": torch.ones(8, 1)}
    with pytest.raises(ModelError, match=f"lacks the scales of {layer}"):
        require_weights(rewrite(model, lambda tensors: tensors.update(packed)))
    with pytest.raises(ModelError, match=f"lacks {layer}.weight_shape"):
        require_weights(rewrite(model, lambda tensors: tensors.update(scaled)))
    scaled[f"{layer}.weight_shape"] = torch.tensor([8, 32])
    require_weights(rewrite(model, lambda tensors: tensors.update(scaled)))


def test_weights_that_are_buffers_may_not_be_missing():
    """As in BitNet's layers; other buffers follow from the config."""
    model = text_class(FAMILIES["llama"]).from_config(FAMILIES["llama"])
    layer = model.model.layers[0].mlp.up_proj
    del layer.weight
    layer.register_buffer("weight", torch.ones(4, 8, dtype=torch.uint8))
    layer.register_buffer("table", torch.ones(4))
    names = [f"model.layers.0.mlp.up_proj.{name}" for name in ("weight", "table")]
    account = {"unexpected_keys": (), "missing_keys": names, "mismatched_keys": ()}
    assert take_text_part(model, account)[0].missing == (names[0],)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"model_type": "nosuch"}, "model_type"),
    ],
)
def test_what_is_not_built_is_unknown_with_the_reason(tmp_path, fields, reason):
    with pytest.raises(UnknownError, match=reason):
        loaded_difference(change_config(write_model(tmp_path), **fields))


def test_code_of_its_own_that_is_trusted_is_not_run_and_may_read_integers(tmp_path):
    model = change_config(write_model(tmp_path), auto_map={"AutoModelForCausalLM": "code.Own"})
    rewrite(model, to_integers)
    trusted = open_model(replace(model.spec, trust_remote_code=True))
    with pytest.raises(UnknownError, match="auto_map"):
        loaded_difference(trusted)
    assert not [found for found in check_target(trusted) if found.level == "refused"]
    assert [found for found in check_target(files_of(tmp_path)) if found.level == "refused"]


def leave_out_torch(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """As in a process that has not imported it, with these folders first on its path."""
    for folder in folders:
        monkeypatch.syspath_prepend(folder)
    own = SimpleNamespace(modules={}, executable=sys.executable)
    monkeypatch.setattr(loaded_tensors, "sys", own)
    loaded_tensors._answer.cache_clear()


class OwnProcess(NamedTuple):
    """What a process of its own answered, before it was ended."""

    whole: Difference
    lacking: Difference
    wrong: str  # the error
    experts: dict[str, list[str]]  # of each mixture: refusals without one of its MTP experts
    started: list[subprocess.Popen[str] | None]  # after each question
    told: list[str]


@pytest.fixture(scope="module")
def own_process(tmp_path_factory: pytest.TempPathFactory) -> OwnProcess:
    """It is asked all questions of this file, because it takes seconds to start."""
    folder = tmp_path_factory.mktemp("asked")
    model = write_model(folder / "whole")
    lacking = rewrite(write_model(folder / "lacking"), lambda t: t.pop("model.norm.weight"))
    wrong = change_config(write_model(folder / "wrong"), num_attention_heads=0)
    mixtures = {}
    for name in MIXTURES:
        mixture = write_mixture(name, folder / name)
        expert = mtp_expert(mixture)
        mixtures[expert] = rewrite(mixture, lambda tensors, name=expert: tensors.pop(name))
    started, told, experts = [], [], {}
    with pytest.MonkeyPatch.context() as patch:
        leave_out_torch(patch)
        with asking(told.append) as process:
            of_whole = loaded_difference(model)
            started.append(process._started)
            of_lacking = loaded_difference(lacking)
            started.append(process._started)
            with pytest.raises(ModelError) as raised:
                loaded_difference(wrong)
            started.append(process._started)
            for expert, mixture in mixtures.items():
                found = head_findings(mixture, mixture, find_method("mtp"))
                experts[expert] = [one.reason for one in found if one.level != "ok"]
                started.append(process._started)
    return OwnProcess(of_whole, of_lacking, str(raised.value), experts, started, told)


@pytest.mark.slow
def test_another_process_gives_the_same_answers_and_is_started_once(own_process):
    assert own_process.whole == Difference()
    assert own_process.lacking.missing == ("model.norm.weight",)
    assert "num_attention_heads" in own_process.wrong
    (process,) = set(own_process.started)
    assert process is not None
    assert process.poll() is not None
    assert all("without weights" in text for text in own_process.told)


@pytest.mark.slow
def test_another_process_compares_the_experts_of_mtp_layers(own_process):
    assert len(own_process.experts) == len(MIXTURES)
    for name, refusals in own_process.experts.items():
        (refused,) = refusals
        assert f"missing: {name}" in refused


def test_a_process_without_an_answer_in_time_is_unknown_and_not_asked_again(tmp_path, monkeypatch):
    model = write_model(tmp_path)
    leave_out_torch(monkeypatch)
    monkeypatch.setattr(loaded_tensors, "SLOW_S", 0.01)
    monkeypatch.setattr(loaded_tensors, "LIMIT_S", 0.02)
    told: list[str] = []
    with asking(told.append):
        for _ in range(2):
            loaded_tensors._answer.cache_clear()
            with pytest.raises(UnknownError, match=r"within 0\.02 s"):
                loaded_difference(model)
    assert len(told) == 1


def test_no_process_is_started_for_a_model_that_another_check_refuses(tmp_path, monkeypatch):
    model = write_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    leave_out_torch(monkeypatch)
    with asking() as process:
        assert [f.field for f in check_target(model) if f.level == "refused"] == ["files"]
        assert process._started is None


@pytest.fixture
def broken_torch(tmp_path: Path) -> Path:
    """A folder with a torch whose libraries are missing."""
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "torch.py").write_text("raise ImportError('libtorch_cpu.so: no such file')\n")
    return folder


def test_a_broken_torch_is_unknown_with_its_error(tmp_path, monkeypatch, broken_torch):
    model = write_model(tmp_path / "model")
    leave_out_torch(monkeypatch, broken_torch)
    with pytest.raises(UnknownError, match=r"libtorch_cpu\.so"):
        loaded_difference(model)
    (finding,) = [found for found in check_target(model) if found.field == "tensors"]
    assert (finding.level, "libtorch_cpu.so" in finding.reason) == ("warning", True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("doctor demo/draft", 0),
        ("pair demo:target --draft demo:draft --dry-run", 0),
        ("run demo/draft --dry-run", 0),
    ],
)
def test_commands_survive_a_broken_torch_and_say_what_they_did_not_compare(
    tmp_path, broken_torch, command, code
):
    paths = os.pathsep.join([str(broken_torch), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "specbench", *command.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert done.returncode == code, done
    assert "libtorch_cpu.so" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def first(tensors, part: str) -> str:
    return next(name for name in sorted(tensors) if part in name and tensors[name].dim() > 1)


def drop(tensors) -> None:
    tensors.pop(first(tensors, ".0."))


def add_scale(tensors) -> None:
    tensors[f"{first(tensors, '.0.')}_scale"] = torch.ones(1)


def add_norm(tensors) -> None:
    name = first(tensors, ".0.")
    tensors[name[: name.index(".0.") + 3] + "foreign_norm.weight"] = torch.ones(32)


def cut(tensors) -> None:
    name = first(tensors, ".0.")
    tensors[name] = tensors[name][..., 1:].clone()


def to_8_bits(tensors, dtype: torch.dtype = torch.float8_e4m3fn) -> None:
    name = first(tensors, ".0.")
    tensors[name] = tensors[name].to(dtype)
    tensors[f"{name}_scale"] = torch.ones(1)


def to_integers(tensors) -> None:
    to_8_bits(tensors, torch.int8)


def of_weights(change) -> Callable[[ModelFiles], object]:
    return lambda model: rewrite(model, change)


def write_adapter(model: ModelFiles) -> None:
    save_file({"lora_A.weight": torch.ones(2, 2)}, model.folder / "adapter_model.safetensors")


def write_second_set(model: ModelFiles) -> None:
    file, shard = model.folder / "model.safetensors", model.folder / "model-1.safetensors"
    tensors = load_file(file)
    tensors[first(tensors, ".0.")] += 1
    save_file(tensors, shard, metadata={"format": "pt"})
    index = {"weight_map": dict.fromkeys(tensors, shard.name)}
    (model.folder / "model.safetensors.index.json").write_text(json.dumps(index))


FAULTS: dict[str, Callable[[ModelFiles], object] | None] = {
    "none": None,
    "a tensor is missing": of_weights(drop),
    "a scale": of_weights(add_scale),
    "a norm": of_weights(add_norm),
    "another shape": of_weights(cut),
    "F8": of_weights(to_8_bits),
    "integers": of_weights(to_integers),
    "an adapter": write_adapter,
    "two sets": write_second_set,
    "more layers": lambda model: change_config(model, num_hidden_layers=3, n_layer=3),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planning_the_doctor_a_dry_run_and_loading_have_one_verdict(family, fault):
    if (change := FAULTS[fault]) is not None:
        change(family)
    model = files_of(family.folder)
    target = Target(name="target", model=model.spec, drafters=())
    pairing = Pairing(target=target, drafter=DrafterSpec(name="ngram", method="ngram"))
    try:
        load_model(model.spec, torch.device("cpu"))
        is_loaded = True
    except ModelError:
        is_loaded = False
    verdicts = {
        "pair": not any(finding.level == "refused" for finding in check_target(model)),
        "doctor": not _loading_problems(pairing)[0],
        "dry run": not unsupported_reasons([pairing]),
        "loading": is_loaded,
    }
    assert verdicts == dict.fromkeys(verdicts, fault == "none")


MIXTURES = ("glm4_moe", "qwen3_next")


def write_mixture(name: str, folder: Path) -> ModelFiles:
    """A mixture of experts with an MTP layer in its own files."""
    config = family_of(name).config
    text_class(config).from_config(config).save_pretrained(folder)
    head = checkpoint_for(name, config).tensors
    copies = {name: tensor.clone() for name, tensor in head.items()}  # of one table
    return rewrite(
        change_config(files_of(folder), num_nextn_predict_layers=1),
        lambda tensors: tensors.update(copies),
    )


@pytest.fixture(params=MIXTURES)
def mixture(request: pytest.FixtureRequest, tmp_path: Path) -> ModelFiles:
    return write_mixture(request.param, tmp_path)


def mtp_expert(model: ModelFiles) -> str:
    """The name of a matrix of the last expert of its MTP layer."""
    (name,) = [
        name
        for name in model.tensors or ()
        if name.startswith(("mtp.", "model.layers.2.")) and ".experts.3.up_proj" in name
    ]
    return name


def mtp_refusals(model: ModelFiles) -> list[str]:
    """Why the MTP layers are refused, and the error of loading them."""
    found = head_findings(model, model, find_method("mtp"))
    refused = [finding.reason for finding in found if finding.level != "ok"]
    runner = StockRunner(load_model(model.spec, torch.device("cpu")).model)
    with pytest.raises(ModelError) if refused else nullcontext() as loading:
        MtpHead(read_checkpoint(str(model.folder)), runner)
    assert loading is None or [str(loading.value)] == refused
    return refused


def test_experts_of_mtp_layers_are_compared_before_they_are_loaded(mixture):
    expert = mtp_expert(mixture)
    one_more = expert.replace(".experts.3.", ".experts.4.")
    assert mtp_refusals(mixture) == []
    file = mixture.folder / "model.safetensors"
    saved = file.read_bytes()
    for change, words in (
        (lambda tensors: tensors.pop(expert), f"missing: {expert}"),
        (lambda tensors: tensors.update({expert: tensors[expert][1:]}), f"{expert} is (15, 32)"),
        (
            lambda tensors: tensors.update({one_more: tensors[expert].clone()}),
            f"unknown: {one_more}",
        ),
    ):
        file.write_bytes(saved)
        (reason,) = mtp_refusals(rewrite(mixture, change))
        assert words in reason


def test_more_experts_than_any_model_has_are_refused_before_their_names_are_listed(mixture):
    names = ("num_experts", "n_routed_experts")
    (field,) = [name for name in names if name in mixture.config]
    (refused,) = [
        finding
        for model in [change_config(mixture, **{field: 10**9})]
        for finding in head_findings(model, model, find_method("mtp"))
        if finding.level != "ok"
    ]
    assert field in refused.reason


@pytest.mark.parametrize("mixture", ["glm4_moe"], indirect=True)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_experts_per_tok", 9),
        ("num_nextn_predict_layers", 1_000),
        ("rms_norm_eps", 1),
        ("n_group", 0),
        ("topk_group", 2),
    ],
)
def test_sizes_with_which_mtp_layers_cannot_run_are_refused(mixture, field, value):
    wrong = change_config(mixture, **{field: value})
    (refused,) = [
        finding
        for finding in head_findings(wrong, wrong, find_method("mtp"))
        if finding.level != "ok"
    ]
    assert field in refused.reason
