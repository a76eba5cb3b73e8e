"""Prompts that a target has no context for: left out before anything is measured."""

from collections.abc import Iterator
from dataclasses import replace

from specbench.bench.plan import TargetPlan
from specbench.engines.engine import Engine, Tokenizer
from specbench.errors import WorkloadError
from specbench.inputs.workloads import Workload
from specbench.records import FailureRecord, Message, Prompt

_TEMPLATE_TOKENS = 1024  # that a chat template adds, at most


def without_long_prompts(
    plan: TargetPlan, engine: Engine
) -> tuple[TargetPlan, tuple[FailureRecord, ...]]:
    """The plan without prompts that exceed the target's context, and a failure per workload.

    One of them would make every cell of its workload invalid. A workload that has no other
    prompts stays as it is, and fails in the engine's own words.
    """
    limit = engine.context
    if limit is None:
        return plan, ()
    kept: list[Workload] = []
    failures: list[FailureRecord] = []
    for workload in plan.workloads:
        answer = plan.max_new_tokens(workload)
        long = dict(_long(workload, engine.tokenizer, limit, answer))
        rest = tuple(prompt for prompt in workload.prompts if prompt.id not in long)
        if long and rest:
            failures.append(_failure(plan.target.name, workload, long, limit, answer))
        kept.append(replace(workload, prompts=rest) if rest else workload)
    return replace(plan, workloads=tuple(kept)), tuple(failures)


def _long(
    workload: Workload, tokenizer: Tokenizer, limit: int, answer: int
) -> Iterator[tuple[str, int]]:
    """Ids of prompts that take more than `limit` tokens, and how many they take."""
    for prompt in workload.prompts:
        answers = answer * len(prompt.turns)
        num_bytes = sum(len(m.content.encode()) for turn in prompt.turns for m in turn)
        # A token is a byte or more.
        if not prompt.tools and num_bytes + _TEMPLATE_TOKENS + answers <= limit:
            continue
        try:
            ids = tokenizer.prompt_ids(_conversation(prompt), prompt.tools, prompt.template_args)
        except WorkloadError:  # it is told where the prompt is asked
            continue
        if len(ids) + answers > limit:
            yield prompt.id, len(ids) + answers


def _conversation(prompt: Prompt) -> list[Message]:
    """All turns; the answers between them are counted at their full length, and are empty here."""
    said = list(prompt.turns[0])
    for turn in prompt.turns[1:]:
        said += [Message(role="assistant", content=""), *turn]
    return said


def _failure(
    target: str, workload: Workload, long: dict[str, int], limit: int, answer: int
) -> FailureRecord:
    longest = max(long, key=lambda prompt: long[prompt])
    return FailureRecord(
        pairing=target,
        workload=workload.name,
        stage="prompts",
        reason=f"{len(long):,} of {len(workload.prompts):,} prompts: with answers of up to "
        f"{answer:,} tokens {longest!r} takes {long[longest]:,}, and the target's context has "
        f"{limit:,}; shorten them or choose a smaller --max-new-tokens",
        num_prompts=len(long),
    )
