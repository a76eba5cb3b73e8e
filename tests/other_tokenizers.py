"""Small trained tokenizers: byte-level ones and ones like SentencePiece's.

Both learn their merges from a few sentences, so that they share many tokens and not all.
"""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from specbench.files.tokenizer import common_tokens
from specbench.models.tokenizer import ChatTokenizer

SPECIALS = ("<|end|>", "<|turn|>")
TEXTS = (
    "The quick brown fox jumps over the lazy dog and the other dogs jump after the fox.",
    "Speculative decoding drafts several tokens, and the target checks all of them at once.",
    "def add(first, second):\n    return first + second\n",
    "Größe, naïve café, 日本語のテキスト, и русский текст 🎉.",
)


def write_byte_level(folder: Path, size: int, texts: tuple[str, ...] = TEXTS) -> ChatTokenizer:
    """A tokenizer like GPT-2's: every byte has a token, a word begins with its space."""
    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    return _written(folder, inner)


def write_pieces(
    folder: Path, size: int, texts: tuple[str, ...] = TEXTS, prepend: str = "always"
) -> ChatTokenizer:
    """A tokenizer like SentencePiece's: a space before every text, bytes for what has no piece."""
    inner = Inner(models.BPE(byte_fallback=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    spaces = decoders.Replace("\u2581", " ")
    inner.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse()])
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*SPECIALS, *bytes_], show_progress=False
    )
    inner.train_from_iterator(texts, trainer)
    content = json.loads(inner.to_str())
    content["added_tokens"] = content["added_tokens"][: len(SPECIALS)]  # bytes are ordinary
    return _written(folder, Inner.from_str(json.dumps(content)))


def _written(folder: Path, inner: Inner) -> ChatTokenizer:
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=SPECIALS[0]).save_pretrained(folder)
    return ChatTokenizer(str(folder), revision=None, trust_remote_code=False)


def revocabularied(model: Any, target: ChatTokenizer, draft: ChatTokenizer) -> Any:
    """The model under the draft's ids: a draft as good as the common tokens allow."""
    common = common_tokens(target.vocabulary, draft.vocabulary)
    config = type(model.config).from_dict(model.config.to_dict())
    config.vocab_size = len(draft.ids_by_token)
    torch.manual_seed(9)
    other = type(model)(config).to(model.dtype).eval()
    weights = model.state_dict()
    own_S, of_target_S = (
        torch.tensor(ids) for ids in (list(common.draft_ids.values()), list(common.draft_ids))
    )
    state = other.state_dict()
    for name, weight in weights.items():
        if state[name].shape == weight.shape and len(weight) != model.config.vocab_size:
            state[name].copy_(weight)
        else:
            state[name].mul_(0.01)  # the other logits are small
            state[name][own_S] = weight[of_target_S]
    return other
