"""vLLM: `vllm serve MODEL --speculative-config JSON`.

Facts: vllm/config/speculative.py of 0.30 to 0.33. Drafts are chains; medusa went with 0.33.
"""

import json
from typing import Any

from specbench.errors import UsageError
from specbench.export.deployment import (
    Deployment,
    Export,
    exported,
    model_name,
    server_flags,
    settings_lost,
)
from specbench.export.engine_version import dotted, read_release, told_apart
from specbench.export.vllm_heads import head_lost

CONFIG_NAME = None

_OLDEST, _NEWEST = (0, 30), (0, 33)
_WITHOUT_MEDUSA = (0, 33)
_WITH_MODEL = ("draft_model", "eagle", "eagle3", "peagle", "medusa", "mtp", "dflash")
# Our methods that are ways to run one of vLLM's.
_NAMES = {"peagle": "eagle3", "token_intersection": "draft_model"}
_NEAREST = {
    "previous_turn": "ngram, or suffix, which remembers earlier answers",
    "lookahead": "ngram",
    "token_recycling": "suffix",
    "self_speculation": "draft_model with a small model of the target's family",
    "string_match": "token_intersection, which vLLM has (use_heterogeneous_vocab)",
    "medusa": "an eagle or eagle3 head; medusa ended with vLLM 0.32 (--engine-version 0.32)",
}


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
        config = _speculative_config(deployment, has_medusa=release < _WITHOUT_MEDUSA)
        command += ["--speculative-config", json.dumps(config)]
        lost += _lost(deployment)
        deployment = deployment.noting(vocabulary_notes(deployment))
    return exported(deployment, "vllm", dotted(release), command, lost)


def _speculative_config(deployment: Deployment, *, has_medusa: bool) -> dict[str, Any]:
    method = deployment.method
    if method in _NEAREST and not (method == "medusa" and has_medusa):
        deployment.refuse("vllm", _NEAREST[method])
    name = _NAMES.get(method, method)
    config: dict[str, Any] = {"method": name, "num_speculative_tokens": deployment.k}
    if method == "peagle":
        config["parallel_drafting"] = True
    is_mapped = method == "token_intersection" or bool(deployment.unequal_vocab_sizes)
    if is_mapped:
        config["use_heterogeneous_vocab"] = True
    if deployment.drafter is not None:
        config["model"] = model_name(deployment.drafter)
        if deployment.drafter.revision:
            config["revision"] = deployment.drafter.revision
    if method == "ngram":
        config["prompt_lookup_max"] = deployment.setting("max_ngram")
        config["prompt_lookup_min"] = deployment.setting("min_ngram")
    if method == "suffix":
        config["suffix_decoding_max_tree_depth"] = deployment.setting("max_depth")
        config["suffix_decoding_max_cached_requests"] = deployment.setting("max_cached_requests")
        config["suffix_decoding_max_spec_factor"] = deployment.setting("max_spec_factor")
        config["suffix_decoding_min_token_prob"] = deployment.setting("min_token_prob")
    if name in _WITH_MODEL and deployment.temperature > 0:
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
    if deployment.drafter is not None:
        lost += head_lost(deployment.method, deployment.drafter)
    if deployment.method == "token_intersection" and deployment.temperature > 0:
        lost.append(
            "drafts that are drawn: between different vocabularies vLLM drafts greedily, which "
            "accepts fewer tokens than measured"
        )
    if deployment.method == "suffix":
        lost.append("suffix needs the package arctic-inference beside vLLM")
    return lost
