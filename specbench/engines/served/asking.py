"""A request in the words of the OpenAI-compatible API."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from specbench.records import Request

# For engines that stream no ids: every event then says how many tokens have come so far.
COUNTED_STREAM = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


def asked(model: str, request: Request) -> dict[str, Any]:
    """All but the conversation and the top-k, whose value for "off" differs by engine."""
    return {
        "model": model,
        "max_tokens": request.max_new_tokens,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "seed": request.seed,
    }


def conversation(request: Request) -> dict[str, Any]:
    """What a chat template makes a prompt of."""
    messages = [{"role": m.role, "content": m.content, **m.extra} for m in request.messages]
    found: dict[str, Any] = {"messages": messages}
    if request.tools:
        found["tools"] = [dict(tool) for tool in request.tools]
    if request.template_args:
        found["chat_template_kwargs"] = dict(request.template_args)
    return found


def plain_sampling(request: Request) -> dict[str, Any]:
    """For servers that otherwise take these from the model's generation_config.json."""
    return {"top_k": request.sampling.top_k or -1, "min_p": 0.0, "repetition_penalty": 1.0}


def own_prefix(request: Request) -> Mapping[str, str]:
    """Salt that no other request has, so that a prefix cache finds nothing for this one."""
    return {} if request.keeps_prefixes else {"cache_salt": uuid4().hex}
