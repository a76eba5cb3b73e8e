"""Leaves out prompts that exceed the target's context, at every K and before measuring."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf

from specbench.bench.plan import TargetPlan
from specbench.engines.engine import Engine, Tokenizer
from specbench.errors import ModelError, WorkloadError
from specbench.files.gguf import gguf_of
from specbench.files.model import open_model
from specbench.records import FailureRecord, Message, Prompt

_MOST_TEMPLATE_TOKENS = 1024  # the most that a chat template adds
TEMPLATE_TOKENS = 256  # an estimate of what it adds, if only the server can count

# The shortened plan, and a failure for each workload with left-out prompts.
Shortened = tuple[TargetPlan, tuple[FailureRecord, ...]]


def fitting(plan: TargetPlan, context: int | None = None) -> TargetPlan:
    """The plan without prompts that exceed the context, counted by tokenizer.json, and with notes
    on their number. `context`: of running servers. WorkloadError if no prompt fits; servers are
    sent all of them, since the tokens of their chat template are an estimate."""
    margin = TEMPLATE_TOKENS if plan.served else 0
    with suppress(ModelError):  # loading the model raises the error again
        spec = plan.target.model
        files = gguf_of(spec) if spec.is_gguf else open_model(spec)

        def count(prompt: Prompt) -> int:
            text = "".join(message.content for turn in prompt.turns for message in turn)
            return (files.num_tokens(text) or 0) + margin

        limit = min(files.longest_context or inf, context or inf)
        short, failures = _without(plan, limit, count)
        reasons = {failure.workload: failure.reason for failure in failures}
        noted = []
        for workload in short.workloads:
            reason, outcome = reasons.get(workload.name), "left out"
            if reason and workload in plan.workloads:
                if not plan.served:
                    raise WorkloadError(f"{workload.name}: no prompt fits: {reason}")
                outcome = "sent, though they may not fit"
            note = (f"{workload.name}: {outcome}: {reason}",) if reason else ()
            noted.append(replace(workload, notes=(*workload.notes, *note)))
        return replace(short, workloads=tuple(noted))
    return plan


def without_long_prompts(plan: TargetPlan, engine: Engine) -> Shortened:
    """The plan without prompts that exceed the context, counted with their chat template; a
    workload of only such prompts stays, and fails with the engine's error."""
    count = partial(_prompt_tokens, engine.tokenizer)
    short, failures = _without(plan, engine.context or inf, count)
    unchanged = {workload.name for workload in plan.workloads if workload in short.workloads}
    return short, tuple(f for f in failures if f.workload not in unchanged)


def _without(plan: TargetPlan, limit: float, count: Callable[[Prompt], int]) -> Shortened:
    """The plan without prompts above the limit, and a failure for each workload that has such
    prompts; a workload of only such prompts stays."""
    kept, failures = list(plan.workloads), []
    for i, workload in enumerate(plan.workloads):
        answer = plan.max_new_tokens(workload.name)
        long = {}
        for prompt in workload.prompts:
            num_bytes = sum(len(m.content.encode()) for turn in prompt.turns for m in turn)
            answers = answer * len(prompt.turns)
            # A token has at least one byte.
            if prompt.tools or num_bytes + _MOST_TEMPLATE_TOKENS + answers > limit:
                long[prompt.id] = count(prompt) + answers
        long = {prompt: tokens for prompt, tokens in long.items() if tokens > limit}
        rest = tuple(prompt for prompt in workload.prompts if prompt.id not in long)
        if rest:
            kept[i] = replace(workload, prompts=rest)
        if long:
            longest = max(long, key=lambda prompt: long[prompt])
            reason = (
                f"{len(long):,} of {len(workload.prompts):,} prompts: with answers of up to "
                f"{answer:,} tokens {longest!r} may take {long[longest]:,}, and the context "
                f"has {limit:,}; shorten them or choose a smaller --max-new-tokens"
            )
            failures.append(
                FailureRecord(
                    pairing=plan.target.name,
                    workload=workload.name,
                    stage="prompts",
                    reason=reason,
                    num_prompts=len(long),
                )
            )
    return replace(plan, workloads=tuple(kept)), tuple(failures)


def _prompt_tokens(tokenizer: Tokenizer, prompt: Prompt) -> int:
    """Tokens of all turns, with empty answers between them; the caller adds the answers."""
    messages = list(prompt.turns[0])
    for turn in prompt.turns[1:]:
        messages += [Message(role="assistant", content=""), *turn]
    try:
        return len(tokenizer.prompt_ids(messages, prompt.tools, prompt.template_args))
    except WorkloadError:  # decoding the prompt raises the error again
        return 0
