"""Writes yaml.md: the keys of YAML files.

    python -m tools.reference

The readers of YAML say what there is; a test fails when the page is not what this would write. Only
the meaning of keys stands here.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill

from specbench.inputs.config import DEFAULTS_KEYS, DRAFTER_KEYS, FILE_KEYS, TARGET_KEYS
from specbench.inputs.model_spec import MODEL_DTYPES, MODEL_KEYS, QUANTIZATIONS
from specbench.inputs.workloads import CARD_KEYS, MAX_NEW_TOKENS
from specbench.settings.words import MAX_K

YAML = Path(__file__).parents[1] / "docs" / "yaml.md"

_MADE = "<!-- Written by `make docs` from the program: change that, not this page. -->"


def _codes(*values: object) -> str:
    return ", ".join(f"`{value}`" for value in values)


# Keys with the same name mean the same wherever they stand.
_KEYS: Mapping[str, str] = {
    "default": "the pairing that runs if you name none, or a list; default: the first target's",
    "defaults": "values for every target and drafter that does not set its own",
    "targets": "targets by name (needed)",
    "model": "a folder relative to this file, a Hugging Face id, `demo:NAME` or `shape:NAME`",
    "revision": "a branch, tag or commit on the hub, in quotes if it has only digits; default: the "
    "newest",
    "dtype": f"{_codes(*MODEL_DTYPES)}; `auto`: float32 on a CPU, the checkpoint's on most "
    "[GPUs](gpu.md#3-what-fits). Default: that of its target, or of `defaults`",
    "device_map": f"{_codes('auto', 'balanced', 'sequential', 'cpu', 'cuda', 'cuda:N')}; "
    "default: as for `dtype`",
    "quantization": f"{_codes(*QUANTIZATIONS)}: packs the weights when loaded; default: as stored "
    "([more](pairings.md#quantization))",
    "trust_remote_code": "`true` runs Python code of the model; by default it is refused",
    "weights_gib": "memory of the weights in GiB (with dtype `auto`: in 16 bits), for `doctor` and "
    "`list pairings --fits`",
    "vocab_size": "rows of the embedding, padding included, for `export` of a model that is not on "
    "this machine",
    "workloads": "a folder of this target's own prompts, looked in first; `demo` is the demo "
    "pair's ([prompt files](workloads.md))",
    "note": "a line for readers of the list",
    "drafters": "drafters by name (needed)",
    "method": "one of `specbench list methods`, or [a set of two]"
    "(pairings.md#two-methods-together) (needed)",
    "parameters": "the method's own, of `specbench list parameters`",
    "num_speculative_tokens": f"K, the most tokens drafted per round, 1 to {MAX_K}; default: 4, "
    "or the drafter's maximum if lower. `-k` takes precedence",
    "p_min": "a probability: a chain of drafts ends where the draft has no token this likely; "
    "default: K tokens. `--draft-p-min` compares several",
    "lossy": "a [rule](pairings.md#lossy-rules) that accepts tokens which change the distribution; "
    "default: none",
    "source": "of a catalog's entry: the address of the page that names this drafter",
    "checked": "the day on which that page was read, in quotes",
    "license": "the draft's license, or that of the prompts",
    "figure": "what the authors report",
    "name": "the workload's name, that of its file",
    "description": "what kind of text it is",
    "sha256": "checksum of the prompts: a changed prompt is a changed workload",
    "max_new_tokens": f"longest answer in tokens, up to {MAX_NEW_TOKENS}",
    "prompts": "how many prompts there are",
    "request": "[settings of requests](workloads.md#request-settings), which rows may override",
}


def yaml_page() -> str:
    """The keys of both YAML files."""
    parts = [
        f"# Keys of YAML files\n\n{_MADE}",
        "Every key of `pairings.yaml` and of a workload's card. [pairings.md](pairings.md) has\n"
        "examples. Methods and their parameters are in lists:\n\n"
        "```sh\nspecbench list methods\nspecbench list parameters\n```\n\n"
        "Any other key is an error that names file, line, key and the allowed values.",
        "## pairings.yaml\n\n" + _keys("of the file", FILE_KEYS),
        _keys("under `defaults`", DEFAULTS_KEYS),
        _keys("of a target", TARGET_KEYS),
        _keys("of a drafter", DRAFTER_KEYS),
        fill(f"A drafter without a model takes none of these: {_codes(*MODEL_KEYS)}.", 100),
        "## A workload's card\n\n`NAME.yaml` is next to `NAME.jsonl`:\n\n"
        + _keys("of a card", CARD_KEYS),
    ]
    return "\n\n".join(parts) + "\n"


def _keys(where: str, keys: Sequence[str]) -> str:
    return _table((f"key {where}", ""), ((f"`{key}`", _KEYS[key]) for key in keys))


def _table(head: Sequence[str], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    YAML.write_text(yaml_page(), encoding="utf-8")
