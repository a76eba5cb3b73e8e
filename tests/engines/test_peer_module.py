"""Two modules over one set of tensors: shared where it is memory, apart where it is behaviour."""

import pytest
import torch

from specbench.engines.transformers_engine import make_peer, twin
from specbench.forward.attention import stock
from specbench.forward.fused_runner import FusedRunner
from specbench.forward.runner import StockRunner
from tests.decoding.models import ARCHITECTURES, build, plain_logits, random_prompt, tiny_llama

PROMPT_1T = torch.tensor([random_prompt(9, seed=3)])


def tensors_of(model):
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def storages_of(*models):
    return {
        tensor.untyped_storage().data_ptr()
        for model in models
        for tensor in tensors_of(model).values()
    }


def attention_of(model):
    return model.config.get_text_config()._attn_implementation


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_peer_module_shares_weights_and_has_equal_logits(name):
    model = build(ARCHITECTURES[name]())
    model.set_attn_implementation("eager")
    expected = plain_logits(model, PROMPT_1T)

    peer = make_peer(model)

    assert tensors_of(peer).keys() == tensors_of(model).keys()
    assert storages_of(peer, model) == storages_of(model)
    assert torch.allclose(plain_logits(peer, PROMPT_1T), expected, atol=1e-4)


def test_rotary_frequencies_and_other_buffers_without_a_file_come_along():
    model = tiny_llama()
    own, others = (
        dict(m.named_buffers())["model.rotary_emb.inv_freq"] for m in (model, twin(model))
    )
    assert own.data_ptr() == others.data_ptr()


def test_tied_weights_stay_tied():
    peer = twin(tiny_llama(tie_word_embeddings=True))
    assert peer.get_input_embeddings().weight is peer.get_output_embeddings().weight


@pytest.mark.parametrize("is_ours_first", [True, False])
def test_our_attention_and_that_of_the_peer_stay_separate(is_ours_first):
    model = tiny_llama()
    expected = plain_logits(model, PROMPT_1T)
    if is_ours_first:
        StockRunner(model)
        peer = make_peer(model)
    else:
        peer = make_peer(model)
        StockRunner(model)

    assert attention_of(model) == stock.NAME
    assert attention_of(peer) == "sdpa"
    assert torch.allclose(plain_logits(peer, PROMPT_1T), expected, atol=1e-5)


@pytest.mark.parametrize("is_fused_first", [True, False])
def test_weights_that_become_views_of_a_fused_matrix_stay_shared(is_fused_first):
    model = tiny_llama()
    expected = plain_logits(model, PROMPT_1T)

    def fuse():
        mlp = model.model.layers[0].mlp
        fused = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        mlp.gate_proj.weight.data, mlp.up_proj.weight.data = fused.chunk(2)

    if is_fused_first:
        fuse()
    peer = make_peer(model)
    if not is_fused_first:
        fuse()

    assert storages_of(peer) == storages_of(model)
    assert torch.allclose(plain_logits(peer, PROMPT_1T), expected, atol=1e-5)


@pytest.mark.parametrize("is_ours_first", [True, False])
@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Qwen3", "Mistral + window"])
def test_a_fused_runner_and_a_peer_hold_one_set_of_weights(name, is_ours_first):
    model = build(ARCHITECTURES[name]())
    expected = plain_logits(model, PROMPT_1T)

    with torch.inference_mode():  # as the decoder makes its runners
        if is_ours_first:
            FusedRunner(model)
            peer = make_peer(model)
        else:
            peer = make_peer(model)
            FusedRunner(model)

    assert storages_of(peer) == storages_of(model)
    assert torch.allclose(plain_logits(peer, PROMPT_1T), expected, atol=1e-4)
    with torch.inference_mode():
        assert torch.allclose(plain_logits(peer, PROMPT_1T), expected, atol=1e-4)


@pytest.mark.parametrize("name", ["Gemma2 + window", "GPT-OSS + window"])
def test_attention_that_the_kernel_lacks_runs_eagerly(name):
    assert attention_of(make_peer(build(ARCHITECTURES[name]()))) == "eager"


def test_settings_of_the_checkpoint_stay_with_the_checkpoint():
    model = tiny_llama()
    model.generation_config.repetition_penalty = 3.0

    peer = make_peer(model)

    assert peer.generation_config.repetition_penalty is None
    assert model.generation_config.repetition_penalty == 3.0
