"""TensorRT-LLM: `trtllm-serve MODEL --config FILE` with a speculative_config in the file.

Facts: documentation of 1.2 and tensorrt_llm/llmapi/llm_args.py of 1.2 and 1.3. K by batch size is
draft_len_schedule, which 1.3 turned round: before, a key is the smallest batch of its K, since
then the largest, with 0 beyond the last. 1.2 still counts a dynamic tree as a chain.
"""

from typing import Any

import yaml

from specbench.errors import UsageError
from specbench.export.deployment import (
    PAD,
    ConfigFile,
    Deployment,
    Export,
    exported,
    model_name,
    settings_lost,
)
from specbench.export.engine_version import Release, dotted, read_release, told_apart

CONFIG_NAME = "speculative.yaml"

_OLDEST, _NEWEST = (1, 2), (1, 3)
_DEFAULT = "1.2"  # 1.3 is being made
_TURNED_ROUND = (1, 3)
_ONE_MODEL = ("eagle3", "mtp")  # drafter and target in one graph
_TYPES = {
    "draft_model": "Draft_Target",
    "eagle3": "Eagle3",
    "mtp": "MTP",
    "ngram": "NGram",
    "dflash": "DFlash",
}
_NEAREST = {
    "suffix": "ngram; its own suffix automaton (decoding_type: SA) is another method",
    "previous_turn": "ngram, whose pool also remembers earlier answers",
}


def vocabulary_notes(deployment: Deployment) -> list[str]:
    """_torch/pyexecutor/sampler.py compares greedy drafts by id, and subtracts the probabilities
    of drawn ones from the target's."""
    sizes = deployment.unequal_vocab_sizes
    if sizes and deployment.temperature > 0:
        raise UsageError(
            f"{sizes}: TensorRT-LLM fails at a rejected draft above temperature 0; {PAD}"
        )
    return [f"{sizes}: TensorRT-LLM's sources show no check, and it was not run"] if sizes else []


def export(deployment: Deployment, version: str | None, config_name: str) -> Export:
    """A dynamic EAGLE-3 tree is kept from 1.3 on."""
    release = read_release("TensorRT-LLM", version or _DEFAULT, oldest=_OLDEST, newest=_NEWEST)
    target = deployment.target
    command = ["trtllm-serve", model_name(target)]
    lost = [
        *told_apart(release, _NEWEST),
        *settings_lost(deployment),
        *deployment.dtype_lost,
    ]
    if target.revision:
        lost.append(f"revision {target.revision} of the target: serve a folder that holds it")
    if target.trust_remote_code:
        command.append("--trust_remote_code")
    settings: dict[str, Any] = {"dtype": deployment.served_dtype} if deployment.served_dtype else {}
    # The first tier must have the deepest K, so others are served with one K.
    if not _has_schedule(deployment, release):
        lost += deployment.tiers_lost
        deployment = deployment.flat
    if deployment.k:
        settings |= _settings(deployment, release)
        lost += _lost(deployment, release)
        deployment = deployment.noting(vocabulary_notes(deployment))
    config = None
    if settings:
        config = ConfigFile(config_name, yaml.safe_dump(settings, sort_keys=False))
        command += ["--config", config.name]
    return exported(deployment, "tensorrt_llm", dotted(release), command, lost, config)


def _settings(deployment: Deployment, release: Release) -> dict[str, Any]:
    method = deployment.method
    name = deployment.named("tensorrt_llm", _TYPES, _NEAREST, head="an eagle3 head")
    config: dict[str, Any] = {"decoding_type": name, "max_draft_len": deployment.k}
    if deployment.drafter is not None:
        config["speculative_model"] = model_name(deployment.drafter)
    if method == "eagle3":
        config["eagle3_one_model"] = True
        if deployment.tree == "dynamic" and release >= _TURNED_ROUND:
            config["use_dynamic_tree"] = True
            config["dynamic_tree_max_topK"] = deployment.setting("top_k")
            config["max_total_draft_tokens"] = deployment.setting("max_drafts")
    if method == "ngram":
        config["max_matching_ngram_size"] = deployment.setting("max_ngram")
        config["is_use_oldest"] = False  # specbench takes the newest match
    if deployment.is_tiered:
        config["draft_len_schedule"] = _schedule(deployment, release)
    if method in _ONE_MODEL and deployment.temperature > 0 and release < _TURNED_ROUND:
        config["allow_advanced_sampling"] = True  # without it these draw nothing: greedy
    settings: dict[str, Any] = {"speculative_config": config}
    if method in ("ngram", "draft_model"):
        settings["disable_overlap_scheduler"] = True
    return settings


def _schedule(deployment: Deployment, release: Release) -> dict[int, int]:
    by_largest = {rows: k for rows, k in deployment.tiers if rows is not None}
    if release >= _TURNED_ROUND:
        return by_largest
    smallest = [1, *(rows + 1 for rows in by_largest)]
    return dict(zip(smallest, by_largest.values(), strict=False))


def _has_schedule(deployment: Deployment, release: Release) -> bool:
    is_deepest_first = deployment.tiers[0].num_speculative_tokens == deployment.k
    grows_tree = deployment.tree == "dynamic" and release >= _TURNED_ROUND
    return deployment.is_tiered and is_deepest_first and not grows_tree


def _lost(deployment: Deployment, release: Release) -> list[str]:
    grows_tree = deployment.tree == "dynamic" and release >= _TURNED_ROUND
    lost = [] if grows_tree else deployment.tree_lost
    if deployment.is_tiered:
        last = deployment.tiers[-1]
        k = 0 if release >= _TURNED_ROUND else last.num_speculative_tokens
        lost.append(
            f"beyond {last.num_rows} requests at once nothing was measured; TensorRT-LLM keeps "
            f"K={k} there"
        )
    if deployment.drafter is not None and deployment.drafter.revision:
        lost.append(
            f"revision {deployment.drafter.revision} of the drafter: name a folder that holds it"
        )
    if deployment.method == "ngram" and deployment.setting("min_ngram") != 1:
        lost.append(f"min_ngram {deployment.setting('min_ngram')}: suffixes of one token match")
    if deployment.temperature > 0:
        lost.append(
            "the acceptance rule above temperature 0: no setting is known for it; compare "
            "acceptance there before you trust the speed-up"
        )
    return lost
