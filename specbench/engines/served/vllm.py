"""vLLM: `vllm serve`, or its module with the Python of its environment.

Facts: vllm/entrypoints/ and vllm/v1/metrics/ of 0.32. Counts per request came with 0.29.
"""

import re

from specbench.engines.served.asking import asked, conversation, own_prefix, plain_sampling
from specbench.engines.served.counting import Round, of_rounds, of_sums, read_counts
from specbench.engines.served.served_engine import Launch, ServerFacts, Start
from specbench.export.engines.vllm import SPECULATION
from specbench.records import Request, RequestCounts
from specbench.servers.client import Client
from specbench.servers.metrics_page import count_of, labels_of
from specbench.servers.server_log import ARGPARSE, ARGUMENTS, DOWNLOAD, MEMORY, LogFormat
from specbench.servers.streamed import Count, Part, Streamed

MODULE = "vllm"
HEALTH = "/health"
COUNTERS = "/metrics"
LOG = LogFormat(
    prefix=re.compile(
        r"(?:\((?P<process>.*?) pid=\d+\) ?)?"
        r"(?:(?P<level>[A-Z]+) \d\d-\d\d (?:[\d:]+ )?(?:\[[^]]+\] ?)?)?"
    ),
    known={
        ARGPARSE: ARGUMENTS,
        r"is less than desired \w+ memory utilization": (
            "end what else takes memory, or take a smaller share of it: --engine-args "
            "'--gpu-memory-utilization 0.5'"
        ),
        r"no available memory for the cache|larger than the available KV cache memory": (
            "take a larger share of memory or a shorter context: --engine-args "
            "'--gpu-memory-utilization 0.95 --max-model-len 4096'"
        ),
        r"is greater than the derived max_model_len": (
            "leave --max-model-len out of --engine-args, or take at most the model's own length"
        ),
        r"cannot find any model weights": DOWNLOAD,
        r"died unexpectedly \(exit code: -9\)": MEMORY,
    },
)

_DEFAULT_AT_ONCE = 128  # concurrent requests that it takes unasked, on any device
_SETTINGS = ("block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization")
_QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def launch(start: Start) -> Launch:
    """`exported` is `vllm serve MODEL ...`."""
    command, num_program = list(start.exported), len(("vllm", "serve"))
    if start.python is not None:
        # Not every build has the command; its module says at each start that it is deprecated.
        module = ["-W", "ignore::DeprecationWarning", "-m", "vllm.entrypoints.openai.api_server"]
        command = [str(start.python), *module, "--model", *command[num_program:]]
        num_program = len((start.python, *module))
    command += ["--host", start.host, "--port", str(start.port), "--seed", str(start.seed)]
    command += [f"--{'' if start.keeps_prefixes else 'no-'}enable-prefix-caching"]
    if start.most_at_once > _DEFAULT_AT_ONCE:
        command += ["--max-num-seqs", str(start.most_at_once)]
    if SPECULATION in command:  # the flag is refused without it
        command += ["--per-request-spec-decode-metrics", "detailed"]
    command += start.arguments
    return Launch(command=tuple(command), num_program=num_program, environment=_QUIET)


async def facts(client: Client) -> ServerFacts:
    """It tells K by its counters: there is one per drafted position."""
    card = await client.model_card()
    counters, page = await client.counter_page(COUNTERS)
    caches = labels_of(page, "vllm:cache_config_info")  # one of each data-parallel rank
    cache = caches[0] if caches else {}
    settings = {name: cache[name] for name in _SETTINGS if name in cache}
    reuses = cache.get("enable_prefix_caching", "")
    return ServerFacts(
        version=await client.version(),
        model=str(card["id"]),
        k=(counters.num_positions or 0) if counters.engine else None,
        kv_tokens=sum(map(_kv_tokens, caches)) or None,
        settings={**settings, "max_model_len": str(card.get("max_model_len"))},
        prefix_cache={"True": "on", "False": "off"}.get(reuses, "unknown"),
    )


def _kv_tokens(cache: dict[str, str]) -> int:
    """Older releases tell blocks alone."""
    size = count_of(cache.get("kv_cache_size_tokens"))
    if size is not None:
        return size
    blocks, tokens = count_of(cache.get("num_gpu_blocks")), count_of(cache.get("block_size"))
    return (blocks or 0) * (tokens or 0)


async def answer(client: Client, model: str, request: Request) -> Streamed:
    """With token ids; a salt keeps a running server's prefix cache out of it."""
    body = {**asked(model, request), **plain_sampling(request), **own_prefix(request)}
    return await client.chat({**body, "return_token_ids": True}, conversation(request))


class _Counts(Part):
    """Of all rounds that drafted, and of each."""

    num_spec_steps: Count
    num_accepted_draft_tokens: Count
    num_draft_tokens: Count
    per_step_drafted: list[Count] | None = None
    per_step_accepted: list[Count] | None = None


def counts(answer: Streamed, k: int) -> RequestCounts | None:
    """A server that was started with "detailed" tells round by round, with "summary" in sums."""
    said = (answer.metrics or {}).get("speculative_decoding")
    if not said or not k:
        return None
    told = read_counts(_Counts, said)
    drafted, accepted = told.per_step_drafted or [], told.per_step_accepted or []
    if len(accepted) < told.num_spec_steps or len(drafted) != len(accepted):
        return of_sums(
            answer,
            num_accepted=told.num_accepted_draft_tokens,
            num_drafted=told.num_draft_tokens,
            num_drafting=told.num_spec_steps,
        )
    return of_rounds(answer, [Round(*step) for step in zip(drafted, accepted, strict=True)], k)
