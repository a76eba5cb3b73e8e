"""The fingerprint of a stored run changes with each of its parts."""

from dataclasses import replace

import pytest

from specbench.gate.fingerprint import (
    AROUND,
    changes,
    differences,
    fingerprint_of,
    have_same_arithmetic,
    software_changes,
)
from specbench.probes.environment import describe_environment
from specbench.probes.gpu import open_probe
from specbench.records import EngineRecord, ImportedRecord
from tests.probes.fake_nvml import FakeNvml, partitioned_gpu
from tests.report.stored_runs import Wish, stored_run
from tests.settings.flat_settings import changed

STORED = stored_run(Wish(drafters=("draft",), workloads=("code",), ks=(0, 4), num_prompts=5))
RUN, MODELS = STORED.run, STORED.models
TARGET = next(m for m in MODELS if m.name == "demo")
DRAFT = next(m for m in MODELS if m.name != "demo")
USUAL = fingerprint_of(RUN, MODELS)


def models(model, **changed):
    return tuple(replace(m, **changed) if m is model else m for m in MODELS)


def names(run=RUN, models=MODELS) -> list[str]:
    return [d.name for d in differences(USUAL, fingerprint_of(run, models))]


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"top_k": 5}, "sampling"),
        ({"top_p": 0.8}, "sampling"),
        ({"max_new_tokens": 7}, "max-new-tokens"),
        ({"slo": {"ttft_s": 0.2}}, "slo"),
        ({"acceptance": 0.7}, "synthetic"),
        ({"dummy_weights": True}, "synthetic"),
    ],
)
def test_other_settings_change_the_fingerprint(settings, word):
    assert names(replace(RUN, settings=changed(RUN.settings, **settings))) == [word]


def test_other_texts_weights_or_tokenizers_change_the_fingerprint():
    (workload,) = RUN.workload_sha256
    assert names(replace(RUN, workload_sha256={workload: "f" * 64})) == ["workload"]
    assert names(models=models(TARGET, content_sha256="f" * 64)) == ["model"]
    assert names(models=models(TARGET, tokenizer_sha256="f" * 64)) == ["tokenizer"]


@pytest.mark.parametrize(
    "environment",
    [
        {"device": "cuda:0"},
        {"gpu": "another"},
        {"power_limit_w": 123.0},
        {"cpu": "another"},
        {"num_cpu_cores": 99},
        {"threads": 7},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_another_machine_changes_the_hardware_fingerprint(environment):
    assert names(replace(RUN, environment=replace(RUN.environment, **environment))) == ["hardware"]


def test_unlike_mig_instances_of_one_gpu_are_different_hardware():
    def fingerprint(visible):
        environment, nvml = {"CUDA_VISIBLE_DEVICES": visible}, FakeNvml(partitioned_gpu())
        probe = open_probe("cuda:0", nvml=nvml, environment=environment)
        described = describe_environment("cuda:0", 1, ["specbench"], probe)
        return fingerprint_of(replace(RUN, environment=described), MODELS)

    large, small = fingerprint("MIG-large"), fingerprint("MIG-small")
    (difference,) = differences(large, small)
    assert difference.name == "hardware"
    assert "3g.40gb" in difference.baseline
    assert "1g.10gb" in difference.candidate
    assert differences(large, fingerprint("MIG-large")) == ()


def test_another_drafter_driver_or_package_is_permitted_and_reported():
    other = fingerprint_of(RUN, models(DRAFT, content_sha256="f" * 64))
    assert differences(USUAL, other) == ()
    assert [d.name for d in changes(USUAL, other)] == [f"weights of demo/{DRAFT.name}"]
    packages = {**RUN.environment.packages, "torch": "9.9"}
    environment = replace(RUN.environment, packages=packages, driver="999", git_commit="e" * 40)
    other = fingerprint_of(replace(RUN, environment=environment), MODELS)
    assert differences(USUAL, other) == ()
    names = {d.name for d in changes(USUAL, other)}
    assert {"package torch", "driver", "commit"} <= names
    assert not have_same_arithmetic(USUAL, other)


@pytest.mark.parametrize(
    "engine",
    [{"forward": "stock"}, {"graph": "off"}, {"attention": "eager"}],
    ids=lambda changed: next(iter(changed)),
)
def test_runs_with_other_kernels_are_not_repeats(engine):
    usual = EngineRecord(
        target="demo", engine="builtin", forward="fused", graph="round", attention="sdpa"
    )
    first = fingerprint_of(RUN, MODELS, [usual])
    other = fingerprint_of(RUN, MODELS, [replace(usual, **engine)])
    assert not differences(first, other)
    assert [d.name for d in changes(first, other)] == ["builtin of demo"]
    assert [d.name for d in software_changes(first, other, AROUND)] == ["builtin of demo"]


def test_runs_with_other_packages_are_not_repeats():
    packages = {**RUN.environment.packages, "torch": "9.9"}
    other = replace(RUN.environment, git_commit="e" * 40, driver="999", python="3.99")
    assert not software_changes(
        USUAL, fingerprint_of(replace(RUN, environment=other), MODELS), AROUND
    )
    other = replace(other, packages=packages)
    (difference,) = software_changes(
        USUAL, fingerprint_of(replace(RUN, environment=other), MODELS), AROUND
    )
    assert difference.name == "package torch"


def test_a_target_packed_on_loading_is_another_model():
    packed = EngineRecord(target="demo", engine="builtin", quantization="int8")
    (difference,) = differences(USUAL, fingerprint_of(RUN, MODELS, [packed]))
    assert difference.name == "model"
    assert difference.candidate == f"demo int8 of {TARGET.content_sha256[:12]}"


def test_another_version_of_an_imported_tool_is_reported():
    record = ImportedRecord(
        cell_id="c",
        tool="vllm bench serve",
        tool_version="0.10",
        file="a.json",
        file_sha256="0" * 64,
        measured_at=None,
        num_requests=None,
        num_failed=None,
    )
    sides = (replace(record, tool_version=version) for version in ("0.10", "0.11"))
    first, other = (fingerprint_of(RUN, MODELS, imported=[side]) for side in sides)
    assert [tuple(d) for d in changes(first, other)] == [(record.tool, "0.10", "0.11")]
