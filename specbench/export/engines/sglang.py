"""SGLang: `python -m sglang.launch_server` with its --speculative-* flags.

Facts: srt/server_args.py and srt/speculative/ of 0.5.23. K by batch size is a file of tiers for
chains of EAGLE and EAGLE3; elsewhere one K holds for every batch.
"""

import json
from typing import NamedTuple

from specbench.errors import UsageError
from specbench.export.deployment import (
    PAD,
    ConfigFile,
    Deployment,
    Export,
    exported,
    model_name,
    server_flags,
    settings_lost,
)
from specbench.export.engine_version import dotted, read_release, told_apart

CONFIG_NAME = "adaptive.json"

_OLDEST, _NEWEST = (0, 5), (0, 5, 23)


class _Algorithm(NamedTuple):
    """A value of --speculative-algorithm.

    With steps it drafts step by step, and EAGLE's kernel verifies, by thresholds. Without them K
    is one less than the draft tokens, of which the current one is the first.
    """

    name: str
    has_steps: bool = True
    is_adaptive: bool = False  # K by batch size, and dynamic trees


_ALGORITHMS = {
    "draft_model": _Algorithm("STANDALONE"),
    "eagle": _Algorithm("EAGLE", is_adaptive=True),
    "eagle3": _Algorithm("EAGLE3", is_adaptive=True),
    "mtp": _Algorithm("NEXTN"),
    "dflash": _Algorithm("DFLASH", has_steps=False),
    "ngram": _Algorithm("NGRAM", has_steps=False),
}
_NONE = _Algorithm("", has_steps=False)
_NEAREST = {
    "peagle": "an eagle3 head",
    "suffix": "ngram, whose trie also remembers earlier answers",
    "previous_turn": "ngram, whose trie also remembers earlier answers",
}


def depth(algorithm: str | None, num_steps: int | None, num_tokens: int | None) -> int | None:
    """K of a server with these arguments; 0 without an algorithm, None if they do not say."""
    if not algorithm:
        return 0
    has_steps = all(a.has_steps for a in _ALGORITHMS.values() if a.name == algorithm)
    return num_steps if has_steps and num_steps else (num_tokens - 1 if num_tokens else None)


def vocabulary_notes(deployment: Deployment) -> list[str]:
    """speculative/standalone_worker_v2.py compares vocab_size, then the tokenizers' tokens."""
    if sizes := deployment.unequal_vocab_sizes:
        raise UsageError(f"{sizes}: SGLang starts only if they are equal; {PAD}")
    if ids := deployment.different_ids:
        raise UsageError(f"SGLang starts only with equal tokenizers, and id {ids[0]} differs")
    return []


def export(deployment: Deployment, version: str | None, config_name: str) -> Export:
    """A dynamic EAGLE tree is kept: SGLang grows the same one."""
    release = read_release("SGLang", version, oldest=_OLDEST, newest=_NEWEST)
    command = ["python", "-m", "sglang.launch_server"]
    command += ["--model-path", model_name(deployment.target), *server_flags(deployment)]
    lost = [
        *told_apart(release, _NEWEST),
        *settings_lost(deployment, keeps_lossy=_single(deployment) is not None),
        *deployment.dtype_lost,
    ]
    if not _has_tiers(deployment):
        lost += deployment.tiers_lost
        deployment = deployment.flat
    config = None
    if deployment.k:
        known = deployment.named("sglang", _ALGORITHMS, _NEAREST, head="an eagle or eagle3 head")
        command += ["--speculative-algorithm", known.name]
        command += _draft_flags(deployment)
        if _has_tiers(deployment):
            config = ConfigFile(config_name, json.dumps(_tiers(deployment), indent=2) + "\n")
            command += ["--speculative-adaptive", "--speculative-adaptive-config", config.name]
        command += _acceptance_flags(deployment)
        vocabulary_notes(deployment)
        lost += _lost(deployment)
    return exported(deployment, "sglang", dotted(release), command, lost, config)


def _draft_flags(deployment: Deployment) -> list[str]:
    flags = []
    if deployment.drafter is not None:
        flags += ["--speculative-draft-model-path", model_name(deployment.drafter)]
        if deployment.drafter.revision:
            flags += ["--speculative-draft-model-revision", deployment.drafter.revision]
    k = deployment.k
    if deployment.method == "dflash":
        return [*flags, "--speculative-dflash-block-size", str(k + 1)]  # the current token and K
    if deployment.method == "ngram":
        # A trie of breadth 1 drafts a chain.
        chain = ["--speculative-ngram-max-bfs-breadth", "1"]
        return [*flags, "--speculative-num-draft-tokens", str(k + 1), *chain]
    top_k, num_drafts = 1, k
    if _is_tree(deployment):
        top_k = deployment.whole("top_k")
        num_drafts = min(deployment.whole("max_drafts"), top_k + (k - 1) * top_k**2)
    return [
        *flags,
        *("--speculative-num-steps", str(k)),
        *("--speculative-eagle-topk", str(top_k)),
        *("--speculative-num-draft-tokens", str(num_drafts + 1)),  # the root counts
    ]


def _acceptance_flags(deployment: Deployment) -> list[str]:
    """Thresholds of 1 are the lossless ones. Rejection sampling, which has none, is for chains."""
    if deployment.temperature == 0:
        return []
    single = _single(deployment)
    flags = ["--speculative-accept-threshold-single", "1.0" if single is None else str(single)]
    flags += ["--speculative-accept-threshold-acc", "1.0"]
    if deployment.draws_drafts and single is None:  # what is drawn goes out as a chain
        flags.append("--speculative-use-rejection-sampling")
    return flags


def _single(deployment: Deployment) -> float | None:
    """The threshold of a lossy rule that SGLang has, too; at temperature 0 it applies none."""
    rule = deployment.pairing.drafter.lossy
    has_thresholds = _ALGORITHMS.get(deployment.method, _NONE).has_steps
    is_kept = deployment.temperature > 0 and has_thresholds
    return rule.parameters["single"] if rule and rule.name == "threshold" and is_kept else None


def _is_tree(deployment: Deployment) -> bool:
    """Whether SGLang grows the same tree; any other goes out as a chain."""
    return _is_adaptive(deployment) and deployment.tree == "dynamic"


def _has_tiers(deployment: Deployment) -> bool:
    """Tiers are for chains of EAGLE heads alone."""
    return deployment.is_tiered and _is_adaptive(deployment) and not deployment.tree


def _is_adaptive(deployment: Deployment) -> bool:
    return _ALGORITHMS.get(deployment.method, _NONE).is_adaptive


def _tiers(deployment: Deployment) -> dict[str, dict[str, list[int]]]:
    """The smallest batch of each tier -> the K that it may take."""
    tiers, first = {}, 1
    for num_rows, k in deployment.tiers:
        tiers[str(first)] = {"candidate_steps": [k]}
        first = (num_rows or first) + 1
    return tiers


def _lost(deployment: Deployment) -> list[str]:
    lost = []
    if _has_tiers(deployment):
        lost.append(
            "where one K ends and the next begins: a batch counts as large as the CUDA graph that "
            "it is padded to, unless --cuda-graph-bs also lists the tiers' sizes"
        )
    if deployment.tree and not _is_tree(deployment):
        lost.append(
            f"the {deployment.tree} token tree of {deployment.method}: exported as a chain of "
            f"depth K={deployment.k}, which accepts fewer tokens than the tree did"
        )
    if deployment.method == "ngram":
        lost.append(
            f"max_ngram {deployment.setting('max_ngram')}: SGLang matches suffixes of any length "
            "in its trie"
        )
    return lost
