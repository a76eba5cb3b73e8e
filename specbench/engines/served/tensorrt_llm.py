"""TensorRT-LLM: `trtllm-serve MODEL --config FILE`. Written from its sources, never run.

Facts: tensorrt_llm/serve/ and tensorrt_llm/metrics/collector.py of 1.3. It refuses
requests with a field that it does not know.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any

import yaml
from pydantic import Field

from specbench.engines.served.asking import COUNTED_STREAM, asked, conversation
from specbench.engines.served.counting import of_sums
from specbench.engines.served.served_engine import Launch, ServerFacts, Start
from specbench.records import Request, RequestCounts
from specbench.servers.client import Client
from specbench.servers.metrics_page import count_of, gauge_of, labels_of
from specbench.servers.server_log import ARGUMENTS, LogFormat
from specbench.servers.streamed import Part, Streamed

MODULE = "tensorrt_llm"
HEALTH = "/health"
COUNTERS = "/prometheus/metrics"
LOG = LogFormat(
    prefix=re.compile(r"\[\d\d/\d\d/\d{4}-[\d:]+\] \[TRT-LLM\] \[(?P<level>[A-Z])\] "),
    known={r"^Error: (?:No such option|Invalid value)": ARGUMENTS},
)

_CONFIG = "tensorrt_llm.yaml"
# Its page has counters only with these.
_COUNTED = {"enable_iter_perf_stats": True, "return_perf_metrics": True}
_QUIET = {"TRTLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def launch(start: Start) -> Launch:
    """`exported` is `trtllm-serve MODEL ...`; what its config file lacks is said in a copy."""
    settings = yaml.safe_load(start.config.read_text(encoding="utf-8")) if start.config else {}
    reuse = {"kv_cache_config": {"enable_block_reuse": start.keeps_prefixes}}
    config = start.folder / _CONFIG
    config.write_text(yaml.safe_dump({**settings, **reuse, **_COUNTED}, sort_keys=False), "utf-8")
    command = list(start.exported)
    if "--config" in command:
        command[command.index("--config") + 1] = str(config)
    else:
        command += ["--config", str(config)]
    if start.python is not None:
        command[0] = str(start.python.with_name(command[0]))
    command += ["--host", start.host, "--port", str(start.port)]
    return Launch(command=(*command, *start.arguments), environment=_QUIET)


async def facts(client: Client) -> ServerFacts:
    """Its page names the configuration; room in the KV cache is told after the first request."""
    _, page = await client.counter_page(COUNTERS)
    kinds = ("model", "parallel", "speculative", "kv_cache")
    told = {k: (labels_of(page, f"trtllm_{k}_config_info") or [{}])[0] for k in kinds}
    reuses = told["kv_cache"].get("enable_block_reuse", "").lower()
    blocks = gauge_of(page, "trtllm_kv_cache_max_blocks")
    size = gauge_of(page, "trtllm_kv_cache_tokens_per_block")
    return ServerFacts(
        version=await client.version(),
        model=await client.model(),
        k=_k(told["speculative"]),
        kv_tokens=round(blocks * size) if blocks and size and blocks * size < inf else None,
        settings={name: value for labels in told.values() for name, value in labels.items()},
        prefix_cache={"true": "on", "false": "off"}.get(reuses, "unknown"),
    )


def _k(speculative: Mapping[str, str]) -> int | None:
    if speculative.get("spec_enabled", "").lower() == "false":
        return 0
    return count_of(speculative.get("spec_num_tokens"))


class _Choice(Part):
    avg_decoded_tokens_per_iter: Annotated[float, Field(ge=0)] | None = None


class _Event(Part):
    choices: list[_Choice] | None = None


@dataclass(kw_only=True, slots=True)
class _Answer(Streamed):
    """Every event says how many tokens an iteration has emitted so far, prefill's among them."""

    def add(self, event: Mapping[str, Any]) -> None:
        Streamed.add(self, event)
        for choice in _Event.model_validate(event).choices or ():
            mean = choice.avg_decoded_tokens_per_iter
            self.metrics = {"avg_decoded_tokens_per_iter": mean} if mean else self.metrics


async def answer(client: Client, model: str, request: Request) -> Streamed:
    """It gives no ids; the usage of each event says how many tokens came with the first."""
    body = {**asked(model, request), "top_k": request.sampling.top_k, **COUNTED_STREAM}
    return await client.chat(body, conversation(request), _Answer())


def counts(answer: Streamed, k: int) -> RequestCounts | None:
    """From its mean: iterations are rounds, and one prefill. Drafts are not told."""
    mean = (answer.metrics or {}).get("avg_decoded_tokens_per_iter")
    if not mean or not k or not answer.num_tokens:
        return None
    num_rounds = round(answer.num_tokens / mean) - 1
    num_accepted = answer.num_tokens - 1 - num_rounds
    return of_sums(answer, num_accepted=num_accepted, num_drafted=None)
