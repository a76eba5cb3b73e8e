"""Prompts that a target has no context for: left out at every K before anything is measured."""

from collections.abc import Iterator
from dataclasses import replace

from specbench.bench.plan import TargetPlan
from specbench.engines.engine import Engine, Tokenizer
from specbench.errors import ModelError, WorkloadError
from specbench.inputs.workloads import Workload
from specbench.model_files.model import ModelFiles, open_model
from specbench.records import FailureRecord, Message, Prompt

_TEMPLATE_TOKENS = 1024  # that a chat template adds, at most
SERVED_TEMPLATE_TOKENS = 256  # that it usually adds, if only the server can count them


def fitting(plan: TargetPlan, context: int | None = None) -> TargetPlan:
    """The plan without prompts that exceed the target's context, and notes that count them.

    Counted by tokenizer.json alone. `context`: what running servers have room for. A server's
    template counts as SERVED_TEMPLATE_TOKENS; for engines in this process `without_long_prompts`
    looks again. Nothing is left out if files are missing or no prompt would be left.
    """
    try:
        files = open_model(plan.target.model)
        limit = min((n for n in (files.longest_context, context) if n is not None), default=None)
        if limit is None:
            return plan
        margin = SERVED_TEMPLATE_TOKENS if plan.served else 0
        workloads = tuple(_fitting(plan, w, files, limit, margin) for w in plan.workloads)
    except ModelError:  # loading says it in its own words
        return plan
    return replace(plan, workloads=workloads)


def _fitting(
    plan: TargetPlan, workload: Workload, files: ModelFiles, limit: int, margin: int
) -> Workload:
    answer = plan.max_new_tokens(workload)
    suspects = [p for p in workload.prompts if _may_exceed(p, limit, answer)]
    texts = ["".join(m.content for turn in p.turns for m in turn) for p in suspects]
    counts = (files.num_tokens(texts) or []) if texts else []
    sizes = {
        prompt.id: num + answer * len(prompt.turns) + margin
        for prompt, num in zip(suspects, counts, strict=False)
    }
    long = {prompt: size for prompt, size in sizes.items() if size > limit}
    rest = tuple(prompt for prompt in workload.prompts if prompt.id not in long)
    if not long or not rest:
        return workload
    note = f"{workload.name}: left out: {_reason(workload, long, limit, answer)}"
    return replace(workload, prompts=rest, notes=(*workload.notes, note))


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
        if not _may_exceed(prompt, limit, answer):
            continue
        try:
            ids = tokenizer.prompt_ids(_conversation(prompt), prompt.tools, prompt.template_args)
        except WorkloadError:  # it is told where the prompt is asked
            continue
        tokens = len(ids) + answer * len(prompt.turns)
        if tokens > limit:
            yield prompt.id, tokens


def _may_exceed(prompt: Prompt, limit: int, answer: int) -> bool:
    """Whether its tokens have to be counted; a token is a byte or more."""
    num_bytes = sum(len(m.content.encode()) for turn in prompt.turns for m in turn)
    most = num_bytes + _TEMPLATE_TOKENS + answer * len(prompt.turns)
    return bool(prompt.tools) or most > limit


def _conversation(prompt: Prompt) -> list[Message]:
    """All turns; the answers between them are counted at their full length, and are empty here."""
    said = list(prompt.turns[0])
    for turn in prompt.turns[1:]:
        said += [Message(role="assistant", content=""), *turn]
    return said


def _failure(
    target: str, workload: Workload, long: dict[str, int], limit: int, answer: int
) -> FailureRecord:
    return FailureRecord(
        pairing=target,
        workload=workload.name,
        stage="prompts",
        reason=_reason(workload, long, limit, answer),
        num_prompts=len(long),
    )


def _reason(workload: Workload, long: dict[str, int], limit: int, answer: int) -> str:
    longest = max(long, key=lambda prompt: long[prompt])
    return (
        f"{len(long):,} of {len(workload.prompts):,} prompts: with answers of up to {answer:,} "
        f"tokens {longest!r} takes at least {long[longest]:,}, and the context has {limit:,}; "
        "shorten them or choose a smaller --max-new-tokens"
    )
