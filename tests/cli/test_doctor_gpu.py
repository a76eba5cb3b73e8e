"""`doctor` on a machine with a GPU: what torch, Triton and flash-attn report about it in a separate
process. The GPU is planted in both processes."""

import json
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import pytest
import torch

from specbench.forward.attention import implementations
from specbench.forward.kernels import availability
from specbench.probes import device
from specbench.probes.gpu import GpuFacts, Probe
from tests.cli.calls import specbench
from tests.gguf_files import write_gguf

doctor = import_module("specbench.cli.doctor")  # specbench.cli.doctor is the command

GPU = "NVIDIA H100 80GB HBM3"
PLANTED = f"""
from specbench.probes import gpu
from specbench.probes.gpu import GpuFacts, Probe

class Gpu(Probe):
    def gpu_facts(self):
        return GpuFacts(name={GPU!r}, memory_bytes=80 * 2**30, driver="550.54")

gpu.open_probe = lambda *_, **__: Gpu("")
"""


class Gpu(Probe):
    def gpu_facts(self):
        return GpuFacts(name=GPU, memory_bytes=80 * 2**30, driver="550.54")


@pytest.fixture
def gpu(monkeypatch):
    """The GPU that NVML shows; torch sees the given one."""
    monkeypatch.setattr("specbench.probes.gpu.open_probe", lambda *_, **__: Gpu(""))
    monkeypatch.setattr(device, "open_probe", lambda *_, **__: Gpu(""))


def planted(monkeypatch, checked):
    monkeypatch.setattr(doctor, "check_gpu", lambda: checked)


WORKING = {
    "device": "cuda:0",
    "num_gpus": 2,
    "compute_capability": "9.0",
    "triton": None,
    "flash_attn": "not installed",
}


@pytest.mark.slow
@pytest.mark.usefixtures("gpu")
def test_no_pairing_is_ready_if_torch_cannot_use_the_gpu(tmp_path, monkeypatch):
    """A machine with the real second process: the installed torch finds no GPU, NVML shows one."""
    preload = tmp_path / "preload"
    preload.mkdir()
    (preload / "sitecustomize.py").write_text(PLANTED)
    monkeypatch.syspath_prepend(preload)
    ran = specbench("doctor demo/ngram --json", cwd=tmp_path)
    assert (ran.code, ran.err) == (1, "")
    document = json.loads(ran.out)
    assert (document["device"], document["gpu"], document["driver"]) == ("cuda:0", GPU, "550.54")
    for words in (GPU, "550.54", torch.__version__, "--device cpu"):
        assert words in document["gpu_check"]["problem"]
    (row,) = document["pairings"]
    assert not row["ready"]
    assert any("torch" in problem for problem in row["problems"])


@pytest.mark.usefixtures("gpu")
def test_a_gguf_pairing_needs_no_torch_that_can_use_the_gpu(tmp_path, monkeypatch):
    planted(monkeypatch, {"problem": "torch is built for CPUs"})
    write_gguf(tmp_path / "t.gguf")
    (tmp_path / "pairings.yaml").write_text(
        "targets:\n"
        "  a: {model: t.gguf, drafters: {ngram: {method: ngram}}}\n"
        "  b: {model: demo:target, drafters: {ngram: {method: ngram}}}\n"
    )
    ran = specbench("doctor a/ngram b/ngram --json", cwd=tmp_path)
    rows = json.loads(ran.out)["pairings"]
    assert [(row["pairing"], row["ready"]) for row in rows] == [
        ("a/ngram", True),
        ("b/ngram", False),
    ]
    assert ran.code == 1
    assert specbench("doctor a/ngram", cwd=tmp_path).code == 0


@pytest.mark.usefixtures("gpu")
def test_a_gpu_that_works_is_shown_with_its_libraries(tmp_path, monkeypatch):
    planted(monkeypatch, WORKING)
    ran = specbench("doctor", "demo/ngram", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    for words in (GPU, "driver 550.54", "compute capability 9.0", "first of 2", "Triton: works"):
        assert words in " ".join(ran.out.split())
    assert "flash-attn: not installed" in ran.out
    assert "is_available(): True" in ran.out


def test_memory_that_the_driver_does_not_report_is_that_of_torch(tmp_path, monkeypatch):
    monkeypatch.setattr("specbench.probes.gpu._GPU_FILES", ("/",))
    monkeypatch.setattr("specbench.probes.gpu.open_probe", lambda *_, **__: Probe("no NVML"))
    monkeypatch.setattr("specbench.cli.hardware.torch_build", lambda: "HIP 7.1")
    planted(monkeypatch, {**WORKING, "free_bytes": 2**20})
    document = json.loads(specbench("doctor demo/ngram --json", cwd=tmp_path).out)
    assert (document["gpu"], document["free_gib"]) == (None, 0.0)
    assert "1.0 MiB free" in document["pairings"][0]["problems"][0]


@pytest.mark.usefixtures("gpu")
def test_a_container_that_hides_its_gpus_is_measured_on_its_cpu(tmp_path, monkeypatch):
    planted(monkeypatch, {"device": "cpu"})
    document = json.loads(specbench("doctor demo/ngram --json", cwd=tmp_path).out)
    assert document["device"] == "cpu"
    assert document["free_gib"] < 80 * 100
    assert document["pairings"][0]["ready"]


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ("import os; os._exit(139)", "139"),
        ("raise ImportError('libcudart.so.13: cannot open')", "libcudart.so.13"),
    ],
)
def test_doctor_survives_a_torch_import_that_crashes(ends, words, tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text(ends)
    monkeypatch.syspath_prepend(tmp_path)
    assert words in doctor.check_gpu()["problem"]


def test_a_torch_import_that_hangs_is_timed_out(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("import time; time.sleep(60)")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(doctor, "TIMEOUT_S", 0.2)
    assert "0.2 s" in doctor.check_gpu()["problem"]


def test_libraries_are_checked_on_the_device_of_a_run(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_arch_list", list)  # as of a build for CPUs
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3 * 2**30, 4 * 2**30))
    monkeypatch.setattr(availability, "triton_failure", lambda device: f"not on {device}")
    monkeypatch.setattr(implementations, "import_failure", lambda: None)
    assert doctor.describe_gpu() == {
        "device": "cuda:0",
        "num_gpus": 2,
        "compute_capability": "8.9",
        "free_bytes": 3 * 2**30,
        "triton": "not on cuda:0",
        "flash_attn": None,
    }


def test_a_flash_attn_built_for_another_torch_is_reported(tmp_path, monkeypatch):
    (tmp_path / "flash_attn.py").write_text("raise ImportError('undefined symbol: _ZN3c10')")
    monkeypatch.syspath_prepend(tmp_path)
    assert "_ZN3c10" in (implementations.import_failure() or "")


def test_triton_without_pythons_headers_says_what_to_install(tmp_path, monkeypatch):
    def fails(_):
        raise subprocess.CalledProcessError(1, ["gcc"])

    monkeypatch.setattr("specbench.forward.kernels.layer_steps.gate", fails)
    for folder, words in ((tmp_path, "Python.h"), (None, "CalledProcessError")):
        availability._launch_failure.cache_clear()
        if folder:
            monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
        else:
            (tmp_path / "Python.h").touch()
        assert words in (availability._launch_failure("cpu") or "")
    availability._launch_failure.cache_clear()


def test_a_pairing_that_needs_accelerate_is_not_ready_without_it(tmp_path, monkeypatch):
    module = import_module("specbench.files.model")
    (tmp_path / "pairings.yaml").write_text(
        "targets:\n  a:\n    model: demo:target\n    drafters:\n"
        "      spread: {method: draft_model, model: demo:draft, device_map: auto}\n"
        "      ngram: {method: ngram}\n"
    )

    def problems(spec):
        monkeypatch.setattr(module, "find_spec", lambda _: spec)
        rows = json.loads(specbench("doctor a --json", cwd=tmp_path).out)["pairings"]
        return {row["pairing"]: "; ".join(row["problems"]) for row in rows}

    without = problems(None)
    assert "demo:draft: device_map auto" in without["a/spread"]
    assert "pip install accelerate" in without["a/spread"]
    assert not without["a/ngram"]
    assert not any(problems(object()).values())


def test_a_stored_format_needs_accelerate_on_a_gpu(tmp_path, monkeypatch):
    from specbench.inputs.config import load_pairings
    from specbench.shipped import shipped

    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    (pairing,) = load_pairings(shipped("pairings.yaml")).select(["demo/ngram"])
    folder = tmp_path / "target"
    shutil.copytree(Path(pairing.target.model.location), folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "compressed-tensors"}
    (folder / "config.json").write_text(json.dumps(config))
    (tmp_path / "pairings.yaml").write_text(
        "targets:\n  a:\n    model: ./target\n    drafters:\n      ngram: {method: ngram}\n"
    )
    (stored,) = load_pairings(tmp_path / "pairings.yaml").all
    assert "stored format" in doctor._without_accelerate(stored)
    assert doctor._without_accelerate(pairing) is None


def test_doctor_shows_the_hub_without_the_token(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    ran = specbench("doctor demo/ngram --json", cwd=tmp_path)
    hub = json.loads(ran.out)["hub"]
    assert hub["has_token"]
    assert hub["free_disk_gib"] >= 0
    assert "hf_secret" not in ran.out
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert "hf auth login" in specbench("doctor", "demo/ngram", cwd=tmp_path).out
