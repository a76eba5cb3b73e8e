"""Makes the plans of a run, with the deepest K of each drafter, from files. No torch.

Prompts that exceed the target's context, or that its chat template refuses, are left out, at every
K and before measuring.

UsageError if no engine can measure the pairings.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from specbench.bench.plan import TEMPLATE_TOKENS, TargetPlan, peers_of
from specbench.bench.rendering import prompt_tokens, rendered, rendered_elsewhere
from specbench.bench.served.deployments import unsupported_pairings
from specbench.engines.engine import Engine
from specbench.engines.served_engine import unsupported_setting
from specbench.errors import ModelError, UsageError, WorkloadError
from specbench.files.gguf import gguf_of
from specbench.files.head_files import HeadFiles
from specbench.files.model import num_rows, open_model
from specbench.files.model_spec import ModelSpec
from specbench.fit.compatibility import check_drafter, generation_findings
from specbench.inputs.lengthening import fewest_tokens
from specbench.inputs.pairing import Pairing, Target
from specbench.inputs.workloads import Workload, load_workloads
from specbench.methods import find_method
from specbench.records import FailureRecord, Kind, Prompt, Reason
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
    plans = [leave_out_long_prompts(plan, context) for plan in plans]
    # A run in this process renders the prompts with the tokenizer that it loads.
    return tuple(without_refused_prompts(plan) if plan.served else plan for plan in plans)


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
        yield from _rendered_twice(plan)
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


def _rendered_twice(plan: TargetPlan) -> Iterator[Reason]:
    """Warnings about prompts with special tokens that the chat template or tokenizer writes."""
    files = open_model(plan.target.model)
    vocabulary, template = files.vocabulary, files.chat_template
    if vocabulary is None:
        return
    written = [name for name in vocabulary.specials() if name in (template or name)]
    if not written:
        return
    pattern = re.compile("|".join(map(re.escape, written)))
    for workload in plan.workloads:
        matches = [match for p in plan.prompts(workload) if (match := pattern.search(p.text))]
        if matches:
            yield Kind.RENDERED_TWICE(
                workload=workload.name,
                count=(len(matches), "prompt"),
                token=matches[0].group(),
                target=plan.target.name,
            )


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
        return _noted(plan, *_drop_prompts(plan, limit, count, {}))
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


def without_unusable_prompts(plan: TargetPlan, engine: Engine) -> Shortened:
    """The plan without prompts that the chat template refuses or that exceed the context. A
    workload with only such prompts is kept, and fails with the engine's error."""
    known = {
        workload.name: rendered(engine.tokenizer, *_order(plan, workload))
        for workload in plan.workloads
    }

    def count(prompt: Prompt) -> int:
        try:
            return prompt_tokens(engine.tokenizer, prompt.turns, prompt.tools, prompt.template_args)
        except WorkloadError:  # decoding the prompt raises the error again
            return 0

    short, failures = _drop_prompts(plan, engine.context or inf, count, known)
    unchanged = {workload.name for workload in plan.workloads if workload in short.workloads}
    return short, tuple(f for f in failures if f.workload not in unchanged)


def without_refused_prompts(plan: TargetPlan) -> TargetPlan:
    """The plan without prompts that the target's chat template refuses, and with notes on their
    number; unchanged if the target is not here. WorkloadError if it refuses all."""
    spec = plan.target.model
    if spec.is_gguf or not (spec.is_shape or spec.folder):
        return plan
    work: dict[str, tuple[tuple[Prompt, ...], int]] = {}
    with suppress(ModelError):  # loading tells why
        raises = "raise_exception" in (open_model(spec).chat_template or "")
        for workload in plan.workloads:
            prompts, wanted = _order(plan, workload)
            if raises or any(map(_has_more_than_text, prompts)):
                work[workload.name] = prompts, wanted
    known = rendered_elsewhere(spec, work) if work else {}
    return _noted(plan, *_drop_prompts(plan, inf, lambda _: 0, known))


def _has_more_than_text(prompt: Prompt) -> bool:
    """Whether a template reads fields of the prompt that not every prompt has."""
    messages = (message for turn in prompt.turns for message in turn)
    return bool(prompt.tools) or any(message.extra for message in messages)


def _order(plan: TargetPlan, workload: Workload) -> tuple[tuple[Prompt, ...], int]:
    """The prompts in the order of their use, and how many a run may use: as many again confirm."""
    every = workload.take(len(workload.prompts), plan.settings.seed)
    return every, 2 * len(plan.prompts(workload))


def _noted(plan: TargetPlan, short: TargetPlan, failures: Sequence[FailureRecord]) -> TargetPlan:
    """The shortened plan with its failures as notes; WorkloadError for a workload without a usable
    prompt, except for servers, which get all prompts."""
    noted = []
    for workload in short.workloads:
        reasons = [failure.reason for failure in failures if failure.workload == workload.name]
        outcome = "left out"
        if reasons and workload in plan.workloads:
            if not plan.served:
                raise WorkloadError(f"{workload.name}: no prompt can be used: {'; '.join(reasons)}")
            outcome = "sent anyway"
        notes = (f"{workload.name}: {outcome}: {reason}" for reason in reasons)
        noted.append(replace(workload, notes=(*workload.notes, *notes)))
    return replace(short, workloads=tuple(noted))


def _drop_prompts(
    plan: TargetPlan,
    limit: float,
    count: Callable[[Prompt], int],
    known: Mapping[str, Mapping[str, int | str]],
) -> Shortened:
    """The plan without prompts above the limit or refused, and failures for each workload that has
    such prompts. A workload with only such prompts is kept.

    `known`: by workload and prompt its tokens, or why the chat template refuses it; `count` is for
    other prompts.
    """
    kept, failures = list(plan.workloads), []
    for i, workload in enumerate(plan.workloads):
        answer, of_prompts = plan.max_new_tokens(workload.name), known.get(workload.name, {})
        refused = {name: why for name, why in of_prompts.items() if isinstance(why, str)}
        long: dict[str, int] = {}
        for prompt in workload.prompts:
            num_bytes = len(prompt.text.encode())
            answers, tokens = answer * len(prompt.turns), of_prompts.get(prompt.id)
            # A token has at least one byte.
            may_be_long = prompt.tools or num_bytes + _MOST_TEMPLATE_TOKENS + answers > limit
            if isinstance(tokens, int) or (may_be_long and tokens is None):
                long[prompt.id] = (count(prompt) if tokens is None else tokens) + answers
        long = {prompt: tokens for prompt, tokens in long.items() if tokens > limit}
        unusable = refused.keys() | long.keys()
        rest = tuple(prompt for prompt in workload.prompts if prompt.id not in unusable)
        if rest:
            kept[i] = replace(workload, prompts=rest)
        of_all = f"of {len(workload.prompts):,} prompts"
        if refused:
            name, why = next(iter(refused.items()))
            reason = f"{len(refused):,} {of_all}: {workload.path}, prompt {name!r}: {why}"
            failures.append(_left_out(plan, workload, reason, len(refused)))
        if long:
            longest = max(long, key=lambda prompt: long[prompt])
            reason = (
                f"{len(long):,} {of_all}: with answers of up to "
                f"{answer:,} tokens {longest!r} may take {long[longest]:,}, and the context "
                f"has {limit:,}; shorten them or choose a smaller --max-new-tokens"
            )
            failures.append(_left_out(plan, workload, reason, len(long)))
    return replace(plan, workloads=tuple(kept)), tuple(failures)


def _left_out(plan: TargetPlan, workload: Workload, reason: str, count: int) -> FailureRecord:
    return FailureRecord(
        pairing=plan.target.name,
        workload=workload.name,
        stage="prompts",
        reason=reason,
        num_prompts=count,
    )
