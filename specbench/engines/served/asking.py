"""A question in the words of the OpenAI-compatible API."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from specbench.engines.served.served_engine import Question

# For engines that stream no ids: every event then says how many tokens have come so far.
COUNTED_STREAM = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


def asked(model: str, question: Question) -> dict[str, Any]:
    """All but the conversation and the top-k, whose value for "off" differs by engine."""
    return {
        "model": model,
        "max_tokens": question.max_tokens,
        "temperature": question.sampling.temperature,
        "top_p": question.sampling.top_p,
        "seed": question.seed,
    }


def conversation(question: Question) -> dict[str, Any]:
    """What a chat template makes a prompt of."""
    messages = [{"role": m.role, "content": m.content, **m.extra} for m in question.messages]
    found: dict[str, Any] = {"messages": messages}
    if question.tools:
        found["tools"] = [dict(tool) for tool in question.tools]
    if question.template_args:
        found["chat_template_kwargs"] = dict(question.template_args)
    return found


def plain_sampling(question: Question) -> dict[str, Any]:
    """For servers that otherwise take these from the model's generation_config.json."""
    return {"top_k": question.sampling.top_k or -1, "min_p": 0.0, "repetition_penalty": 1.0}


def own_prefix(question: Question) -> Mapping[str, str]:
    """Salt that no other request has, so that a prefix cache finds nothing for this one."""
    return {} if question.keeps_prefixes else {"cache_salt": uuid4().hex}
