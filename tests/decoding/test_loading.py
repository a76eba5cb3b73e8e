import errno
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import dynamic_module_utils, modeling_utils
from transformers.integrations import hub_kernels

from specbench.errors import ModelError, ModelMemoryError
from specbench.files.model import open_model
from specbench.files.model_spec import ModelSpec
from specbench.fit.memory_plan import DeploymentSpec, plan_target
from specbench.fit.weights import planned_dtype as dtype_of
from specbench.forward.self_test import make_checked_runner
from specbench.models import loading
from specbench.models.library_errors import load_advice
from specbench.models.loading import load_model, planned_dtype, refusing
from tests.decoding.models import ARCHITECTURES, build, tiny_llama
from tests.tiny_models import change_json, spec_of

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama in float32 as save_pretrained writes it."""
    folder = tmp_path_factory.mktemp("model")
    tiny_llama(eos_token_id=2).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def test_a_loaded_model_is_in_eval_mode_without_gradients(saved):
    loaded = load_model(spec_of(saved), CPU)
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert loaded.num_parameters == sum(p.numel() for p in loaded.model.parameters())
    buffers = sum(b.nbytes for b in loaded.model.buffers())
    assert loaded.weights_bytes == 4 * loaded.num_parameters + buffers
    assert loaded.revision is None


def test_tied_weights_take_their_memory_once(tmp_path):
    untied, tied = tiny_llama(), tiny_llama(tie_word_embeddings=True)
    untied.save_pretrained(tmp_path / "untied")
    tied.save_pretrained(tmp_path / "tied")
    sizes = [load_model(spec_of(tmp_path / n), CPU).weights_bytes for n in ("untied", "tied")]
    assert sizes[0] - sizes[1] == untied.lm_head.weight.nbytes


@pytest.mark.parametrize(("dtype", "got"), [("auto", "float32"), ("bfloat16", "bfloat16")])
def test_dtype_on_a_cpu_is_float32_by_default(tmp_path, dtype, got):
    tiny_llama().to(torch.bfloat16).save_pretrained(tmp_path)
    loaded = load_model(spec_of(tmp_path, dtype=dtype), CPU)
    assert loaded.dtype == got
    assert planned_dtype(spec_of(tmp_path, dtype=dtype), CPU) == got


def test_on_a_gpu_dtype_is_the_checkpoints_own(tmp_path):
    tiny_llama().to(torch.bfloat16).save_pretrained(tmp_path)
    assert planned_dtype(spec_of(tmp_path), CUDA) == "bfloat16"
    assert planned_dtype(spec_of(tmp_path, dtype="float16"), CUDA) == "float16"


def plant_capability(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)


@pytest.mark.parametrize(
    ("capability", "saved_as", "dtype", "wanted"),
    [
        ((7, 0), "bfloat16", "auto", "float16"),
        ((7, 5), "bfloat16", "auto", "float16"),
        ((8, 0), "bfloat16", "auto", "bfloat16"),
        ((12, 1), "bfloat16", "auto", "bfloat16"),
        ((7, 5), "bfloat16", "bfloat16", "bfloat16"),
        ((7, 5), "float32", "auto", "float32"),
        ((7, 5), "float16", "auto", "float16"),
    ],
)
def test_auto_is_float16_where_a_gpu_emulates_bfloat16(
    tmp_path, monkeypatch, capability, saved_as, dtype, wanted
):
    tiny_llama().to(getattr(torch, saved_as)).save_pretrained(tmp_path)
    plant_capability(monkeypatch, capability)
    assert planned_dtype(spec_of(tmp_path, dtype=dtype), CUDA) == wanted
    setup = DeploymentSpec(device="cuda", compute_capability=capability)
    plan = plan_target(open_model(spec_of(tmp_path, dtype=dtype)), setup)
    assert plan is not None
    assert plan.dtype == wanted
    is_replaced = (saved_as, wanted) == ("bfloat16", "float16")
    assert any("float16" in note for note in plan.notes) == is_replaced


def test_a_model_that_runs_in_float16_instead_of_bfloat16_says_so(tmp_path, monkeypatch):
    """Loaded on the CPU, which takes the dtype of an old GPU."""
    tiny_llama().to(torch.bfloat16).save_pretrained(tmp_path)
    monkeypatch.setattr(loading, "compute_capability", lambda _: (7, 5))
    monkeypatch.setattr(loading, "dtype_of", lambda model, _, *rest: dtype_of(model, "cuda", *rest))
    for spec, wanted in (
        (spec_of(tmp_path), "float16"),
        (spec_of(tmp_path, dtype="bfloat16"), "bfloat16"),
    ):
        for loaded in (load_model(spec, CPU), load_model(spec, CPU, dummy=True)):
            assert loaded.dtype == wanted
            assert len(loaded.notes) == (wanted == "float16")


def test_pickled_weights_are_not_read(folder):
    (folder / "model.safetensors").unlink()
    torch.save(tiny_llama().state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pickled weights .*; convert"):
        load_model(spec_of(folder), CPU)


def damage(folder: Path, name: str, content: bytes | None) -> None:
    """Write `content` in place of a file; None removes it."""
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", None),
        ("config.json", b"{}"),
        ("config.json", b"{"),
        ("config.json", b'{"model_type": "no_such_model"}'),
        ("config.json", b'{"model_type": "t5"}'),
        ("model.safetensors", None),
        ("model.safetensors", b""),
        ("model.safetensors", b"\x10\0\0\0\0\0\0\0{}"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value),
)
def test_a_broken_model_folder_is_refused_by_name(folder, name, content):
    damage(folder, name, content)
    with pytest.raises(ModelError) as refused:
        load_model(spec_of(folder), CPU)
    assert str(refused.value).startswith(str(folder))
    assert "\n" not in str(refused.value)


def test_weights_cut_off_by_a_broken_download_are_refused(folder):
    weights = (folder / "model.safetensors").read_bytes()
    damage(folder, "model.safetensors", weights[: len(weights) // 2])
    with pytest.raises(ModelError, match=r"ends before .*download"):
        load_model(spec_of(folder), CPU)


def test_a_config_that_lost_its_size_is_refused_before_memory_is_taken(folder, monkeypatch):
    change_json(folder / "config.json", lambda config: config.pop("hidden_size"))
    monkeypatch.setattr(loading, "placing", None)  # the next step, which allocates memory
    with pytest.raises(ModelError, match="hidden_size"):
        load_model(spec_of(folder), CPU)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(ModelError, match="gone: cannot"):
        load_model(spec_of(tmp_path / "gone"), CPU)
    with pytest.raises(ModelError, match="gone: cannot"):
        planned_dtype(spec_of(tmp_path / "gone"), CUDA)


def test_remote_code_is_not_run_by_default(folder):
    foreign = {"model_type": "foreign", "auto_map": {"AutoConfig": "code.Config"}}
    change_json(folder / "config.json", lambda config: config.update(foreign))
    (folder / "code.py").write_text("raise SystemExit('this code was run')")
    with pytest.raises(ModelError, match="trust its authors'"):
        load_model(spec_of(folder), CPU)


def test_remote_code_is_run_if_trusted(folder, monkeypatch):
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(folder / "modules"))
    monkeypatch.syspath_prepend(folder / "modules")
    classes = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Foreign"}
    foreign = {"model_type": "foreign", "auto_map": classes}
    change_json(folder / "config.json", lambda config: config.update(foreign))
    (folder / "code.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class Config(LlamaConfig):\n    model_type = 'foreign'\n"
        "class Foreign(LlamaForCausalLM):\n    config_class = Config\n"
    )
    loaded = load_model(spec_of(folder, trust_remote_code=True), CPU)
    assert type(loaded.model).__name__ == "Foreign"
    assert torch.equal(loaded.model.lm_head.weight, tiny_llama(eos_token_id=2).lm_head.weight)


def test_a_missing_weight_of_any_architecture_is_refused(tmp_path):
    build(ARCHITECTURES["GPT-2"]()).save_pretrained(tmp_path)
    name = "transformer.h.1.mlp.c_fc.weight"
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=rf"missing: {name};"):
        load_model(spec_of(tmp_path), CPU)


def test_a_device_error_on_loading_is_raised_unchanged(saved, monkeypatch):
    error = RuntimeError("CUDA error: an illegal memory access was encountered")

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(loading, "text_class", fail)
    with pytest.raises(RuntimeError) as raised:
        load_model(spec_of(saved), CPU)
    assert raised.value is error


def test_the_content_hash_depends_only_on_the_weights(saved, folder):
    first = load_model(spec_of(saved), CPU).content_sha256
    assert len(first) == 64
    assert load_model(spec_of(folder), CPU).content_sha256 == first

    model = tiny_llama(eos_token_id=2)
    model.lm_head.weight.data[0, 0] += 1e-3
    model.save_pretrained(folder)
    assert load_model(spec_of(folder), CPU).content_sha256 != first


def test_a_large_checkpoint_is_hashed_by_its_edges(folder, monkeypatch):
    monkeypatch.setattr(loading, "_MAX_HASHED", 100)
    monkeypatch.setattr(loading, "_EDGE", 1000)
    (folder / "small.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:10])

    def hashed() -> str:
        return loading.weights_sha256(str(folder), None)

    weights = bytearray((folder / "model.safetensors").read_bytes())
    first = hashed()
    assert first.startswith("edges:")
    for place, is_seen in ((500, True), (len(weights) // 2, False), (len(weights) - 500, True)):
        changed = bytearray(weights)
        changed[place] ^= 1
        (folder / "model.safetensors").write_bytes(changed)
        assert (hashed() != first) is is_seen


def test_a_hub_model_is_identified_by_its_commit():
    first, other = (loading.weights_sha256("owner/name", c) for c in ("abc", "abd"))
    assert first.startswith("commit:")
    assert first != other


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [([1, 2], 3, (1, 2)), (1, 3, (1,)), (None, 3, (3,)), (None, [3, 4], (3, 4)), (None, None, ())],
)
def test_end_tokens_are_those_of_the_generation_settings_else_the_models(
    tmp_path: Path, generation, config, expected
):
    tiny_llama().save_pretrained(tmp_path)
    for name, ids in (("generation_config.json", generation), ("config.json", config)):
        change_json(tmp_path / name, lambda content, ids=ids: content.update(eos_token_id=ids))
    assert load_model(spec_of(tmp_path), CPU).eos_ids == expected


@pytest.mark.parametrize(
    "name", ["attn_implementation", "_attn_implementation", "experts_implementation"]
)
def test_a_kernel_named_in_a_config_is_not_downloaded(folder, monkeypatch, name):
    """Transformers would download and import the repository that a config names."""
    calls = []
    for module in (hub_kernels, modeling_utils):
        for loader in ("load_and_register_attn_kernel", "lazy_load_kernel", "get_kernel"):
            monkeypatch.setattr(
                module, loader, lambda *args, **_: calls.append(args), raising=False
            )
    change_json(folder / "config.json", lambda config: config.update({name: "someone/kernel"}))

    loaded = load_model(spec_of(folder), CPU)

    assert not calls
    assert loaded.model.config._attn_implementation == "sdpa"


def test_outputs_have_names_even_if_a_config_asks_for_tuples(folder):
    change_json(folder / "config.json", lambda config: config.update(return_dict=False))
    make_checked_runner(load_model(spec_of(folder), CPU).model)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"rms_norm_eps": "x"}, "rms_norm_eps is 'x'; expected a number"),
        ({"num_attention_heads": 7}, "number of attention heads (7)"),
        ({"dtype": "float99"}, "dtype is 'float99'; expected a dtype of torch"),
        ({"intermediate_size": 100}, "take the config.json that the weights came with"),
        ({"model_type": "nosuch"}, "does not know the model_type of its config.json"),
        ({"model_type": None}, "does not know the model_type of its config.json"),
        (
            {"model_type": "foreign", "auto_map": {"AutoConfig": "code.Config"}},
            "set trust_remote_code: true for it in pairings.yaml only if you trust its authors",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_config_value_is_refused_with_the_remedy(folder, changed, words):
    config = {**json.loads((folder / "config.json").read_text()), **changed}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v}))
    with pytest.raises(ModelError) as refused:
        load_model(spec_of(folder), CPU)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "is a Git LFS pointer, not weights: .*pull`$",
        ),
        (None, "the file model-00001.safetensors is missing; download the whole model$"),
    ],
)
def test_missing_weights_are_named_by_their_file(folder, content, words):
    damage(folder, "model.safetensors", content)
    if content is None:
        index = {"weight_map": {"a": "model-00001.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=words):
        load_model(spec_of(folder), CPU)


@pytest.mark.parametrize(
    ("error", "is_unreached"),
    [
        (OSError("We couldn't connect to 'https://hub' to load the files"), True),
        (OSError("Cannot find it; to enable downloads, set 'local_files_only' to False."), True),
        (ConnectionError("offline mode is enabled"), True),
        (OSError("Can't load it: make sure you don't have a local directory of that name"), True),
        (OSError(errno.EIO, "Input/output error", "/usr/local/models/big"), False),
        (ValueError("layers are 'global' and 'local_attention'"), False),
        (AttributeError("'Config' object has no attribute 'rope_local_base_freq'"), False),
    ],
    ids=str,
)
def test_a_download_is_advised_only_if_the_hub_was_not_reached(error, is_unreached):
    assert ("`hf download`" in load_advice(error)) is is_unreached


def test_a_model_beyond_the_memory_is_refused_with_what_is_smaller():
    spec = ModelSpec(source="org/big")
    named = r"org/big.*cuda:0.*dtype.*device_map: auto"
    with pytest.raises(ModelMemoryError, match=named), refusing(spec, "cuda:0", None):
        raise torch.OutOfMemoryError("CUDA out of memory")
