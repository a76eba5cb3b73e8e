"""A model folder as a GGUF file: llama.cpp's converter, with the pre-tokenizer named by us.

    python tests/real_engines/make_gguf.py LLAMA_CPP_SOURCES MODEL_FOLDER OUT.gguf [TARGET_FOLDER]

The converter knows a pre-tokenizer by a hash of its ids, and so none that is home-made. A head
without a tokenizer takes its target's. Needs numpy, torch and transformers.
"""

import sys
from pathlib import Path
from typing import NoReturn

# Digits one by one, the rest as GPT-2 has it: that of the embedded models' tokenizers.
PRE_TOKENIZER = "smollm"


def convert(sources: Path, model: Path, out: Path, target: Path | None = None) -> None:
    """In float32, so that it is the same model to the bit."""
    sys.path[:0] = [str(sources), str(sources / "gguf-py")]
    import convert_hf_to_gguf as converter
    from conversion.base import TextModel

    TextModel.get_vocab_base_pre = lambda *_: PRE_TOKENIZER
    TextModel._set_vocab_sentencepiece = _has_none
    sys.argv = [converter.__file__, str(model), "--outfile", str(out), "--outtype", "f32"]
    sys.argv += ["--target-model-dir", str(target)] if target else []
    converter.main()


def _has_none(*_: object) -> NoReturn:
    """So that the converter reads tokenizer.json, and needs no package for what is not there."""
    raise FileNotFoundError


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    convert(*map(Path, sys.argv[1:]))
