"""Prompts that a target has no context for: left out at every K before anything is measured."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from specbench.bench.plan import TargetPlan
from specbench.engines.engine import Engine, Tokenizer
from specbench.errors import ModelError, WorkloadError
from specbench.model_files.model import ModelFiles, open_model
from specbench.records import FailureRecord, Message, Prompt

_TEMPLATE_TOKENS = 1024  # that a chat template adds, at most
SERVED_TEMPLATE_TOKENS = 256  # that it usually adds, if only the server can count them


def fitting(plan: TargetPlan, context: int | None = None) -> TargetPlan:
    """The plan without prompts that exceed the target's context, and notes that count them.

    Counted by tokenizer.json alone. `context`: what running servers have room for. A server's
    template counts as SERVED_TEMPLATE_TOKENS; for engines in this process `without_long_prompts`
    looks again. Nothing is left out if files are missing.
    """
    margin = SERVED_TEMPLATE_TOKENS if plan.served else 0
    with suppress(ModelError):  # loading says it in its own words
        files = open_model(plan.target.model)
        limit = min((n for n in (files.longest_context, context) if n is not None), default=None)
        if limit is None:
            return plan
        short, reasons = _without(
            plan, limit, lambda prompt: _content_tokens(files, prompt) + margin
        )
        noted = (
            replace(w, notes=(*w.notes, f"{w.name}: left out: {reasons[w.name]}"))
            if w.name in reasons
            else w
            for w in short.workloads
        )
        return replace(short, workloads=tuple(noted))
    return plan


def without_long_prompts(
    plan: TargetPlan, engine: Engine
) -> tuple[TargetPlan, tuple[FailureRecord, ...]]:
    """The plan without prompts that exceed the context with their template, and a failure for each
    workload that has some: one of them would make all cells of the workload invalid."""
    if engine.context is None:
        return plan, ()
    short, reasons = _without(plan, engine.context, lambda p: _prompt_tokens(engine.tokenizer, p))
    failures = (
        FailureRecord(
            pairing=plan.target.name,
            workload=before.name,
            stage="prompts",
            reason=reasons[before.name],
            num_prompts=len(before.prompts) - len(after.prompts),
        )
        for before, after in zip(plan.workloads, short.workloads, strict=True)
        if before.name in reasons
    )
    return short, tuple(failures)


def _without(
    plan: TargetPlan, limit: int, count: Callable[[Prompt], int]
) -> tuple[TargetPlan, dict[str, str]]:
    """The plan without what is too long, and a reason for each workload that has lost prompts.

    A workload that has no other prompts stays as it is, and fails in the engine's own words.
    """
    kept, reasons = list(plan.workloads), {}
    for i, workload in enumerate(plan.workloads):
        answer = plan.max_new_tokens(workload)
        long = {}
        for prompt in workload.prompts:
            num_bytes = sum(len(m.content.encode()) for turn in prompt.turns for m in turn)
            answers = answer * len(prompt.turns)
            # A token is a byte or more.
            if prompt.tools or num_bytes + _TEMPLATE_TOKENS + answers > limit:
                long[prompt.id] = count(prompt) + answers
        long = {prompt: tokens for prompt, tokens in long.items() if tokens > limit}
        rest = tuple(prompt for prompt in workload.prompts if prompt.id not in long)
        if long and rest:
            longest = max(long, key=lambda prompt: long[prompt])
            kept[i] = replace(workload, prompts=rest)
            reasons[workload.name] = (
                f"{len(long):,} of {len(workload.prompts):,} prompts: with answers of up to "
                f"{answer:,} tokens {longest!r} takes at least {long[longest]:,}, and the context "
                f"has {limit:,}; shorten them or choose a smaller --max-new-tokens"
            )
    return replace(plan, workloads=tuple(kept)), reasons


def _content_tokens(files: ModelFiles, prompt: Prompt) -> int:
    """The tokens of all messages, without those of a template; 0 if they cannot be counted."""
    text = "".join(message.content for turn in prompt.turns for message in turn)
    return files.num_tokens(text) or 0


def _prompt_tokens(tokenizer: Tokenizer, prompt: Prompt) -> int:
    """All turns; the answers between them are counted at their full length, and are empty here."""
    said = list(prompt.turns[0])
    for turn in prompt.turns[1:]:
        said += [Message(role="assistant", content=""), *turn]
    try:
        return len(tokenizer.prompt_ids(said, prompt.tools, prompt.template_args))
    except WorkloadError:  # it is told where the prompt is asked
        return 0
