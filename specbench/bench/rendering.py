"""Prompts as the target's tokenizer and chat template make them, before anything is measured.

A run of engines in this process renders them here. A plan does so in a process of its own, since
tokenizers import torch, unless this process has it.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from math import inf
from threading import current_thread, main_thread
from time import perf_counter
from typing import Any, NamedTuple

from specbench.engines.engine import Tokenizer
from specbench.errors import ModelError, WorkloadError, first_line
from specbench.files.model import open_model
from specbench.files.model_spec import ModelSpec
from specbench.own_process import answer_stream, child_environment
from specbench.records import Message, Prompt

MOST_S = 120.0  # of rendering in the process
START_S = 60.0  # of its start at most


class Candidates(NamedTuple):
    """Prompts in the order of their use, until `wanted` of them fit the context: `most` tokens with
    answers of `answer` tokens."""

    prompts: tuple[Prompt, ...]
    wanted: int
    most: float
    answer: int


# By prompt id its tokens, or why the chat template refuses it.
Rendered = Mapping[str, int | str]
# Renders the prompts of workloads, by name, as a model does. A workload is missing if none of its
# prompts was rendered: no tokenizer, no time, or no prompt that the template may refuse.
Render = Callable[[ModelSpec, Mapping[str, Candidates]], Mapping[str, Rendered]]


def prompt_tokens(
    tokenizer: Tokenizer,
    turns: Sequence[Sequence[Message]],
    tools: Sequence[Mapping[str, Any]],
    template_args: Mapping[str, Any],
) -> int:
    """Tokens of all turns, with empty answers between them; WorkloadError if the chat template
    refuses them."""
    messages: list[Message] = []
    for turn in turns:
        if messages and turn[0].role != "assistant":
            messages.append(Message(role="assistant", content=""))
        messages += turn
    return len(tokenizer.prompt_ids(messages, tools, template_args))


def rendered(
    tokenizer: Tokenizer, candidates: Candidates, until: float = inf
) -> dict[str, int | str]:
    """Tokens by prompt id, or why the template refuses the prompt, until enough prompts fit or
    `perf_counter` reaches `until`."""
    results: dict[str, int | str] = {}
    wanted = candidates.wanted
    for prompt in candidates.prompts:
        if wanted == 0 or perf_counter() > until:
            break
        try:
            tokens = prompt_tokens(tokenizer, prompt.turns, prompt.tools, prompt.template_args)
        except WorkloadError as error:
            results[prompt.id] = first_line(error)
        else:
            results[prompt.id] = tokens
            wanted -= tokens + candidates.answer * len(prompt.turns) <= candidates.most
    return results


def rendered_here(
    spec: ModelSpec, workloads: Mapping[str, Candidates], most_s: float = inf
) -> Mapping[str, Rendered]:
    """A `Render` in this process, of all prompts, or of those that `most_s` seconds suffice for."""
    from specbench.models.tokenizer import ChatTokenizer  # noqa: PLC0415 - imports torch

    try:
        tokenizer = ChatTokenizer(
            spec.tokenizer_location,
            revision=spec.revision,
            trust_remote_code=spec.trust_remote_code,
        )
    except ModelError:
        return {}
    until = perf_counter() + most_s
    return {name: rendered(tokenizer, candidates, until) for name, candidates in workloads.items()}


def rendered_for_plan(
    spec: ModelSpec, workloads: Mapping[str, Candidates]
) -> Mapping[str, Rendered]:
    """A `Render` of workloads with prompts that the template may refuse, in a process of its own
    unless this one has torch."""
    try:
        raises = "raise_exception" in (open_model(spec).chat_template or "")
    except ModelError:
        return {}
    doubtful = {
        name: candidates
        for name, candidates in workloads.items()
        if raises or any(map(_has_more_than_text, candidates.prompts))
    }
    if not doubtful:
        return {}
    # ChatTokenizer limits a template's work in the main thread only, and may download a hub model.
    is_local = spec.folder is not None and not spec.is_shape
    if "torch" in sys.modules and current_thread() is main_thread() and is_local:
        return rendered_here(spec, doubtful, MOST_S)
    work = {
        name: [[_fields(p) for p in candidates.prompts], *candidates[1:]]
        for name, candidates in doubtful.items()
    }
    model = [spec.tokenizer_location, spec.revision, spec.trust_remote_code]
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps({"model": model, "workloads": work}),
            capture_output=True,
            text=True,
            check=True,
            timeout=START_S + MOST_S,
            env=child_environment() | {"HF_HUB_OFFLINE": "1"},
        )
        results: dict[str, dict[str, int | str]] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
    return results


def _has_more_than_text(prompt: Prompt) -> bool:
    """Whether a template reads fields of the prompt that not every prompt has."""
    messages = (message for turn in prompt.turns for message in turn)
    return bool(prompt.tools) or any(message.extra for message in messages)


def _fields(prompt: Prompt) -> dict[str, Any]:
    return {
        "id": prompt.id,
        "turns": [[[m.role, m.content, dict(m.extra)] for m in turn] for turn in prompt.turns],
        "tools": [dict(tool) for tool in prompt.tools],
        "template_args": dict(prompt.template_args),
    }


def _prompt(known: Mapping[str, Any]) -> Prompt:
    return Prompt(
        id=known["id"],
        turns=tuple(
            tuple(Message(role=role, content=text, extra=extra) for role, text, extra in turn)
            for turn in known["turns"]
        ),
        tools=tuple(known["tools"]),
        template_args=known["template_args"],
    )


def _main() -> None:
    answers = answer_stream()
    work = json.load(sys.stdin)
    location, revision, trusts = work["model"]
    spec = ModelSpec(source=location, revision=revision, trust_remote_code=trusts)
    workloads = {
        name: Candidates(tuple(map(_prompt, prompts)), *rest)
        for name, (prompts, *rest) in work["workloads"].items()
    }
    print(json.dumps(rendered_here(spec, workloads, MOST_S)), file=answers, flush=True)


if __name__ == "__main__":
    _main()
