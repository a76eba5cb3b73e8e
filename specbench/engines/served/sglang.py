"""SGLang: `python -m sglang.launch_server` with its --speculative-* flags.

Sources: srt/entrypoints/openai/, srt/entrypoints/http_server.py, srt/server_args.py and
srt/speculative/ of 0.5.23; it was never run with a real server. For chains of EAGLE and EAGLE3,
K by batch size is a file of tiers; other methods have one K.
"""

import json
import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import ConfigDict, Field

from specbench.engines.deployment import (
    PAD,
    ConfigFile,
    Deployment,
    Export,
    Release,
    dotted,
    exported,
    model_name,
    read_release,
    server_flags,
    server_notes,
)
from specbench.engines.served_engine import (
    COUNTED_STREAM,
    EngineProperties,
    StartCommand,
    StartOptions,
    ask_chat,
    counts_of_sums,
    neutral_fields,
    read_counts,
)
from specbench.errors import RefusedError, UsageError
from specbench.records import Request, RequestCounts
from specbench.servers.facts import Fact, ModelNames, ServerFacts
from specbench.servers.metrics_page import MOST_POSITIONS, CounterPage, count_of
from specbench.servers.response import Count, Payload, StreamedResponse, TokenId
from specbench.servers.server_log import ARGPARSE, ARGUMENTS, DOWNLOAD, LogFormat
from specbench.stats.rounds import mean_length_from_rates

if TYPE_CHECKING:
    from specbench.servers.client import Client

_SIMULATED_LENGTH = "SGLANG_SIMULATE_ACC_LEN"
PROPERTIES = EngineProperties(
    module="sglang", distributions=("sglang",), simulated_by=(_SIMULATED_LENGTH,)
)
COUNTERS = CounterPage(  # srt/observability/metrics_collector.py
    engine="sglang",
    path="/metrics",
    prefix="sglang:",
    counters={
        "spec_verify_calls": "num_rounds",
        "generation_tokens": "num_tokens",
        "prompt_tokens": "num_prompt_tokens",
        "num_requests": "num_requests",
        "num_retracted_requests": "num_preemptions",
        "queue_time_seconds_sum": "queue_s",
        "cached_tokens": "num_cached_tokens",
    },
    counts_all_rounds=True,
)
LOG = LogFormat(
    prefix=re.compile(r"\[\d{4}-\d\d-\d\d [\d:]+(?P<process>[^]]*)\] (?:(?P<level>[A-Z]+) )?"),
    known={
        ARGPARSE: ARGUMENTS,
        r"increase --mem-fraction-static": (
            "take a larger share of memory: --engine-args '--mem-fraction-static 0.95'"
        ),
        r"is greater than the derived context_length": (
            "leave --context-length out of --engine-args, or take at most the model's own length"
        ),
        r"cannot find any model weights": DOWNLOAD,
    },
)

# Fields of /server_info to store. It also has all other arguments, with keys and passwords.
_SETTINGS = (
    *("model_path", "dtype", "quantization", "kv_cache_dtype", "context_length", "random_seed"),
    *("tp_size", "dp_size", "pp_size", "mem_fraction_static", "max_running_requests"),
    *("attention_backend", "chunked_prefill_size", "disable_radix_cache"),
    *("speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps"),
    *("speculative_eagle_topk", "speculative_num_draft_tokens", "speculative_adaptive"),
    *("speculative_accept_threshold_single", "speculative_accept_threshold_acc"),
    "speculative_use_rejection_sampling",
)


def launch(start: StartOptions) -> StartCommand:
    """`exported` is `python -m sglang.launch_server ...`."""
    command = [str(start.python) if start.python else start.exported[0], *start.exported[1:]]
    command += ["--host", start.host, "--port", str(start.port), "--random-seed", str(start.seed)]
    # By default it accepts fewer concurrent requests with speculation than without.
    command += ["--max-running-requests", str(start.max_concurrency), "--enable-metrics"]
    command += [] if start.keeps_prefixes else ["--disable-radix-cache"]
    program = ("python", "-m", "sglang.launch_server")
    return StartCommand(command=(*command, *start.arguments), num_program=len(program))


_Depth = Annotated[int, Field(ge=0, le=MOST_POSITIONS)]


class _ServerInfo(Payload):
    """The fields that `facts` reads; others are kept as they are."""

    model_config = ConfigDict(extra="allow")

    disable_radix_cache: bool | None = None
    max_total_num_tokens: Count | None = None
    dp_size: Count | None = None
    speculative_algorithm: str | None = None
    speculative_num_steps: _Depth | None = None
    speculative_num_draft_tokens: _Depth | None = None


async def facts(client: "Client", names: ModelNames) -> ServerFacts:
    """Facts from the arguments of the server, with its defaults filled in."""
    root, place = client.address.root, "/server_info"
    try:
        info = await client.parsed(f"{root}{place}", _ServerInfo)
    except RefusedError:  # older releases
        place = "/get_server_info"
        info = await client.parsed(f"{root}{place}", _ServerInfo)
    off = info.disable_radix_cache
    capacity = info.max_total_num_tokens
    arguments = info.model_dump()
    k, drafts = None, None
    if "speculative_algorithm" in info.model_fields_set:  # a gateway's page may lack it
        drafts = bool(info.speculative_algorithm)
        k = depth(
            info.speculative_algorithm,
            info.speculative_num_steps,
            info.speculative_num_draft_tokens,
        )
    return ServerFacts(
        version=str(arguments.get("version", "")),
        model=(await names.card(client))["id"],
        k=Fact.read(place, k),
        drafts=Fact.read(place, drafts),
        kv_tokens=capacity * (info.dp_size or 1) if capacity else None,
        context=count_of(str(arguments.get("context_length"))),
        settings={
            name: str(arguments[name]) for name in _SETTINGS if arguments.get(name) is not None
        },
        prefix_cache=Fact.read(place, None if off is None else "off" if off else "on"),
    )


class _EventExtension(Payload):
    spec_tokens_details: dict[str, Any] | None = None
    output_ids: list[list[TokenId]] | None = None


_NOTHING = _EventExtension()


class _SglangEvent(Payload):
    sglext: _EventExtension | None = None


class _SglangCounts(Payload):
    spec_num_correct_drafts: Count
    spec_num_proposed_drafts: Count
    spec_verify_ct: Count


@dataclass(kw_only=True, slots=True)
class _SglangStream(StreamedResponse):
    """Ids and counts come after the text, in an extension of the API."""

    def add(self, event: Mapping[str, Any]) -> None:
        extension = _SglangEvent.model_validate(event).sglext or _NOTHING
        StreamedResponse.add(self, {**event, "metrics": extension.spec_tokens_details})
        for ids in extension.output_ids or ():  # one list per choice; there is one choice
            self.token_ids = array("i", ids)


async def answer(client: "Client", model: str, request: Request) -> StreamedResponse:
    """Stream the response with ids and counts; the first event's usage counts its tokens."""
    body = {
        **neutral_fields(model, request),
        "return_spec_tokens_details": True,
        "return_output_ids_in_sglext": True,
        **COUNTED_STREAM,
    }
    return await ask_chat(client, request, body, _SglangStream())


def counts(answer: StreamedResponse, k: int) -> RequestCounts | None:
    """Counts from sums. Every round drafts; for a tree, `num_drafted` counts its nodes."""
    if not answer.metrics or not k:
        return None
    reported = read_counts(_SglangCounts, answer.metrics)
    return counts_of_sums(
        answer,
        num_accepted=reported.spec_num_correct_drafts,
        num_drafted=reported.spec_num_proposed_drafts,
        num_drafting=reported.spec_verify_ct,
    )


CONFIG_NAME = "adaptive.json"

_OLDEST, _NEWEST = (0, 5), (0, 5, 23)


class _Algorithm(NamedTuple):
    """A value of --speculative-algorithm.

    With steps it drafts one token after the other, and EAGLE's kernel verifies by thresholds.
    Without steps its number of draft tokens is K + 1, because the current token is counted.
    """

    name: str
    has_steps: bool = True
    is_adaptive: bool = False  # K by batch size, and dynamic trees
    since: Release = ()  # the first release with it


_ALGORITHMS = {
    "draft_model": _Algorithm("STANDALONE"),
    "eagle": _Algorithm("EAGLE", is_adaptive=True),
    "eagle3": _Algorithm("EAGLE3", is_adaptive=True),
    "mtp": _Algorithm("NEXTN"),
    # Its files turn this into FROZEN_KV_MTP: pull request 24436.
    "gemma4_mtp": _Algorithm("NEXTN", since=(0, 5, 12)),
    "dflash": _Algorithm("DFLASH", has_steps=False),
    # Its config turns this into DFlash 2: pull request 35371.
    "dflash2": _Algorithm("DFLASH", has_steps=False, since=(0, 5, 19)),
    "dspark": _Algorithm("DSPARK", has_steps=False),
    "ngram": _Algorithm("NGRAM", has_steps=False),
}
_NONE = _Algorithm("", has_steps=False)
_NEAREST = {
    "gemma4_mtp": "a later release (--engine-version 0.5.12)",
    "dflash2": "a later release (--engine-version 0.5.19)",
    "peagle": "an eagle3 head",
    "suffix": "ngram, whose trie also remembers earlier answers",
    "previous_turn": "ngram, whose trie also remembers earlier answers",
}


def depth(algorithm: str | None, num_steps: int | None, num_tokens: int | None) -> int | None:
    """K of a server with these arguments; 0 without an algorithm, None if they do not show it."""
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
    """Export a deployment. A dynamic EAGLE tree stays a tree, since SGLang builds the same one."""
    release = read_release("SGLang", version, oldest=_OLDEST, newest=_NEWEST)
    command = ["python", "-m", "sglang.launch_server"]
    command += ["--model-path", model_name(deployment.target), *server_flags(deployment)]
    lost = server_notes(deployment, release, _NEWEST, keeps_lossy=_single(deployment) is not None)
    if release < _ADAPTIVE or not _has_tiers(deployment):
        deployment, tiers_lost = deployment.flat()
        lost += tiers_lost
    config, environment = None, _simulation(deployment)
    if deployment.k:
        names = {n: a for n, a in _ALGORITHMS.items() if release >= a.since}
        known = deployment.named("sglang", names, _NEAREST, head="an eagle or eagle3 head")
        command += ["--speculative-algorithm", known.name]
        command += _draft_flags(deployment)
        if _has_tiers(deployment):
            # The key is the smallest batch size of a tier.
            tiers = {str(first): {"candidate_steps": [k]} for first, _, k in deployment.ranges}
            config = ConfigFile(config_name, json.dumps(tiers, indent=2) + "\n")
            command += ["--speculative-adaptive", "--speculative-adaptive-config", config.name]
        command += _acceptance_flags(deployment)
        vocabulary_notes(deployment)
        lost += _lost(deployment)
    return exported(
        deployment, "sglang", dotted(release), command, lost, config, environment=environment
    )


_ADAPTIVE = (0, 5, 12)


def adaptive(
    deployment: Deployment,
    version: str | None,
    program: Path | None,  # noqa: ARG001
) -> dict[str, tuple[str, ...]]:
    """Steps by a moving average of acceptance, also by batch size, for chains of EAGLE heads; other
    drafts stay static (srt/speculative/adaptive_spec_params.py of 0.5.11, 0.5.12 and 0.5.23)."""
    release = read_release("SGLang", version, oldest=_OLDEST, newest=_NEWEST)
    if not _is_adaptive(deployment):
        return {}
    if release < _ADAPTIVE:
        raise UsageError(
            "--speculative-adaptive works with SGLang's usual scheduler since "
            f"{dotted(_ADAPTIVE)}, and this is {dotted(release)}: use a newer SGLang"
        )
    if _is_tree(deployment):
        raise UsageError(
            f"SGLang adapts chains, and {deployment.pairing.name} drafts a tree: add `tree: chain` "
            "to its parameters in pairings.yaml"
        )
    return {"adaptive": ("--speculative-adaptive",)}


def _simulation(deployment: Deployment) -> dict[str, str]:
    """Variables that simulate acceptance; sources: srt/environ.py, srt/speculative/spec_utils.py.
    Pull request 29645 added real draft tokens, for chains."""
    if deployment.simulated is None:
        return {}
    if _is_tree(deployment):
        raise UsageError("--simulate-acceptance: SGLang simulates chains; drop `tree: dynamic`")
    return {
        _SIMULATED_LENGTH: f"{mean_length_from_rates(deployment.simulated):.6g}",
        "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
        "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
    }


def _draft_flags(deployment: Deployment) -> list[str]:
    flags = []
    if deployment.drafter is not None:
        flags += ["--speculative-draft-model-path", model_name(deployment.drafter)]
        if deployment.drafter.revision:
            flags += ["--speculative-draft-model-revision", deployment.drafter.revision]
    k = deployment.k
    if deployment.method in ("dflash", "dflash2"):
        return [*flags, "--speculative-dflash-block-size", str(k + 1)]  # the current token and K
    if deployment.method == "dspark":
        return [*flags, "--speculative-dspark-block-size", str(k)]
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
    """Thresholds of 1 are lossless. Rejection sampling has no thresholds, and is for chains."""
    if deployment.temperature == 0:
        return []
    single = _single(deployment)
    flags = ["--speculative-accept-threshold-single", "1.0" if single is None else str(single)]
    flags += ["--speculative-accept-threshold-acc", "1.0"]
    if deployment.draws_drafts and single is None:  # drawn drafts are exported as a chain
        flags.append("--speculative-use-rejection-sampling")
    return flags


def _single(deployment: Deployment) -> float | None:
    """The threshold of a lossy rule that SGLang also has, above temperature 0; else None."""
    rule = deployment.pairing.drafter.lossy
    has_thresholds = _ALGORITHMS.get(deployment.method, _NONE).has_steps
    is_kept = deployment.temperature > 0 and has_thresholds
    return rule.parameters["single"] if rule and rule.name == "threshold" and is_kept else None


def _is_tree(deployment: Deployment) -> bool:
    """Whether SGLang builds the same tree; other trees are exported as a chain."""
    return _is_adaptive(deployment) and deployment.tree == "dynamic"


def _has_tiers(deployment: Deployment) -> bool:
    """Whether K differs by batch size and SGLang supports it: only for chains of EAGLE heads."""
    return deployment.is_tiered and _is_adaptive(deployment) and not deployment.tree


def _is_adaptive(deployment: Deployment) -> bool:
    return _ALGORITHMS.get(deployment.method, _NONE).is_adaptive


def _lost(deployment: Deployment) -> list[str]:
    lost = [] if _is_tree(deployment) else deployment.tree_lost
    if deployment.simulated is not None:
        lost.append(
            "acceptance by position: SGLang simulates only the mean length, by one of the two "
            "whole numbers next to it for a whole batch"
        )
    if _has_tiers(deployment):
        lost.append(
            "the exact batch sizes at which K changes: a batch counts as large as the CUDA graph "
            "that it is padded to, unless --cuda-graph-bs also lists the tiers' sizes"
        )
    if deployment.method == "ngram":
        lost.append(
            f"max_ngram {deployment.setting('max_ngram')}: SGLang matches suffixes of any length "
            "in its trie"
        )
    return lost
