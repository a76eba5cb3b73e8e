"""Heads whose files are incomplete, and what of them is held and read."""

from dataclasses import replace

import torch

from specbench.files.model import open_model
from specbench.fit.weights import head_weights
from specbench.methods import find_method
from tests.fit.test_head_compatibility import check, refusals, target  # noqa: F401
from tests.fit.test_memory_plan import H100, pair, shape
from tests.tiny_models import change_config, replace_weights, write_head


def test_a_pickled_head_of_another_width_is_not_refused(target, tmp_path):  # noqa: F811
    """It may have an input projection of its own."""
    head = write_head(tmp_path / "head", "eagle3", target)
    changed = replace_weights(head, "pytorch_model.bin", {"x": torch.zeros(1)})
    fields = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 64}
    checked = check(target, change_config(changed, **fields), "eagle3")
    assert "hidden_size" not in [field for field, *_ in refusals(checked)]


def test_a_model_config_is_refused_as_a_head_without_a_pickle(target, tmp_path):  # noqa: F811
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


def test_a_separate_embedding_is_looked_up_but_not_streamed(target, tmp_path):  # noqa: F811
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
