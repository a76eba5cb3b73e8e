"""SGLang: `python -m sglang.launch_server`. Written from its sources, never run with a real one.

Facts: srt/entrypoints/openai/ and srt/entrypoints/http_server.py of 0.5.23.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specbench.engines.served.asking import (
    COUNTED_STREAM,
    asked,
    conversation,
    own_prefix,
    plain_sampling,
)
from specbench.engines.served.counting import of_sums
from specbench.engines.served.served_engine import Launch, Question, ServerFacts, Start
from specbench.records import RequestCounts
from specbench.servers.client import Client, RefusedError
from specbench.servers.streamed import Streamed

HEALTH = "/health"
COUNTERS = "/metrics"

# Of /server_info, which holds all arguments, keys and passwords too.
_SETTINGS = (
    *("model_path", "dtype", "quantization", "kv_cache_dtype", "context_length", "random_seed"),
    *("tp_size", "dp_size", "pp_size", "mem_fraction_static", "max_running_requests"),
    *("attention_backend", "chunked_prefill_size", "disable_radix_cache"),
    *("speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps"),
    *("speculative_eagle_topk", "speculative_num_draft_tokens", "speculative_adaptive"),
    *("speculative_accept_threshold_single", "speculative_accept_threshold_acc"),
    "speculative_use_rejection_sampling",
)


def launch(start: Start) -> Launch:
    """`exported` is `python -m sglang.launch_server ...`."""
    command = [str(start.python) if start.python else start.exported[0], *start.exported[1:]]
    command += ["--host", start.host, "--port", str(start.port), "--random-seed", str(start.seed)]
    # With speculation it would take fewer requests at once than without.
    command += ["--max-running-requests", str(start.most_at_once), "--enable-metrics"]
    command += [] if start.keeps_prefixes else ["--disable-radix-cache"]
    program = ("python", "-m", "sglang.launch_server")
    return Launch(command=(*command, *start.arguments), num_program=len(program))


async def facts(client: Client) -> ServerFacts:
    """Its own arguments, as they were resolved."""
    root = client.address.root
    try:
        info = await client.json(f"{root}/server_info")
    except RefusedError:  # older releases
        info = await client.json(f"{root}/get_server_info")
    prefix_cache = {True: "off", False: "on"}.get(info.get("disable_radix_cache", ""), "unknown")
    room = info.get("max_total_num_tokens")
    return ServerFacts(
        version=str(info.get("version", "")),
        model=await client.model(),
        k=_k(info) if info.get("speculative_algorithm") else 0,
        kv_tokens=room * (info.get("dp_size") or 1) if room else None,
        settings={name: str(info[name]) for name in _SETTINGS if info.get(name) is not None},
        prefix_cache=prefix_cache,
    )


def _k(info: Mapping[str, Any]) -> int | None:
    """The depth; drafters without steps of their own have a token for each, and the root."""
    steps, tokens = info.get("speculative_num_steps"), info.get("speculative_num_draft_tokens")
    has_steps = info["speculative_algorithm"] not in ("NGRAM", "DFLASH")
    return steps if has_steps and steps else (tokens - 1 if tokens else None)


@dataclass(kw_only=True, slots=True)
class _Answer(Streamed):
    """Ids and counts come after the text, in an extension of the API."""

    def add(self, event: Mapping[str, Any]) -> None:
        extension = event.get("sglext") or {}
        Streamed.add(self, {**event, "metrics": extension.get("spec_tokens_details")})
        for ids in extension.get("output_ids") or ():  # of each choice, and there is one
            self.token_ids = array("i", ids)


async def answer(client: Client, model: str, question: Question) -> Streamed:
    """With ids and counts; the usage of each event says how many tokens came with the first."""
    body = {**asked(model, question), **plain_sampling(question), **own_prefix(question)}
    told = {"return_spec_tokens_details": True, "return_output_ids_in_sglext": True}
    return await client.chat({**body, **told, **COUNTED_STREAM}, conversation(question), _Answer())


def counts(answer: Streamed, k: int) -> RequestCounts | None:
    """Every round drafts; of a tree, `num_drafted` counts the nodes."""
    told = answer.metrics
    if not told or not k:
        return None
    return of_sums(
        answer,
        num_accepted=told["spec_num_correct_drafts"],
        num_drafted=told["spec_num_proposed_drafts"],
        num_drafting=told["spec_verify_ct"],
    )
