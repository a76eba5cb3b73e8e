"""A small target and draft model: random Llamas with a byte tokenizer.

The draft is the target's first layers, and the later layers are scaled down, so that the two
agree often; `agreement` is that scale: 0 makes them equal, 1 leaves them unrelated.
"""

import copy
import shutil
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PAIRINGS = """\
targets:
  tiny:
    model: ./target
    drafters:
      draft: {method: draft_model, model: ./draft}
      ngram: {method: ngram}
"""
WORKLOAD = '{{"id": "p{i}", "turns": ["prompt number {i}"]}}\n'


def make_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocab = {token: i for i, token in enumerate([*specials, *alphabet])}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": specials[1:]})
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_pair(
    num_layers: int = 4, draft_layers: int = 1, agreement: float = 0.1, seed: int = 0
) -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    """(target, draft) in float32; equal seeds make equal weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=272,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.3,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
    )
    target = LlamaForCausalLM(config).eval()
    for layer in target.model.layers[draft_layers:]:
        layer.self_attn.o_proj.weight.data.mul_(agreement)
        layer.mlp.down_proj.weight.data.mul_(agreement)
    draft_config = copy.deepcopy(config)
    draft_config.num_hidden_layers = draft_layers
    draft = LlamaForCausalLM(draft_config).eval()
    kept = {k: v for k, v in target.state_dict().items() if k in draft.state_dict()}
    draft.load_state_dict(kept)
    return target, draft


def write_refusing(target: Path, folder: Path) -> str:
    """A copy of the target whose template refuses its own answers, which only a second turn
    shows, and prompts of one and two turns; the copy's name."""
    shutil.copytree(target, folder / "refusing")
    (folder / "refusing" / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}"
        "{% if m.role == 'assistant' and m.content %}{{ raise_exception('not this one') }}"
        "{% endif %}{% endfor %}"
    )
    (folder / "prompts.jsonl").write_text(
        '{"turns": ["Hello", "And then?"]}\n{"prompt": "short"}\n'
    )
    return "./refusing"


def write_pair(folder: Path, num_prompts: int = 6) -> Path:
    """Models, pairings.yaml and a prompt file in `folder`; the path of pairings.yaml."""
    for name, model in zip(("target", "draft"), make_pair(), strict=True):
        model.save_pretrained(folder / name)
        make_tokenizer().save_pretrained(folder / name)
    prompts = "".join(WORKLOAD.format(i=i) for i in range(num_prompts))
    (folder / "prompts.jsonl").write_text(prompts)
    (folder / "pairings.yaml").write_text(PAIRINGS)
    return folder / "pairings.yaml"
