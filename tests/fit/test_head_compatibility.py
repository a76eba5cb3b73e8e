"""Whether a head was made for a target: sizes, layers, and its author, with both values. Heads
whose files are incomplete, and the memory that they take.
"""

import re
import shutil
from dataclasses import replace

import pytest
import torch

from specbench.files.model import ModelFiles, open_model
from specbench.files.model_spec import ModelSpec
from specbench.fit.compatibility import Compatibility, check_drafter
from specbench.fit.weights import head_weights
from specbench.inputs.pairing import DrafterSpec
from specbench.methods import all_methods, find_method
from tests.fit.test_memory_plan import H100, pair, shape
from tests.tiny_models import (
    HEADS,
    NUM_LAYERS,
    change_config,
    change_json,
    files_of,
    replace_weights,
    swap_tokens,
    write_head,
    write_model,
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_model(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="module")
def wider(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    folder = tmp_path_factory.mktemp("models") / "wider"
    return write_model(folder, hidden_size=64, num_hidden_layers=NUM_LAYERS)


def check(target: ModelFiles, head: ModelFiles, method: str) -> Compatibility:
    spec = ModelSpec(source=str(head.folder), folder=head.folder)
    return check_drafter(target, DrafterSpec(name="head", method=method, model=spec))


def refusals(checked: Compatibility) -> list[tuple[str, str | None, str | None]]:
    return [(f.field, f.target, f.draft) for f in checked.of_level("refused")]


@pytest.mark.parametrize("method", HEADS)
def test_a_head_made_for_the_target_fits(target, tmp_path, method):
    head = write_head(tmp_path / method, method, target)
    checked = check(target, head, method)
    assert checked.level == "ok"
    assert {"kind", "hidden_size", "vocab_size"} <= {f.field for f in checked.findings}


@pytest.mark.parametrize("method", HEADS)
def test_a_head_of_a_wider_target_is_refused_with_both_sizes(target, wider, tmp_path, method):
    head = write_head(tmp_path / method, method, wider)
    assert ("hidden_size", "32", "64") in refusals(check(target, head, method))


@pytest.mark.parametrize("method", HEADS)
def test_a_head_of_another_vocabulary_is_refused_with_both_sizes(target, tmp_path, method):
    other = write_model(tmp_path / "other", vocab_size=300)
    head = write_head(tmp_path / method, method, other)
    assert ("vocab_size", "272", "300") in refusals(check(target, head, method))


def test_layers_that_the_target_lacks_are_refused_with_both(target, tmp_path):
    head = write_head(tmp_path / "head", "eagle3", target)
    changed = change_config(head, eagle_aux_hidden_state_layer_ids=[1, 3, 7])
    (finding,) = check(target, changed, "eagle3").of_level("refused")
    assert re.search(r"layer_ids .*\[1, 3, 7\], .*0 to 5", finding.reason)


def test_a_dflash_head_of_a_deeper_target_is_refused(target, tmp_path):
    head = write_head(tmp_path / "head", "dflash", target, num_layers=2)
    changed = change_config(head, num_target_layers=12)
    assert refusals(check(target, changed, "dflash")) == [("num_target_layers", "6", "12")]
    ids = {"target_layer_ids": [1, 9], "mask_token_id": 271}
    changed = change_config(head, num_target_layers=6, dflash_config=ids)
    (finding,) = check(target, changed, "dflash").of_level("refused")
    assert re.search(r"target_layer_ids \[1, 9\] .*mask_token_id 271 ", finding.reason)
    assert "must be below 6" in finding.reason
    assert "below 272" in finding.reason


def test_the_layers_that_a_head_reads_are_reported(target, tmp_path):
    head = write_head(tmp_path / "head", "eagle3", target, layer_ids=(0, 2, 4))
    (finding,) = [f for f in check(target, head, "eagle3").findings if f.field == "layer_ids"]
    assert (finding.level, finding.target, finding.draft) == ("ok", "6 layers", "[0, 2, 4]")


@pytest.mark.parametrize(
    ("method", "fields", "note"),
    [
        (
            "eagle3",
            {},
            "SafeAILab's layout, read in SafeAILab/EAGLE",
        ),
        ("peagle", {}, "as SpecForge writes it: logits equal those of SpecForge 0.2.0's own"),
        (
            "peagle",
            {"mask_token_id": None, "ptd_token_id": 3, "parallel_drafting": None},
            "Amazon's layout, read in vllm-project/vllm",
        ),
        ("dflash", {"dflash_config": {"causal": False}}, "as NVIDIA's modelopt writes it: logits"),
        ("dflash", {"num_target_layers": None}, "z-lab's layout, read in z-lab/dflash at 1012959"),
        ("eagle", {}, "never tested with a published head"),
    ],
)
def test_the_check_reports_the_layout_of_a_head(target, tmp_path, method, fields, note):
    head = write_head(tmp_path / "head", method, target)
    if "dflash_config" in fields:
        fields = {"dflash_config": {**head.config["dflash_config"], **fields["dflash_config"]}}
    checked = check(target, change_config(head, **fields), method)
    (finding,) = [finding for finding in checked.findings if finding.field == "layout"]
    assert (finding.level, note in finding.reason) == ("ok", True), finding.reason


@pytest.mark.parametrize("kind", ["dflare", "xpress"])
def test_unsupported_speculators_types_are_refused(target, tmp_path, kind):
    head = write_head(tmp_path / "head", "dflash", target)
    changed = change_config(head, speculators_model_type=kind)
    (finding,) = check(target, changed, "dflash").of_level("refused")
    assert f"speculators_model_type {kind}" in finding.reason
    heads = [method.name for method in all_methods() if method.is_head]
    assert f" {', '.join(heads)} " in finding.reason


@pytest.mark.parametrize(("wrote", "named"), [("eagle", "eagle3"), ("medusa", "eagle")])
def test_a_head_of_another_method_is_refused_with_both_methods(target, tmp_path, wrote, named):
    head = write_head(tmp_path / "head", wrote, target)
    assert refusals(check(target, head, named)) == [("kind", named, wrote)]


def test_a_whole_model_is_not_a_head(target):
    checked = check(target, target, "eagle")
    assert refusals(checked) == [("kind", "eagle", "draft_model")]


def test_a_missing_head_is_refused(target, tmp_path):
    head = write_head(tmp_path / "head", "eagle3", target)
    changed = change_config(head, speculators_model_type="peagle")
    (finding,) = check(target, changed, "eagle3").of_level("refused")
    assert "speculators_model_type peagle" in finding.reason


def test_a_head_with_a_tokenizer_of_another_model_is_refused(target, tmp_path):
    head = write_head(tmp_path / "head", "eagle", target)
    shutil.copy(target.folder / "tokenizer.json", head.folder)
    change_json(head.folder / "tokenizer.json", swap_tokens)
    (finding,) = check(target, files_of(head.folder), "eagle").of_level("refused")
    assert finding.field == "tokenizer"
    assert "'A' against 'B'" in finding.reason


@pytest.mark.parametrize("key", ["speculators", "base"])
def test_a_head_made_for_another_target_is_a_warning_with_both_names(target, tmp_path, key):
    head = write_head(tmp_path / "head", "eagle", target)
    named = {"base_model_name_or_path": "owner/other"}
    if key == "speculators":
        named = {"speculators_config": {"verifier": {"name_or_path": "owner/other"}}}
    (finding,) = check(target, change_config(head, **named), "eagle").of_level("warning")
    assert (finding.field, finding.draft) == ("made_for", "owner/other")
    assert finding.target == str(target.folder)
    same = change_config(head, base_model_name_or_path="owner/TARGET", speculators_config=None)
    assert check(target, same, "eagle").level == "ok"


def test_a_pickled_head_is_reported_and_not_opened(target, tmp_path):
    head = write_head(tmp_path / "head", "eagle", target)
    changed = replace_weights(head, "pytorch_model.bin", {"x": torch.zeros(1)})
    changed = change_config(changed, architectures=["LlamaForCausalLMEagle"])
    (finding,) = check(target, changed, "eagle").of_level("warning")
    assert (finding.field, finding.draft) == ("weights", "pytorch_model.bin")
    assert "not opened" in finding.reason


def test_a_pickled_head_is_not_refused_for_its_unread_tensors(target, tmp_path):
    """The head may have its own embedding and output head, for fewer tokens than the target has."""
    head = write_head(tmp_path / "head", "eagle3", target)
    changed = replace_weights(head, "pytorch_model.bin", {"x": torch.zeros(1)})
    fields = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 100}
    checked = check(target, change_config(changed, **fields), "eagle3")
    assert not checked.of_level("refused")
    assert [finding.field for finding in checked.of_level("warning")] == ["weights"]


def test_a_pickled_head_with_a_plain_models_config_is_reported(target, tmp_path):
    head = write_head(tmp_path / "head", "eagle", target)
    changed = replace_weights(head, "pytorch_model.bin", {"x": torch.zeros(1)})
    checked = check(target, change_config(changed, architectures=["LlamaForCausalLM"]), "eagle")
    assert not checked.of_level("refused")
    assert "kind" in [finding.field for finding in checked.of_level("warning")]


def test_medusa_tensors_of_other_shapes_are_refused_with_both(target, tmp_path):
    from tests.tiny_models import write_files

    tensors = {"0.0.linear.weight": torch.zeros(32, 32), "0.1.weight": torch.zeros(272, 32)}
    good = write_files(tmp_path / "good", {"medusa_num_heads": 1}, tensors)
    assert check(target, good, "medusa").level == "ok"
    tensors["0.0.linear.bias"] = torch.zeros(31)
    wrong = write_files(tmp_path / "wrong", {"medusa_num_heads": 1}, tensors)
    (finding,) = check(target, wrong, "medusa").of_level("refused")
    assert "0.0.linear.bias is (31,), not (32,)" in finding.reason


def test_a_target_without_mtp_layers_is_refused_for_mtp(target):
    (finding,) = check_drafter(target, DrafterSpec(name="mtp", method="mtp")).of_level("refused")
    assert re.search("MTP layers .*llama", finding.reason)


def test_a_pickled_head_of_another_width_is_not_refused(target, tmp_path):
    """The head may have its own input projection."""
    head = write_head(tmp_path / "head", "eagle3", target)
    changed = replace_weights(head, "pytorch_model.bin", {"x": torch.zeros(1)})
    fields = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 64}
    checked = check(target, change_config(changed, **fields), "eagle3")
    assert "hidden_size" not in [field for field, *_ in refusals(checked)]


def test_a_model_config_is_refused_as_a_head_without_a_pickle(target, tmp_path):
    head = write_head(tmp_path / "head", "eagle", target)
    changed = change_config(head, architectures=["LlamaForCausalLM"])
    for file in head.folder.glob("*.safetensors*"):
        file.unlink()
    assert refusals(check(target, open_model(changed.spec), "eagle"))


def test_an_ngram_drafter_needs_no_memory_for_distributions():
    from specbench.fit.memory_plan import sampling_bytes
    from specbench.inputs.pairing import DrafterSpec

    big = open_model(shape("llama-8b"))
    cold = replace(H100, num_speculative_tokens=4)
    ngram = DrafterSpec(name="d", method="ngram")
    plans = [pair(big, replace(cold, temperature=t), ngram) for t in (0.0, 1.0)]
    needed = sampling_bytes(1, 4, big.vocab_size, draws=False)
    assert plans[1].peak.rest - plans[0].peak.rest == needed


def test_a_separate_embedding_is_looked_up_but_not_streamed(target, tmp_path):
    from safetensors.torch import load_file, save_file

    head = write_head(tmp_path / "head", "eagle", target)
    (file,) = head.folder.glob("*.safetensors")
    tensors = {n: t for n, t in load_file(file).items() if "embed_tokens" not in n}
    facts = find_method("eagle").head
    embedding = torch.randn(target.vocab_size, target.size("hidden_size"))
    weights = []
    for more in ({}, {"embed_tokens.weight": embedding}):
        save_file({**tensors, **more}, file)
        weights.append(head_weights(target, open_model(head.spec), facts, "float32"))
    bare, full = weights
    assert full.nbytes - bare.nbytes == embedding.nbytes
    assert full.read_bytes == bare.read_bytes
