"""What a library says of a model's files that it cannot load, in a line, and what to do."""

import re

from specbench.errors import ModelError, first_line
from specbench.files.tokenizer_files import NO_TOKENIZER

# By words in what transformers raises: its own text is about arguments that nobody here passes.
_SAID = {
    "trust_remote_code": "it comes with Python code of its own (auto_map), which is not run; set "
    "trust_remote_code: true for it in pairings.yaml only if you trust its authors' code",
    "does not recognize this architecture": "the installed transformers does not know the "
    "model_type of its config.json; correct it, or install a newer transformers",
    "Should have a `model_type` key": "its config.json has no model_type that transformers knows; "
    "take the config.json that the weights came with",
    "ignore_mismatched_sizes": "its weights have other shapes than its config.json says; take the "
    "config.json that the weights came with",
    "not a valid model identifier": "the hub has no such model, or it is private; correct its "
    "name, or run `hf auth login` with a token that may read it",
    "backend tokenizer from one of": NO_TOKENIZER,
}
# transformers names the page of the license; whoever has accepted it still needs a token.
_GATED = re.compile(r"gated repo[^:]*?(https?://[^\s'\"]*[^\s'\".])")
_PROGRAMMING = (LookupError, AttributeError, TypeError, AssertionError)


def load_advice(error: Exception) -> str:
    """For an error that a library raised while it read a model's files."""
    whole, text = str(error), first_line(error)
    if isinstance(error, ModelError):  # our own readers say what to do
        return whole
    if page := _GATED.search(whole):
        return f"gated: accept its license at {page[1]}, then run `hf auth login`"
    for words, told in _SAID.items():
        if words in whole:
            return told
    if "safetensors" in whole and "deserializing" not in whole:
        return f"{text}; pickled weights are not read, convert them to safetensors first"
    if "local" in text or "connect" in text or "offline" in text.lower():
        return f"{text}; download it once with `hf download`, or give a folder (./my-model)"
    if isinstance(error, _PROGRAMMING):  # the library met something that it did not expect
        return f"{text}; a value in its files is not what it should be: download it again"
    return text
