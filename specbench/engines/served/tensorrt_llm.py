"""TensorRT-LLM: `trtllm-serve MODEL --config FILE` with a speculative_config in the file.

Sources: documentation of 1.2; tensorrt_llm/llmapi/llm_args.py of 1.2 and 1.3; tensorrt_llm/serve/
and tensorrt_llm/metrics/collector.py of 1.3. It was never run with a real server. The server
refuses requests with an unknown field.

K by batch size is draft_len_schedule. Before 1.3 a key is the smallest batch size of its K. Since
1.3 it is the largest, and beyond the last one K = 0. Dynamic trees also exist since 1.3.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from pydantic import Field

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
    server_notes,
)
from specbench.engines.served_engine import (
    COUNTED_STREAM,
    EngineProperties,
    StartCommand,
    StartOptions,
    ask_chat,
    counts_of_sums,
    request_fields,
)
from specbench.errors import UsageError
from specbench.records import Request, RequestCounts
from specbench.servers.facts import Fact, ModelNames, ServerFacts
from specbench.servers.metrics_page import (
    DRAFT_COUNTERS,
    CounterPage,
    count_of,
    gauge_of,
    labels_of,
)
from specbench.servers.response import Payload, StreamedResponse
from specbench.servers.server_log import ARGUMENTS, LogFormat

if TYPE_CHECKING:
    from specbench.servers.client import Client

_FORCED_TOKENS = "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"
PROPERTIES = EngineProperties(
    module="tensorrt_llm",
    distributions=("tensorrt-llm", "tensorrt_llm"),
    simulated_by=(_FORCED_TOKENS,),
)
COUNTERS = CounterPage(
    engine="tensorrt_llm",
    path="/prometheus/metrics",
    prefix="trtllm_",
    counters={
        **DRAFT_COUNTERS,
        "generation_tokens": "num_tokens",
        "prompt_tokens": "num_prompt_tokens",
        "request_success": "num_requests",
        "request_queue_time_seconds_sum": "queue_s",
        "prompt_cached_tokens": "num_cached_tokens",
    },
)
LOG = LogFormat(
    prefix=re.compile(r"\[\d\d/\d\d/\d{4}-[\d:]+\] \[TRT-LLM\] \[(?P<level>[A-Z])\] "),
    known={r"^Error: (?:No such option|Invalid value)": ARGUMENTS},
)

_CONFIG = "tensorrt_llm.yaml"
# Without these settings the metrics page has no counters.
_COUNTED = {"enable_iter_perf_stats": True, "return_perf_metrics": True}
_QUIET = {"TRTLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def launch(start: StartOptions) -> StartCommand:
    """`exported` is `trtllm-serve MODEL ...`; a copy of its config file gets more settings."""
    settings = yaml.safe_load(start.config.read_text(encoding="utf-8")) if start.config else {}
    reuse = {"kv_cache_config": {"enable_block_reuse": start.keeps_prefixes}}
    guided = {"guided_decoding_backend": "xgrammar"} if start.constrains_output else {}
    config = start.folder / _CONFIG
    added = {**reuse, **guided, **_COUNTED}
    config.write_text(yaml.safe_dump({**settings, **added}, sort_keys=False), "utf-8")
    command = list(start.exported)
    if "--config" in command:
        command[command.index("--config") + 1] = str(config)
    else:
        command += ["--config", str(config)]
    if start.python is not None:
        command[0] = str(start.python.with_name(command[0]))
    command += ["--host", start.host, "--port", str(start.port)]
    return StartCommand(command=(*command, *start.arguments), environment=_QUIET)


async def facts(client: "Client", names: ModelNames) -> ServerFacts:
    """Facts from the metrics page, which has the KV cache's size only after a request."""
    _, page = await client.counter_page(COUNTERS.path, [COUNTERS])
    kinds = ("model", "parallel", "speculative", "kv_cache")
    labels = {k: (labels_of(page, f"trtllm_{k}_config_info") or [{}])[0] for k in kinds}
    reuses = labels["kv_cache"].get("enable_block_reuse", "").lower()
    speculative = labels["speculative"]
    drafts = {"true": True, "false": False}.get(speculative.get("spec_enabled", "").lower())
    k = count_of(speculative.get("spec_num_tokens")) if drafts is not False else 0
    blocks = gauge_of(page, "trtllm_kv_cache_max_blocks")
    size = gauge_of(page, "trtllm_kv_cache_tokens_per_block")
    return ServerFacts(
        version=await client.version(),
        model=(await names.card(client))["id"],
        k=Fact.read(COUNTERS.path, k),
        drafts=Fact.read(COUNTERS.path, drafts),
        kv_tokens=round(blocks * size) if blocks and size and blocks * size < inf else None,
        settings={name: value for group in labels.values() for name, value in group.items()},
        prefix_cache=Fact.read(COUNTERS.path, {"true": "on", "false": "off"}.get(reuses)),
    )


class _TrtllmChoice(Payload):
    avg_decoded_tokens_per_iter: Annotated[float, Field(ge=0)] | None = None


class _TrtllmEvent(Payload):
    choices: list[_TrtllmChoice] | None = None


@dataclass(kw_only=True, slots=True)
class _TrtllmStream(StreamedResponse):
    """Every event has the mean tokens per iteration so far, prefill included."""

    def add(self, event: Mapping[str, Any]) -> None:
        StreamedResponse.add(self, event)
        for choice in _TrtllmEvent.model_validate(event).choices or ():
            mean = choice.avg_decoded_tokens_per_iter
            self.metrics = {"avg_decoded_tokens_per_iter": mean} if mean else self.metrics


async def answer(client: "Client", model: str, request: Request) -> StreamedResponse:
    """Stream the response, without ids; the first event's usage counts its tokens."""
    body = {**request_fields(model, request), "top_k": request.sampling.top_k, **COUNTED_STREAM}
    return await ask_chat(client, request, body, _TrtllmStream())


def counts(answer: StreamedResponse, k: int) -> RequestCounts | None:
    """Counts from the mean, whose iterations are the rounds and one prefill. The number of draft
    tokens is not reported."""
    mean = (answer.metrics or {}).get("avg_decoded_tokens_per_iter")
    if not mean or not k or not answer.num_tokens:
        return None
    num_rounds = round(answer.num_tokens / mean) - 1
    num_accepted = answer.num_tokens - 1 - num_rounds
    return counts_of_sums(answer, num_accepted=num_accepted, num_drafted=None)


CONFIG_NAME = "speculative.yaml"

_OLDEST, _NEWEST = (1, 2), (1, 3)
_DEFAULT = "1.2"  # 1.3 is not released yet
_REVERSED = (1, 3)  # the release that reversed draft_len_schedule
_ONE_MODEL = ("eagle3", "mtp")  # drafter and target in one graph
_TYPES = {
    "draft_model": "Draft_Target",
    "eagle3": "Eagle3",
    "mtp": "MTP",
    "gemma4_mtp": "MTP",
    "ngram": "NGram",
    "dflash": "DFlash",
}
_SINCE = {"gemma4_mtp": (1, 3)}  # the first release with it: pull request 15833
_NEAREST = {
    "gemma4_mtp": "a later release (--engine-version 1.3)",
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
    """Export a deployment; from 1.3 on, a dynamic EAGLE-3 tree stays a tree."""
    release = read_release("TensorRT-LLM", version or _DEFAULT, oldest=_OLDEST, newest=_NEWEST)
    target = deployment.target
    command = ["trtllm-serve", model_name(target)]
    lost = server_notes(deployment, release, _NEWEST)
    if target.revision:
        lost.append(f"revision {target.revision} of the target: serve a folder with it")
    if target.trust_remote_code:
        command.append("--trust_remote_code")
    settings: dict[str, Any] = {"dtype": deployment.served_dtype} if deployment.served_dtype else {}
    # The first tier must have the deepest K, so others are served with one K.
    if not _has_schedule(deployment, release):
        deployment, tiers_lost = deployment.flat()
        lost += tiers_lost
    if deployment.k:
        settings |= _settings(deployment, release)
        lost += _lost(deployment, release)
        deployment = deployment.noting(vocabulary_notes(deployment))
    config, environment = None, _simulation(deployment, release)
    if settings:
        config = ConfigFile(config_name, yaml.safe_dump(settings, sort_keys=False))
        command += ["--config", config.name]
    return exported(
        deployment, "tensorrt_llm", dotted(release), command, lost, config, environment=environment
    )


def _simulation(deployment: Deployment, release: Release) -> dict[str, str]:
    """The variable that forces accepted draft tokens: _torch/speculative/interface.py. It does not
    count the bonus token, and 0 means off. Fractions came with pull request 13569, for drafters in
    the target's graph; other drafters would take a fraction for 0."""
    if deployment.simulated is None:
        return {}
    num = round(sum(deployment.simulated), 6)
    takes_fractions = release >= _REVERSED and deployment.method in _ONE_MODEL
    if not num or (num % 1 and not takes_fractions):
        raise UsageError(
            f"--simulate-acceptance: TensorRT-LLM {dotted(release)} cannot simulate "
            f"{num:g} accepted draft tokens per round for {deployment.method}: "
            + ("0 turns its simulation off" if not num else "only whole numbers, such as 2")
            + f"; fractions need --engine-version 1.3 and {' or '.join(_ONE_MODEL)}, or use vllm"
        )
    return {_FORCED_TOKENS: f"{num:g}"}


def _settings(deployment: Deployment, release: Release) -> dict[str, Any]:
    method = deployment.method
    names = {n: t for n, t in _TYPES.items() if release >= _SINCE.get(n, release)}
    name = deployment.named("tensorrt_llm", names, _NEAREST, head="an eagle3 head")
    config: dict[str, Any] = {"decoding_type": name, "max_draft_len": deployment.k}
    if deployment.drafter is not None:
        config["speculative_model"] = model_name(deployment.drafter)
    if method == "eagle3":
        config["eagle3_one_model"] = True
        if _grows_tree(deployment, release):
            config["use_dynamic_tree"] = True
            config["dynamic_tree_max_topK"] = deployment.setting("top_k")
            config["max_total_draft_tokens"] = deployment.setting("max_drafts")
    if method == "ngram":
        config["max_matching_ngram_size"] = deployment.setting("max_ngram")
        config["is_use_oldest"] = False  # specbench takes the newest match
    if deployment.is_tiered:
        is_by_last, ranges = release >= _REVERSED, deployment.ranges
        config["draft_len_schedule"] = {
            last if is_by_last else first: k for first, last, k in ranges if last is not None
        }
    if method in _ONE_MODEL and deployment.temperature > 0 and release < _REVERSED:
        config["allow_advanced_sampling"] = True  # without it these two sample greedily
    settings: dict[str, Any] = {"speculative_config": config}
    if method in ("ngram", "draft_model"):
        settings["disable_overlap_scheduler"] = True
    return settings


def _has_schedule(deployment: Deployment, release: Release) -> bool:
    is_deepest_first = deployment.tiers[0].num_speculative_tokens == deployment.k
    takes_schedule = deployment.method != "gemma4_mtp" and not _grows_tree(deployment, release)
    return deployment.is_tiered and is_deepest_first and takes_schedule


def _grows_tree(deployment: Deployment, release: Release) -> bool:
    """Whether TensorRT-LLM grows the same tree; other trees are exported as a chain."""
    return deployment.tree == "dynamic" and release >= _REVERSED


def adaptive(
    deployment: Deployment,  # noqa: ARG001
    version: str | None,  # noqa: ARG001
    program: Path | None,  # noqa: ARG001
) -> dict[str, tuple[str, ...]]:
    """None: K by batch size (draft_len_schedule) is no argument, but an entry of its config."""
    return {}


def _lost(deployment: Deployment, release: Release) -> list[str]:
    lost = [] if _grows_tree(deployment, release) else deployment.tree_lost
    if deployment.simulated is not None:
        lost.append("acceptance by position: TensorRT-LLM simulates only the mean length")
    if deployment.is_tiered:
        last = deployment.tiers[-1]
        k = 0 if release >= _REVERSED else last.num_speculative_tokens
        lost.append(
            f"above {last.num_rows} concurrent requests, not measured: TensorRT-LLM keeps K={k}"
        )
    if deployment.drafter is not None and deployment.drafter.revision:
        lost.append(f"revision {deployment.drafter.revision} of the drafter: name a folder with it")
    if deployment.method == "ngram" and deployment.setting("min_ngram") != 1:
        lost.append(f"min_ngram {deployment.setting('min_ngram')}: suffixes of one token match")
    if deployment.temperature > 0:
        lost.append(
            "the acceptance rule above temperature 0: no setting is known for it; compare "
            "acceptance there before you trust the speedup"
        )
    return lost
