"""Makes the plan of a run, from settings and files, and narrows it where models are loaded.

Prompts that exceed the target's context, or that its chat template refuses, are left out, at every
K and before measuring.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

from specbench.bench.plan import TEMPLATE_TOKENS, TargetPlan, peers_of
from specbench.bench.rendering import (
    MOST_S,
    Candidates,
    Render,
    Rendered,
    rendered_for_plan,
)
from specbench.bench.served.deployments import unsupported_pairings, with_adaptive
from specbench.bench.served.running import RunningServer, running_servers
from specbench.engines.served_engine import unsupported_setting
from specbench.errors import ModelError, UsageError, WorkloadError
from specbench.files.gguf import gguf_of
from specbench.files.head_files import HeadFiles
from specbench.files.model import num_rows, open_model
from specbench.files.model_spec import ModelSpec
from specbench.fit.compatibility import check_drafter, generation_findings
from specbench.inputs.lengthening import fewest_tokens
from specbench.inputs.pairing import Pairing
from specbench.inputs.workloads import Workload, load_workloads
from specbench.methods import find_method, gguf_depth
from specbench.records import Kind, Reason
from specbench.records.requests import TEMPLATE_SETTINGS, THINKING_ARGS
from specbench.settings import BUILTIN, SERVED, TRANSFORMERS, RunSettings

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


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """What a run measures: made once by the command, then narrowed by what loading knows."""

    settings: RunSettings
    targets: tuple[TargetPlan, ...]  # in the order of their pairings
    running: tuple[RunningServer, ...]  # those of --base-url; (): servers are started

    @property
    def pairings(self) -> tuple[Pairing, ...]:
        return tuple(pairing for plan in self.targets for pairing in plan.pairings)


def plan_run(
    settings: RunSettings,
    pairings: Sequence[Pairing],
    running: Sequence[RunningServer] | None = None,
    render: Render | None = None,
) -> RunPlan:
    """The plan of these pairings, from the files on this machine.

    `running`: the servers of --base-url; None: they are asked. `render` renders the prompts of
    engines in this process; None: the run does when it loads them. Raises WorkloadError if no
    prompt fits, and UsageError for two workloads of one name, engines that cannot draft with the
    pairings, and servers that do not respond or run at another K.
    """
    if running is None:
        running = running_servers(settings, pairings[0].target)
    if any(spec.is_shape for pairing in pairings for spec in pairing.models):  # without weights
        settings = replace(settings, decoder=replace(settings.decoder, dummy_weights=True))
    running_ks = tuple(dict.fromkeys(server.address.k or 0 for server in running)) or None
    context = min(filter(None, (server.facts.context for server in running)), default=inf)
    by_target: dict[str, list[Pairing]] = {}
    for pairing in pairings:
        by_target.setdefault(pairing.target.name, []).append(pairing)
    load = settings.load
    if load.engines == (TRANSFORMERS,) and 1 not in load.concurrency:
        raise UsageError(
            f"--engine {', '.join(load.engines)} decodes one request at a time; "
            "use --concurrency 1, or add the engine builtin"
        )
    of_targets = settings
    is_long = len(settings.draft.num_speculative_tokens or ()) > len(SERVED_KS)
    if settings.draft.is_default_range and is_long and load.served:
        few = replace(settings.draft, num_speculative_tokens=SERVED_KS)
        of_targets = replace(settings, draft=few)
    _check_lossy(settings, pairings)
    _check_peers(of_targets, pairings)
    if running_ks is not None:
        _check_running(of_targets, pairings, running_ks)
    refused = _refused(of_targets, pairings) if running_ks is None else {}
    targets = [
        TargetPlan(
            target=group[0].target,
            pairings=tuple(group),
            workloads=load_workloads(
                settings.workload.workloads,
                folder=group[0].target.workloads,
                field=settings.workload.prompt_field,
                without_settings=settings.workload.ignore_request_settings,
            ),
            settings=of_targets,
            dtype=settings.machine.dtype or group[0].target.model.dtype,
            running_ks=running_ks,
            refused=refused,
            # All targets, the engines of this process and each serving engine share it equally.
            budget_share=1 / len(by_target) / (len(load.served) + bool(load.in_process)),
        )
        for group in by_target.values()
    ]
    for plan in targets:
        _check_requests(plan)
    targets = [
        narrowed(
            plan,
            render=rendered_for_plan if plan.in_process is None else render,
            context=context,
        )
        for plan in targets
    ]
    settings = with_adaptive(settings, targets)
    return RunPlan(
        settings=settings,
        targets=tuple(
            replace(plan, settings=replace(plan.settings, servers=settings.servers))
            for plan in targets
        ),
        running=tuple(running),
    )


def narrowed(
    plan: TargetPlan,
    read_head: ReadHead = headers_on_this_machine,
    render: Render | None = None,
    context: float = inf,
) -> TargetPlan:
    """The plan with the deepest K of its drafters, and without the prompts that cannot be used.

    It has notes on their number. What the plan knows already is not read again. `render`: None if
    prompts are not rendered; `context`: of running servers. Raises WorkloadError if no prompt of a
    workload can be used, except for servers, since the tokens of their chat template are an
    estimate. UsageError if prompts cannot be lengthened, or have tools without a chat template.
    """
    unknown = [p for p in plan.pairings if p.drafter.name not in plan.depths]
    limits = depths(unknown, read_head, dummy=plan.settings.decoder.dummy_weights)
    plan = replace(plan, depths={**plan.depths, **limits})
    if plan.context is None:
        with suppress(ModelError):  # not on this machine, or loading raises the error again
            plan = _without_long_prompts(plan, context)
    if render is None:
        return plan
    candidates = {w.name: _candidates(plan, w) for w in plan.workloads}
    known = render(plan.target.model, candidates)
    plan = _without_unusable(plan, known)
    workloads = (_rendered_part(w, candidates[w.name], known.get(w.name)) for w in plan.workloads)
    return replace(plan, workloads=tuple(workloads))


def _rendered_part(workload: Workload, candidates: Candidates, known: Rendered | None) -> Workload:
    """A usable workload without prompts that were not rendered, if others of it cannot be used:
    one of them would take the place of a prompt that was left out. With a note if time ran out."""
    if known is None or len(known) == len(candidates.prompts):
        return workload
    fit = tuple(prompt for prompt in workload.prompts if prompt.id in known)
    if len(fit) < candidates.wanted:
        seen = f"{len(known):,} of {len(candidates.prompts):,} prompts"
        note = (
            f"{workload.name}: in {MOST_S:g} s, only {seen} were rendered; the others are unknown"
        )
        return replace(workload, notes=(*workload.notes, note))
    return workload if len(fit) == len(known) else replace(workload, prompts=fit)


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
    """Raise UsageError for settings of requests that an engine cannot apply."""
    engine_args = " ".join(plan.settings.servers.engine_args)
    for workload in plan.workloads:
        for prompt in workload.prompts:
            at = f"{workload.path}, prompt {prompt.id}"
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


def _check_template(plan: TargetPlan) -> None:
    """Raise UsageError for settings of requests that need a chat template."""
    for workload in plan.workloads:
        for prompt in workload.prompts:
            needing = ["tools"] if prompt.tools else []
            needing += [name for name in TEMPLATE_SETTINGS if name in prompt.settings.given]
            if needing:
                raise UsageError(
                    f"{workload.path}, prompt {prompt.id}: {needing[0]}: {plan.target.name} has "
                    "no chat template, so no engine can apply it; leave the workload out"
                    + ("" if needing[0] == "tools" else f", or add {IGNORING}")
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
    served = settings.load.served
    reasons = {
        (engine, pairing.drafter.name): why
        for engine in served
        for pairing, why in unsupported_pairings(engine, pairings, settings)
    }
    if reasons and len(reasons) == len(served) * len(pairings) and not settings.load.in_process:
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
    model = drafter.model or pairing.target.model
    method = find_method(drafter.method)
    try:
        if model.is_gguf:
            return gguf_depth(method.name, gguf_of(model))
        return method.deepest(
            method.settings(drafter.parameters),
            lambda: None if dummy or model.is_shape else read_head(model),
            partial(num_rows, pairing.target.model),
        )
    except (ModelError, UsageError):
        return None


def depths(pairings: Sequence[Pairing], read_head: ReadHead, *, dummy: bool) -> Mapping[str, int]:
    """The deepest K by drafter of one target, without drafters that have no limit."""
    limits = {p.drafter.name: deepest(p, read_head, dummy=dummy) for p in pairings}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _without_long_prompts(plan: TargetPlan, context: float) -> TargetPlan:
    """The plan with its context, and without prompts that exceed it, counted by tokenizer.json."""
    spec = plan.target.model
    files = gguf_of(spec) if spec.is_gguf else open_model(spec)
    if not spec.is_gguf and open_model(spec).lacks_template:
        _check_template(plan)
    context = min(files.longest_context or inf, context)
    _check_lengths(plan, context)
    margin = TEMPLATE_TOKENS if plan.served else 0
    tokens: dict[str, Rendered] = {}
    for workload in plan.workloads:
        answer = plan.max_new_tokens(workload.name)
        tokens[workload.name] = {
            prompt.id: (files.num_tokens(prompt.text) or 0) + margin
            for prompt in workload.prompts
            # A token has at least one byte.
            if len(prompt.text.encode()) + margin + answer * len(prompt.turns) > context
        }
    return _without_unusable(replace(plan, context=context), tokens)


def _check_lengths(plan: TargetPlan, context: float) -> None:
    """Raise UsageError if prompts cannot be lengthened as requested."""
    longest = max(plan.settings.load.contexts, default=0)
    for workload in plan.workloads:
        answer = plan.max_new_tokens(workload.name)
        room = context - answer
        if longest and fewest_tokens(longest) > room:
            raise UsageError(
                f"--prompt-tokens {longest}: the context of {plan.target.name} has "
                f"{context:,} tokens, and answers of {workload.name} take up to {answer:,} "
                f"of them; choose at most {max(room, 0):,}, or a smaller --max-new-tokens"
            )


def _candidates(plan: TargetPlan, workload: Workload) -> Candidates:
    """The prompts that a run may use: as many as it measures, again as many to confirm with, and
    those of passes with concurrent requests."""
    in_passes = {
        prompt.id
        for condition in plan.conditions
        if condition.is_stream and condition.workload == workload.name
        for prompt in plan.pass_prompts(workload, condition)
    }
    return Candidates(
        prompts=workload.take(len(workload.prompts), plan.settings.seed),
        wanted=max(2 * len(plan.prompts(workload)), len(in_passes)),
        most=plan.context or inf,
        answer=plan.max_new_tokens(workload.name),
    )


def _without_unusable(plan: TargetPlan, known: Mapping[str, Rendered]) -> TargetPlan:
    """The plan without prompts that are refused or too long, and with notes on their number.
    `known`: by workload; other prompts stay. WorkloadError as in `narrowed`."""
    usable = []
    for workload in plan.workloads:
        answer, of_prompts = plan.max_new_tokens(workload.name), known.get(workload.name, {})
        refused = {name: why for name, why in of_prompts.items() if isinstance(why, str)}
        long: dict[str, int] = {}
        for prompt in workload.prompts:
            tokens = of_prompts.get(prompt.id)
            if isinstance(tokens, int):
                whole = tokens + answer * len(prompt.turns)
                if whole > (plan.context or inf):
                    long[prompt.id] = whole
        of_all = f"of {len(workload.prompts):,} prompts"
        reasons = []
        if refused:
            name, why = next(iter(refused.items()))
            reasons.append(f"{len(refused):,} {of_all}: {workload.path}, prompt {name!r}: {why}")
        if long:
            longest = max(long, key=lambda prompt: long[prompt])
            reasons.append(
                f"{len(long):,} {of_all}: with answers of up to {answer:,} tokens {longest!r} may "
                f"take {long[longest]:,}, and the context has {plan.context:,}; shorten them or "
                "choose a smaller --max-new-tokens"
            )
        rest = tuple(p for p in workload.prompts if p.id not in refused.keys() | long.keys())
        if not rest and not plan.served:
            raise WorkloadError(f"{workload.name}: no prompt can be used: {'; '.join(reasons)}")
        outcome = "left out" if rest else "sent anyway"
        notes = (f"{workload.name}: {outcome}: {reason}" for reason in reasons)
        usable.append(
            replace(workload, prompts=rest or workload.prompts, notes=(*workload.notes, *notes))
        )
    return replace(plan, workloads=tuple(usable))
