"""A model folder as a GGUF file: llama.cpp's converter, with the pre-tokenizer named by us.

    python tests/real_engines/make_gguf.py LLAMA_CPP_SOURCES MODEL_FOLDER OUT.gguf [TARGET_FOLDER]

The converter identifies a pre-tokenizer by a hash of its ids, so it knows no custom one. A head
without a tokenizer takes its target's. Needs numpy, torch and transformers.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

# Digits one by one, the rest as GPT-2 has it: the one of the bundled models' tokenizers.
PRE_TOKENIZER = "smollm"
TOKENS, TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"


def convert(sources: Path, model: Path, out: Path, target: Path | None = None) -> None:
    """Convert in float32, so that the model stays the same to the bit."""
    sys.path[:0] = [str(sources), str(sources / "gguf-py")]
    import convert_hf_to_gguf as converter
    from conversion.base import TextModel
    from conversion.gemma import Gemma4Model

    TextModel.get_vocab_base_pre = lambda *_: PRE_TOKENIZER
    TextModel._set_vocab_sentencepiece = _has_none
    TextModel._set_vocab_glm = TextModel._set_vocab_gpt2  # whose special tokens a tiny GLM lacks
    Gemma4Model.set_vocab = TextModel._set_vocab_gpt2
    sys.argv = [converter.__file__, str(model), "--outfile", str(out), "--outtype", "f32"]
    sys.argv += ["--target-model-dir", str(target)] if target else []
    converter.main()


def change(sources: Path, model: Path, out: Path, changes: Mapping[str, Any]) -> Path:
    """A copy of a GGUF file with other keys; None omits a key, and a function makes the value from
    the old one. Its embedding has a row per token."""
    sys.path[:0] = [str(sources / "gguf-py")]
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    reader = GGUFReader(model)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    keys = {name: field.contents() for name, field in fields.items()}
    keys |= {name: v(keys[name]) if callable(v) else v for name, v in changes.items()}
    num_tokens = len(keys[TOKENS] or fields[TOKENS].contents())
    keys[TYPES] = (keys[TYPES] + num_tokens * [1])[:num_tokens]
    types = {name: field.types for name, field in fields.items()}
    writer = GGUFWriter(out, keys.pop("general.architecture") or "")
    for name, value in keys.items():
        if value is not None:
            is_flag = isinstance(value, bool)
            kind = types.get(name) or [GGUFValueType.BOOL if is_flag else GGUFValueType.UINT32]
            writer.add_key_value(name, value, *kind)
    for tensor in reader.tensors:
        data = tensor.data
        if tensor.name in ("token_embd.weight", "output.weight"):
            data = np.zeros((num_tokens, data.shape[1]), data.dtype)
            kept = min(num_tokens, len(tensor.data))
            data[:kept] = tensor.data[:kept]
        writer.add_tensor(tensor.name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def _has_none(*_: object) -> NoReturn:
    """Makes the converter read tokenizer.json without a package for absent files."""
    raise FileNotFoundError


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    convert(*map(Path, sys.argv[1:]))
