"""Makes the plans of a run, with the deepest K of each drafter, from files. No torch.

Prompts that exceed the target's context are left out, at every K and before measuring.

UsageError if no engine can measure the pairings.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from specbench.bench.plan import TEMPLATE_TOKENS, TargetPlan, peers_of
from specbench.bench.served.deployments import unsupported_pairings
from specbench.engines.engine import Engine, Tokenizer
from specbench.engines.served_engine import unsupported_setting
from specbench.errors import ModelError, UsageError, WorkloadError
from specbench.files.gguf import gguf_of
from specbench.files.head_files import HeadFiles
from specbench.files.model import num_rows, open_model
from specbench.files.model_spec import ModelSpec
from specbench.fit.compatibility import check_drafter, generation_findings
from specbench.inputs.lengthening import fewest_tokens
from specbench.inputs.pairing import Pairing, Target
from specbench.inputs.workloads import load_workloads
from specbench.methods import find_method
from specbench.records import FailureRecord, Kind, Message, Prompt, Reason
from specbench.records.requests import TEMPLATE_SETTINGS, THINKING_ARGS
from specbench.settings import BUILTIN, SERVED, TRANSFORMERS, RunSettings

if TYPE_CHECKING:
    from specbench.bench.served.running import RunningServer

ReadHead = Callable[[ModelSpec], HeadFiles[Any]]  # config and shapes of a head; ModelError

CHARACTERS_PER_TOKEN = 3  # fewer than most texts have, so that prompts are overestimated
_TOOL_FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser")  # of vLLM, for any tool call
IGNORING = "--ignore-request-settings"
SERVED_KS = (0, 1, 3, 5)  # the default range if every K costs a start of a server


def headers_on_this_machine(spec: ModelSpec) -> HeadFiles[Any]:
    """A head's config, and the shapes of its tensors; nothing is downloaded. ModelError."""
    files = open_model(spec)
    try:
        return files.head
    except ModelError:  # the config may be enough
        return HeadFiles(source=spec.source, config=files.config, tensors={})


def requested_dtype(settings: RunSettings, target: Target) -> str:
    """The dtype of the settings, or else that of pairings.yaml."""
    return settings.machine.dtype or target.model.dtype


def plan_targets(
    settings: RunSettings,
    pairings: Sequence[Pairing],
    dtype_of: Callable[[Target], str],
    read_head: ReadHead = headers_on_this_machine,
    running: Sequence["RunningServer"] = (),
) -> tuple[TargetPlan, ...]:
    """One plan per target, in the order of the pairings.

    `running`: servers that run already; () if servers are started. Prompts that do not fit are left
    out. Raises WorkloadError, and UsageError for two workloads of one name, engines that cannot
    draft with the pairings, and a K at which no server runs.
    """
    running_ks = tuple(dict.fromkeys(server.address.k or 0 for server in running)) or None
    context = min(filter(None, (server.facts.context for server in running)), default=None)
    by_target: dict[str, list[Pairing]] = {}
    for pairing in pairings:
        by_target.setdefault(pairing.target.name, []).append(pairing)
    load = settings.load
    if load.engines == (TRANSFORMERS,) and 1 not in load.concurrency:
        raise UsageError(
            f"--engine {', '.join(load.engines)} decodes one request at a time; "
            "use --concurrency 1, or add the engine builtin"
        )
    if settings.draft.is_default_range and set(load.engines) & set(SERVED):
        few = replace(settings.draft, num_speculative_tokens=SERVED_KS)
        settings = replace(settings, draft=few)
    _check_lossy(settings, pairings)
    _check_peers(settings, pairings)
    if running_ks is not None:
        _check_running(settings, pairings, running_ks)
    refused = _refused(settings, pairings) if running_ks is None else {}
    dummy = settings.decoder.dummy_weights or any_shape(pairings)
    plans = [
        TargetPlan(
            target=group[0].target,
            pairings=tuple(group),
            workloads=load_workloads(
                settings.workload.workloads,
                folder=group[0].target.workloads,
                field=settings.workload.prompt_field,
                without_settings=settings.workload.ignore_request_settings,
            ),
            settings=settings,
            dtype=dtype_of(group[0].target),
            depths=depths(group, read_head, dummy=dummy),
            running_ks=running_ks,
            refused=refused,
        )
        for group in by_target.values()
    ]
    for plan in plans:
        _check_requests(plan)
    return tuple(leave_out_long_prompts(plan, context) for plan in plans)


def _check_lossy(settings: RunSettings, pairings: Sequence[Pairing]) -> None:
    """Raise UsageError if a lossy rule would have no effect."""
    lossy = [pairing.name for pairing in pairings if pairing.drafter.lossy]
    if not lossy:
        return
    if settings.decoder.acceptance is not None:
        raise UsageError(
            f"--simulate-acceptance: {', '.join(lossy)} accepts draft tokens "
            "by its own lossy rule; name other pairings or drop --simulate-acceptance"
        )
    if BUILTIN not in settings.load.engines:
        raise UsageError(
            f"{', '.join(lossy)} uses a lossy rule that only the built-in decoder has; add "
            "--engine builtin or name other pairings"
        )


def _check_peers(settings: RunSettings, pairings: Sequence[Pairing]) -> None:
    """Raise UsageError if transformers is the only engine, and does not have any of the methods."""
    engines = settings.load.engines
    if engines != (TRANSFORMERS,) or settings.draft.num_speculative_tokens == (0,):
        return
    if not any(peers_of(p.drafter) for p in pairings):
        methods = ", ".join(dict.fromkeys(p.drafter.method for p in pairings))
        raise UsageError(
            f"--engine {', '.join(engines)}: transformers has no method like {methods}, "
            f"so {', '.join(p.name for p in pairings)} cannot be measured there; the engine "
            "builtin has it"
        )


def _check_requests(plan: TargetPlan) -> None:
    """Raise UsageError for settings of requests that an engine or the chat template cannot
    apply."""
    lacks_template = False
    with suppress(ModelError):  # not on this machine
        lacks_template = open_model(plan.target.model).lacks_template
    engine_args = " ".join(plan.settings.servers.engine_args)
    for workload in plan.workloads:
        for prompt in workload.prompts:
            at = f"{workload.path}, prompt {prompt.id}"
            needing = ["tools"] if prompt.tools else []
            needing += [name for name in TEMPLATE_SETTINGS if name in prompt.settings.given]
            if lacks_template and needing:
                raise UsageError(
                    f"{at}: {needing[0]}: {plan.target.name} has no chat template, so no engine "
                    "can apply it; leave the workload out"
                    + ("" if needing[0] == "tools" else f", or add {IGNORING}")
                )
            choice = prompt.settings.tool_choice
            if (
                "vllm" in plan.served
                and choice not in (None, "none")
                and not plan.settings.servers.base_urls
                and not all(flag in engine_args for flag in _TOOL_FLAGS)
            ):
                raise UsageError(
                    f"{at}: tool_choice: vLLM needs a parser of tool calls for {choice}; add "
                    f"--engine-args '{' '.join(_TOOL_FLAGS)} NAME', or leave the key out"
                )
            for engine in plan.settings.load.engines:
                if name := unsupported_setting(engine, prompt.settings):
                    able = [e for e in SERVED if not unsupported_setting(e, prompt.settings)]
                    raise UsageError(
                        f"{at}: {name}: the engine {engine} cannot apply it; use --engine "
                        f"{' or '.join(able)}, or add {IGNORING} to measure without such settings"
                    )


def require_verifiable(plans: Iterable[TargetPlan]) -> None:
    """Raise UsageError for settings of requests that change the target's distribution."""
    for workload in (workload for plan in plans for workload in plan.workloads):
        for prompt in workload.prompts:
            for name in prompt.settings.given:
                if name not in TEMPLATE_SETTINGS:
                    raise UsageError(
                        f"{workload.path}, prompt {prompt.id}: {name}: verify compares with the "
                        f"target's distribution, which it changes; add {IGNORING}"
                    )


def _check_running(
    settings: RunSettings, pairings: Sequence[Pairing], running_ks: Sequence[int]
) -> None:
    """Raise UsageError for several pairings, since they would get the figures of the same servers,
    and for a requested K at which no server runs."""
    if len(pairings) > 1:
        raise UsageError(
            f"--base-url measures one pairing, not {', '.join(p.name for p in pairings)}; name "
            "the one that runs there"
        )
    requested = settings.draft.num_speculative_tokens or ()
    missing = sorted(set(requested).difference(running_ks))
    if missing and not settings.draft.is_default_range:
        raise UsageError(
            f"-k {','.join(map(str, missing))}: the servers of --base-url run at "
            f"K={', '.join(map(str, sorted(running_ks)))}; leave -k out, or add the address of "
            f"a server at that K, such as --base-url http://localhost:8001#k={missing[0]}"
        )


def _refused(settings: RunSettings, pairings: Sequence[Pairing]) -> Mapping[tuple[str, str], str]:
    """The reasons why an engine cannot use a drafter, by both; UsageError if no engine can."""
    served = [name for name in settings.load.engines if name in SERVED]
    reasons = {
        (engine, pairing.drafter.name): why
        for engine in served
        for pairing, why in unsupported_pairings(engine, pairings, settings)
    }
    if (
        reasons
        and len(reasons) == len(served) * len(pairings)
        and len(served) == len(settings.load.engines)
    ):
        raise UsageError("; ".join(dict.fromkeys(reasons.values())))
    return reasons


def most_tokens(plan: TargetPlan) -> int:
    """Tokens of the longest conversation, estimated from its characters."""
    longest = 0
    for workload in plan.workloads:
        answer = plan.max_new_tokens(workload.name)
        for prompt in plan.prompts(workload):
            context = max(plan.settings.load.contexts, default=0)
            tokens = max(len(prompt.text) // CHARACTERS_PER_TOKEN, context)
            longest = max(longest, tokens + answer * len(prompt.turns))
    return longest


def fit_warnings(plan: TargetPlan, *, is_dry: bool = False) -> Iterator[Reason]:
    """Warnings about the compatibility of files; about tokenizer and template only if `is_dry`,
    since loading also warns about them."""
    with suppress(ModelError):  # not on this machine
        if is_dry and open_model(plan.target.model).lacks_template:
            yield Kind.NO_TEMPLATE(target=plan.target.name)
        for penalty in generation_findings(open_model(plan.target.model)):
            yield Kind.FOUND_IN_FILES(name=plan.target.name, finding=penalty.reason)
        template = open_model(plan.target.model).chat_template
        thinking = tuple(w.name for w in plan.workloads if w.thinks)
        if template and thinking and not any(name in template for name in THINKING_ARGS):
            yield Kind.THINKING_IGNORED(
                workloads=thinking, target=plan.target.name, names=tuple(THINKING_ARGS)
            )
    if plan.served or plan.settings.decoder.dummy_weights:
        return
    fields = {"vocab_size", "d2t", "adapter", *(("tokenizer", "tensors") if is_dry else ())}
    for pairing in plan.pairings:
        with suppress(ModelError):
            files, spec = open_model(plan.target.model), pairing.drafter.model
            limit = open_model(spec).longest_context if spec else None
            shown = fields | {"context"} if most_tokens(plan) > (limit or inf) else fields
            for finding in check_drafter(files, pairing.drafter).of_level("warning"):
                if finding.field in shown:
                    yield Kind.FOUND_IN_FILES(name=pairing.name, finding=finding.text)


def deepest(pairing: Pairing, read_head: ReadHead, *, dummy: bool) -> int | None:
    """The deepest K of a pairing's drafter; None: no limit, or its files are missing or invalid.

    `dummy`: weights are random and not read.
    """
    drafter = pairing.drafter
    head = partial(_head, drafter.model or pairing.target.model, read_head, dummy=dummy)
    vocab_size = partial(num_rows, pairing.target.model)
    method = find_method(drafter.method)
    try:
        return method.deepest(method.settings(drafter.parameters), head, vocab_size)
    except (ModelError, UsageError):
        return None


def depths(pairings: Sequence[Pairing], read_head: ReadHead, *, dummy: bool) -> Mapping[str, int]:
    """The deepest K by drafter of one target, without drafters that have no limit."""
    limits = {p.drafter.name: deepest(p, read_head, dummy=dummy) for p in pairings}
    return {name: limit for name, limit in limits.items() if limit is not None}


def any_shape(pairings: Sequence[Pairing]) -> bool:
    """Whether a model is a shape without weights, which makes the run synthetic."""
    specs = [s for p in pairings for s in (p.target.model, p.drafter.model) if s is not None]
    return any(spec.is_shape for spec in specs)


def _head(spec: ModelSpec, read_head: ReadHead, *, dummy: bool) -> HeadFiles[Any] | None:
    return None if dummy or spec.is_shape else read_head(spec)


_MOST_TEMPLATE_TOKENS = 1024  # the most that a chat template adds

# The shortened plan, and a failure for each workload with left-out prompts.
Shortened = tuple[TargetPlan, tuple[FailureRecord, ...]]


def leave_out_long_prompts(plan: TargetPlan, context: int | None = None) -> TargetPlan:
    """The plan without prompts that exceed the context, counted by tokenizer.json, and with notes
    on their number. `context`: of running servers. WorkloadError if no prompt fits, except for
    servers: they get all prompts, since the tokens of their chat template are an estimate."""
    margin = TEMPLATE_TOKENS if plan.served else 0
    with suppress(ModelError):  # loading the model raises the error again
        spec = plan.target.model
        files = gguf_of(spec) if spec.is_gguf else open_model(spec)

        def count(prompt: Prompt) -> int:
            return (files.num_tokens(prompt.text) or 0) + margin

        limit = min(files.longest_context or inf, context or inf)
        _check_contexts(plan, limit)
        short, failures = _drop_long_prompts(plan, limit, count)
        reasons = {failure.workload: failure.reason for failure in failures}
        noted = []
        for workload in short.workloads:
            reason, outcome = reasons.get(workload.name), "left out"
            if reason and workload in plan.workloads:
                if not plan.served:
                    raise WorkloadError(f"{workload.name}: no prompt fits: {reason}")
                outcome = "sent, though they might not fit"
            note = (f"{workload.name}: {outcome}: {reason}",) if reason else ()
            noted.append(replace(workload, notes=(*workload.notes, *note)))
        return replace(short, workloads=tuple(noted))
    return plan


def _check_contexts(plan: TargetPlan, limit: float) -> None:
    """Raise UsageError if prompts cannot be lengthened as requested."""
    longest = max(plan.settings.load.contexts, default=0)
    for workload in plan.workloads:
        room = limit - plan.max_new_tokens(workload.name)
        if longest and fewest_tokens(longest) > room:
            raise UsageError(
                f"--prompt-tokens {longest}: the context of {plan.target.name} has {limit:,} "
                f"tokens, and answers of {workload.name} take up to {limit - room:,} of them; "
                f"choose at most {max(room, 0):,}, or a smaller --max-new-tokens"
            )


def without_long_prompts(plan: TargetPlan, engine: Engine) -> Shortened:
    """The plan without prompts that exceed the context, counted with their chat template. A
    workload with only such prompts is kept, and fails with the engine's error."""
    count = partial(_prompt_tokens, engine.tokenizer)
    short, failures = _drop_long_prompts(plan, engine.context or inf, count)
    unchanged = {workload.name for workload in plan.workloads if workload in short.workloads}
    return short, tuple(f for f in failures if f.workload not in unchanged)


def _drop_long_prompts(plan: TargetPlan, limit: float, count: Callable[[Prompt], int]) -> Shortened:
    """The plan without prompts above the limit, and a failure for each workload that has such
    prompts. A workload with only such prompts is kept."""
    kept, failures = list(plan.workloads), []
    for i, workload in enumerate(plan.workloads):
        answer = plan.max_new_tokens(workload.name)
        long = {}
        for prompt in workload.prompts:
            num_bytes = len(prompt.text.encode())
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
