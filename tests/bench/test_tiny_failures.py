"""Cells that fail on a real, tiny model are stored with the reason, and the rest is measured."""

import json
import logging
import shutil

import pytest
import torch
from transformers import Mamba2Config, Mamba2ForCausalLM, OpenAIGPTConfig, OpenAIGPTLMHeadModel

from specbench.bench.benchmark import run_benchmark
from specbench.bench.planning import plan_run
from specbench.bench.this_process import prepare_device
from specbench.cli.measure import require_complete
from specbench.errors import UsageError, WorkloadError
from specbench.inputs.config import load_pairings
from specbench.probes import device
from specbench.probes.device import find_device
from specbench.probes.gpu import GpuFacts, Probe
from specbench.report.document import build_document
from specbench.settings import MachineSettings
from specbench.words.answers import text
from tests.bench.fake_runs import write_prompts
from tests.bench.fakes import RecordingWatch
from tests.bench.tiny_runs import run_on, settings_for
from tests.engines.refused_triton import choose_refused_triton
from tests.tiny_pair import make_tokenizer


@pytest.fixture(scope="module")
def refusing(tiny, tmp_path_factory):
    """A run in which several drafters and one whole target are refused, each for another reason."""
    folder = tmp_path_factory.mktemp("refusing")
    for name in ("target", "draft"):
        shutil.copytree(tiny / name, folder / name)
        shutil.copytree(tiny / name, folder / f"gone-{name}")
    shutil.copytree(tiny / "draft", folder / "foreign")
    tokenizer = json.loads((folder / "foreign" / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]
    (folder / "foreign" / "tokenizer.json").write_text(json.dumps(tokenizer))
    shape = {"num_heads": 4, "head_dim": 16, "n_groups": 1, "state_size": 8, "expand": 2}
    mamba = Mamba2Config(vocab_size=272, hidden_size=32, num_hidden_layers=1, **shape)
    Mamba2ForCausalLM(mamba).save_pretrained(folder / "mamba")
    make_tokenizer().save_pretrained(folder / "mamba")
    own_masks = OpenAIGPTConfig(vocab_size=272, n_embd=32, n_layer=1, n_head=2)
    OpenAIGPTLMHeadModel(own_masks).save_pretrained(folder / "own-masks")
    make_tokenizer().save_pretrained(folder / "own-masks")
    (folder / "pairings.yaml").write_text(
        """\
targets:
  gone:
    model: ./gone-target
    drafters: {ngram: {method: ngram}}
  tiny:
    model: ./target
    drafters:
      foreign: {method: draft_model, model: ./foreign}
      gone: {method: draft_model, model: ./gone-draft}
      mamba: {method: draft_model, model: ./mamba}
      own-masks: {method: draft_model, model: ./own-masks}
      head: {method: medusa, model: ./draft}
      range: {method: ngram, parameters: {min_ngram: 5, max_ngram: 2}}
      ngram: {method: ngram}
"""
    )
    settings = settings_for(tiny, pairings=("gone", "tiny"), num_speculative_tokens=(2,))
    pairings = load_pairings(folder / "pairings.yaml").select(settings.workload.pairings)
    for name in ("gone-target", "gone-draft"):  # after pairings.yaml was checked
        shutil.rmtree(folder / name)
    return run_benchmark(plan_run(settings, pairings), folder / "reports", RecordingWatch())


@pytest.mark.parametrize(
    ("pairing", "stage", "reason"),
    [
        ("gone", "load", "gone-target"),
        ("tiny/foreign", "load", "different tokens (35: 'A' against 'B', 36:"),
        ("tiny/gone", "load", "gone-draft"),
        ("tiny/mamba", "load", "Mamba2ForCausalLM keeps recurrent state that cannot be rolled"),
        ("tiny/own-masks", "load", "OpenAIGPTLMHeadModel: its code raises RuntimeError: "),
        ("tiny/head", "load", "draft has no Medusa heads; their tensors are named like"),
        ("tiny/range", "load", "ngram: min_ngram 5, max_ngram 2; expected 1 <= min <= max"),
    ],
)
def test_a_pairing_that_cannot_run_is_stored_as_a_failure(refusing, pairing, stage, reason):
    (failure,) = [f for f in refusing.failures if f.pairing == pairing]
    assert failure.stage == stage
    assert reason in failure.reason


def test_other_pairings_are_measured_despite_the_failures(refusing):
    assert len(refusing.failures) == 7
    cells = build_document(refusing).cells
    assert {cell.key.pairing for cell in cells} == {"tiny", "tiny/ngram"}
    assert len(refusing.blocks) == 2
    assert refusing.is_complete


def run_with_refused_triton(tiny, folder, monkeypatch, attention_backend="auto"):
    """A run of K = 1 and 3 in which Triton refuses our attention only at K = 3."""
    choose_refused_triton(monkeypatch, folder)
    changes = {"kernels": attention_backend, "forward": "fused", "num_speculative_tokens": (1, 3)}
    return run_on(tiny, settings_for(tiny, **changes), folder)


def test_a_run_goes_on_with_torchs_attention_if_triton_refuses_ours(tiny, tmp_path, monkeypatch):
    run = run_with_refused_triton(tiny, tmp_path, monkeypatch)
    assert not run.failures
    cells = build_document(run).cells
    assert {cell.key.draft.k for cell in cells if cell.num_prompts} == {0, 1, 3}
    choices = [c for c in run.engines[-1].kernels if c.subject.startswith("attention")]
    assert {choice.chosen for choice in choices} == {"torch"}
    assert all("OutOfResources" in choice.contenders[0].refusal for choice in choices)
    assert any("Triton" in note and "245760" in note for note in run.engines[-1].notes)


def test_every_drafter_fails_with_a_way_out_if_triton_refuses_the_users_choice(
    tiny, tmp_path, monkeypatch
):
    run = run_with_refused_triton(tiny, tmp_path, monkeypatch, "triton")
    assert [failure.pairing for failure in run.failures] == ["tiny/draft", "tiny/ngram"]
    assert {failure.stage for failure in run.failures} == {"load"}
    assert all("--attention-backend torch" in failure.reason for failure in run.failures)


@pytest.mark.parametrize("characters", [249, 248])
def test_a_prompt_longer_than_the_context_is_omitted_without_a_failure(
    tiny, tmp_path, monkeypatch, characters
):
    """A token per character, 8 of the answer: 248 fit into 256 before the template is added."""
    logged = []
    monkeypatch.setattr(logging.Logger, "handle", lambda _, record: logged.append(record.msg))
    prompts = write_prompts(tmp_path / "long.jsonl", ["x" * characters, "short"])
    settings = settings_for(tiny, workloads=(prompts,), num_speculative_tokens=(2,))
    run = run_on(tiny, settings, tmp_path)
    requests = [r for block in run.blocks for r in block.requests]
    assert {(r.prompt_id, r.finish_reason == "failed") for r in requests} == {("p1", False)}
    (reason,) = [line for line in map(text, run.run.warnings) if "'p0'" in line]
    assert "1 of 2 prompts" in reason
    assert "256" in reason
    assert run.failures == ()
    assert {cell.num_prompts for cell in run.run.cells} == {1}
    assert run.run.workload_prompts == {"tiny": {"long.jsonl": 1}}
    require_complete(build_document(run))  # it is not an incomplete run
    assert "maximum sequence length" not in str(logged)  # transformers has nothing to add


@pytest.mark.parametrize("characters", [300, 247], ids=["alone", "with their template"])
def test_prompts_that_are_all_longer_than_the_context_are_refused_before_a_run(
    tiny, tmp_path, characters
):
    prompts = write_prompts(tmp_path / "long.jsonl", ["x" * characters, "y" * (characters + 1)])
    settings = settings_for(tiny, workloads=(prompts,), num_speculative_tokens=(2,))
    with pytest.raises(WorkloadError, match=r"long\.jsonl.*2 of 2 prompts.*256"):
        run_on(tiny, settings, tmp_path / "reports")
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:99", "mps", ""])
def test_a_missing_device_is_refused_with_the_available_ones(name):
    with pytest.raises(UsageError, match=r"--device .*(auto, cpu|try cpu)"):
        find_device(name)


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:0"])
@pytest.mark.parametrize(("cuda", "says"), [("13.0", ("13.0", "580")), (None, ("without CUDA",))])
def test_a_gpu_that_torch_cannot_use_is_an_error_and_no_run_on_the_cpu(
    name, cuda, says, monkeypatch
):
    class Gpu(Probe):
        def gpu_facts(self):
            return GpuFacts(name="NVIDIA H100", driver="550.54")

    monkeypatch.setattr(device, "open_probe", lambda _: Gpu(""))
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(UsageError) as raised:
        find_device(name)
    for word in ("NVIDIA H100", "550.54", torch.__version__, "--device cpu", *says):
        assert word in str(raised.value)
    assert find_device("cpu").type == "cpu"


def test_without_a_gpu_auto_is_the_cpu(monkeypatch):
    monkeypatch.setattr(device, "open_probe", lambda _: Probe("no NVIDIA driver"))
    assert find_device("auto").type == "cpu"


def test_a_gpu_is_found_by_its_number(monkeypatch):
    current = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_arch_list", list)  # as of a build for CPUs
    assert find_device("cuda:1") == torch.device("cuda", 1)
    assert find_device("auto") == find_device("cuda") == torch.device("cuda", 0)
    prepare_device(MachineSettings(device="cuda:1", threads=1))
    assert current == [torch.device("cuda", 1)]  # Triton launches kernels on the current GPU
    with pytest.raises(UsageError, match=r"cuda:2.* 2 CUDA devices"):
        find_device("cuda:2")
