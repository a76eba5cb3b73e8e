"""Prompts as the target's tokenizer and chat template make them, before anything is measured.

A run renders them with the tokenizer that it has loaded, and a plan in a process of its own, since
tokenizers import torch.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specbench.engines.engine import Tokenizer
from specbench.errors import WorkloadError, first_line
from specbench.files.model_spec import ModelSpec
from specbench.records import Message, Prompt

MOST_S = 120.0  # for the process


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


def rendered(tokenizer: Tokenizer, prompts: Iterable[Prompt], wanted: int) -> dict[str, int | str]:
    """Tokens by prompt id, or why the template refuses the prompt, until `wanted` prompts are
    rendered."""
    results: dict[str, int | str] = {}
    for prompt in prompts:
        if wanted == 0:
            break
        try:
            results[prompt.id] = prompt_tokens(
                tokenizer, prompt.turns, prompt.tools, prompt.template_args
            )
            wanted -= 1
        except WorkloadError as error:
            results[prompt.id] = first_line(error)
    return results


def rendered_elsewhere(
    spec: ModelSpec, workloads: Mapping[str, tuple[Iterable[Prompt], int]]
) -> dict[str, dict[str, int | str]]:
    """The same by workload, with the tokenizer of a model in one process of its own; empty if it
    fails, since loading then tells why."""
    work = {
        "model": [spec.tokenizer_location, spec.revision, spec.trust_remote_code],
        "workloads": {
            name: [[_fields(prompt) for prompt in prompts], wanted]
            for name, (prompts, wanted) in workloads.items()
        },
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps(work),
            capture_output=True,
            text=True,
            check=True,
            timeout=MOST_S,
        )
        results: dict[str, dict[str, int | str]] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
    return results


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
    from specbench.models.tokenizer import ChatTokenizer  # noqa: PLC0415 - imports torch

    work = json.load(sys.stdin)
    location, revision, trusts = work["model"]
    tokenizer = ChatTokenizer(location, revision=revision, trust_remote_code=trusts)
    found = {
        name: rendered(tokenizer, map(_prompt, prompts), wanted)
        for name, (prompts, wanted) in work["workloads"].items()
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    _main()
