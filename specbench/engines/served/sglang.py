"""SGLang: `python -m sglang.launch_server`. Written from its sources, never run with a real one.

Facts: srt/entrypoints/openai/ and srt/entrypoints/http_server.py of 0.5.23.
"""

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict

from specbench.engines.served.asking import (
    COUNTED_STREAM,
    asked,
    conversation,
    own_prefix,
    plain_sampling,
)
from specbench.engines.served.counting import of_sums, read_counts
from specbench.engines.served.served_engine import Launch, ServerFacts, Start
from specbench.export.engines.sglang import depth
from specbench.records import Request, RequestCounts
from specbench.servers.client import Client, RefusedError
from specbench.servers.server_log import ARGPARSE, ARGUMENTS, DOWNLOAD, LogFormat
from specbench.servers.streamed import Count, Part, Streamed, TokenId

MODULE = "sglang"
HEALTH = "/health"
COUNTERS = "/metrics"
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


class _Info(Part):
    """What follows from these, besides what is only written down."""

    model_config = ConfigDict(extra="allow")

    disable_radix_cache: bool | None = None
    max_total_num_tokens: Count | None = None
    dp_size: Count | None = None
    speculative_algorithm: str | None = None
    speculative_num_steps: Count | None = None
    speculative_num_draft_tokens: Count | None = None


async def facts(client: Client) -> ServerFacts:
    """Its own arguments, as they were resolved."""
    root = client.address.root
    try:
        info = await client.told(f"{root}/server_info", _Info)
    except RefusedError:  # older releases
        info = await client.told(f"{root}/get_server_info", _Info)
    prefix_cache = {True: "off", False: "on", None: "unknown"}[info.disable_radix_cache]
    room = info.max_total_num_tokens
    told = info.model_dump()
    return ServerFacts(
        version=str(told.get("version", "")),
        model=await client.model(),
        k=depth(
            info.speculative_algorithm,
            info.speculative_num_steps,
            info.speculative_num_draft_tokens,
        ),
        kv_tokens=room * (info.dp_size or 1) if room else None,
        settings={name: str(told[name]) for name in _SETTINGS if told.get(name) is not None},
        prefix_cache=prefix_cache,
    )


class _Extension(Part):
    spec_tokens_details: dict[str, Any] | None = None
    output_ids: list[list[TokenId]] | None = None


_NOTHING = _Extension()


class _Event(Part):
    sglext: _Extension | None = None


class _Counts(Part):
    spec_num_correct_drafts: Count
    spec_num_proposed_drafts: Count
    spec_verify_ct: Count


@dataclass(kw_only=True, slots=True)
class _Answer(Streamed):
    """Ids and counts come after the text, in an extension of the API."""

    def add(self, event: Mapping[str, Any]) -> None:
        told = _Event.model_validate(event).sglext or _NOTHING
        Streamed.add(self, {**event, "metrics": told.spec_tokens_details})
        for ids in told.output_ids or ():  # of each choice, and there is one
            self.token_ids = array("i", ids)


async def answer(client: Client, model: str, request: Request) -> Streamed:
    """With ids and counts; the usage of each event says how many tokens came with the first."""
    body = {**asked(model, request), **plain_sampling(request), **own_prefix(request)}
    told = {"return_spec_tokens_details": True, "return_output_ids_in_sglext": True}
    return await client.chat({**body, **told, **COUNTED_STREAM}, conversation(request), _Answer())


def counts(answer: Streamed, k: int) -> RequestCounts | None:
    """Every round drafts; of a tree, `num_drafted` counts the nodes."""
    if not answer.metrics or not k:
        return None
    told = read_counts(_Counts, answer.metrics)
    return of_sums(
        answer,
        num_accepted=told.spec_num_correct_drafts,
        num_drafted=told.spec_num_proposed_drafts,
        num_drafting=told.spec_verify_ct,
    )
