"""vLLM: `vllm serve MODEL --speculative-config JSON`.

Facts: vllm/config/speculative.py of 0.30 to 0.33. Drafts are chains; medusa went with 0.33. What
it does not take of a head: models/llama_eagle.py, llama_eagle3.py and medusa.py of 0.32.
"""

import json
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from specbench.errors import ModelError, UsageError
from specbench.export.deployment import (
    Deployment,
    Export,
    exported,
    model_name,
    server_flags,
    settings_lost,
)
from specbench.export.engine_version import Release, dotted, read_release, told_apart
from specbench.files.eagle import eagle_has_bias
from specbench.files.head_files import HeadFiles, Shaped
from specbench.files.medusa import medusa_fields, medusa_tensors
from specbench.files.model import ModelFiles, open_model

CONFIG_NAME = None

_OLDEST, _NEWEST = (0, 30), (0, 33)
# What configs of vLLM's own call a field; it also takes the number of heads from K.
_SYNONYMS = {"medusa_num_heads": "num_heads", "medusa_num_layers": "num_hidden_layers"}
_NO_BIAS = "`specbench train eagle` makes heads without one"
SPECULATION = "--speculative-config"


class _Method(NamedTuple):
    """A `method` of vLLM; `settings`: its names of ours."""

    name: str
    settings: tuple[tuple[str, str], ...] = ()
    is_parallel: bool = False
    lost: Callable[[ModelFiles], Iterator[str]] | None = None  # of a head on this machine
    until: Release | None = None  # the first release without it


def vocabulary_notes(deployment: Deployment) -> list[str]:
    """config/speculative.py compares vocab_size, unless use_heterogeneous_vocab is set."""
    if sizes := deployment.unequal_vocab_sizes:
        return [f"{sizes}: vLLM starts only with use_heterogeneous_vocab, which drafts greedily"]
    return []


def export(deployment: Deployment, version: str | None, config_name: str) -> Export:  # noqa: ARG001
    """K per batch size becomes num_speculative_tokens_per_batch_size."""
    release = read_release("vLLM", version, oldest=_OLDEST, newest=_NEWEST)
    command = ["vllm", "serve", model_name(deployment.target), *server_flags(deployment)]
    lost = [
        *told_apart(release, _NEWEST),
        *settings_lost(deployment),
        *deployment.dtype_lost,
    ]
    if deployment.k:
        known = {n: m for n, m in _METHODS.items() if m.until is None or release < m.until}
        method = deployment.named("vllm", known, _NEAREST, head="an eagle or eagle3 head")
        config = _speculative_config(deployment, method)
        command += [SPECULATION, json.dumps(config)]
        lost += _lost(deployment)
        deployment = deployment.noting(vocabulary_notes(deployment))
    return exported(deployment, "vllm", dotted(release), command, lost)


def _speculative_config(deployment: Deployment, method: _Method) -> dict[str, Any]:
    config: dict[str, Any] = {"method": method.name, "num_speculative_tokens": deployment.k}
    if method.is_parallel:
        config["parallel_drafting"] = True
    is_mapped = deployment.row.retokenizes or bool(deployment.unequal_vocab_sizes)
    if is_mapped:
        config["use_heterogeneous_vocab"] = True
    if deployment.drafter is not None:
        config["model"] = model_name(deployment.drafter)
        if deployment.drafter.revision:
            config["revision"] = deployment.drafter.revision
    config |= {theirs: deployment.setting(ours) for theirs, ours in method.settings}
    if deployment.row.model != "refused" and deployment.temperature > 0:
        # vLLM drafts greedily at any temperature unless told otherwise.
        drawn = deployment.draws_drafts and not is_mapped
        config["draft_sample_method"] = "probabilistic" if drawn else "greedy"
    if deployment.is_tiered:
        config["num_speculative_tokens_per_batch_size"] = _schedule(deployment)
    return config


def _schedule(deployment: Deployment) -> list[list[int]]:
    """[[first, last batch size, K] ..]; the first range begins at 1, gaps are not allowed here."""
    ranges, first = [], 1
    for num_rows, k in deployment.tiers:
        if num_rows is None:
            raise UsageError("K by batch size needs a batch size for every K")
        ranges.append([first, num_rows, k])
        first = num_rows + 1
    return ranges


def _lost(deployment: Deployment) -> list[str]:
    lost = []
    if deployment.tree:
        lost.append(
            f"token trees: vLLM drafts chains, so this is a chain of depth K={deployment.k}; it "
            "accepts fewer tokens than the tree did, and the measured speed-up is the tree's"
        )
    if deployment.is_tiered:
        last = deployment.tiers[-1]
        lost.append(
            f"beyond {last.num_rows} requests at once nothing was measured; vLLM keeps "
            f"K={last.num_speculative_tokens} there"
        )
    lost += _head_lost(deployment)
    if deployment.row.retokenizes and deployment.temperature > 0:
        lost.append(
            "drafts that are drawn: between different vocabularies vLLM drafts greedily, which "
            "accepts fewer tokens than measured"
        )
    if deployment.method == "suffix":
        lost.append("suffix needs the package arctic-inference beside vLLM")
    return lost


def _head_lost(deployment: Deployment) -> list[str]:
    """What vLLM does not take of a head; nothing if it is not on this machine or not readable."""
    lost = _METHODS[deployment.method].lost
    try:
        return list(lost(open_model(deployment.head))) if lost else []
    except ModelError:
        return []  # whoever loads it says what is wrong


def _of_eagle(files: ModelFiles) -> Iterator[str]:
    yield from _without_class(files)
    head: HeadFiles[Shaped] = HeadFiles(source=files.spec.source, config=files.config, tensors={})
    if not eagle_has_bias(head):
        return
    if files.config.get("bias"):
        yield (
            f'{head.source}/config.json has "bias": true, which vLLM takes for biases of the '
            "attention: those it leaves to chance, fc.bias it drops, and next to nothing is "
            f'accepted. With "bias": false in a copy only fc.bias is lost; {_NO_BIAS}'
        )
    else:
        yield f"fc.bias of {head.source}: vLLM drops it, and accepts fewer drafts; {_NO_BIAS}"


def _of_eagle3(files: ModelFiles) -> Iterator[str]:
    yield from _without_class(files)
    if "fc.bias" in _names(files):
        yield f"fc.bias of {files.spec.source}: vLLM drops it, and accepts fewer drafts"


def _of_medusa(files: ModelFiles) -> Iterator[str]:
    needed = medusa_fields(medusa_tensors(files.head))
    lacking = {name: value for name, value in needed.items() if not _says(files, name, value)}
    if lacking:
        fields = ", ".join(f'"{name}": {json.dumps(value)}' for name, value in lacking.items())
        yield (
            f"{files.spec.source}/config.json lacks what vLLM reads there, and without it takes "
            f"sizes of another model or drops tensors: add {fields}"
        )


def _says(files: ModelFiles, name: str, value: object) -> bool:
    return value in (files.config.get(name), files.config.get(_SYNONYMS.get(name, name)))


def _without_class(files: ModelFiles) -> Iterator[str]:
    if not files.architecture:
        yield (
            f"{files.spec.source}/config.json names no class, which vLLM asks for: add "
            '"architectures": ["LlamaForCausalLM"] to it'
        )


def _names(files: ModelFiles) -> Collection[str]:
    """Of its tensors; none where only loading would tell."""
    try:
        return files.head.tensors
    except ModelError:
        return ()


_METHODS = {
    "draft_model": _Method("draft_model"),
    "token_intersection": _Method("draft_model"),
    "eagle": _Method("eagle", lost=_of_eagle),
    "eagle3": _Method("eagle3", lost=_of_eagle3),
    "peagle": _Method("eagle3", is_parallel=True, lost=_of_eagle3),
    "medusa": _Method("medusa", lost=_of_medusa, until=(0, 33)),
    "mtp": _Method("mtp"),
    "dflash": _Method("dflash"),
    "ngram": _Method(
        "ngram", (("prompt_lookup_max", "max_ngram"), ("prompt_lookup_min", "min_ngram"))
    ),
    "suffix": _Method(
        "suffix",
        (
            ("suffix_decoding_max_tree_depth", "max_depth"),
            ("suffix_decoding_max_cached_requests", "max_cached_requests"),
            ("suffix_decoding_max_spec_factor", "max_spec_factor"),
            ("suffix_decoding_min_token_prob", "min_token_prob"),
        ),
    ),
}
_NEAREST = {
    "previous_turn": "ngram, or suffix, which remembers earlier answers",
    "token_recycling": "suffix",
    "string_match": "token_intersection, which vLLM has (use_heterogeneous_vocab)",
    "medusa": "an eagle or eagle3 head; medusa ended with vLLM 0.32 (--engine-version 0.32)",
}
