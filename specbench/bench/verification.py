"""Collects the evidence of `verify` from engines in this process, target after target."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from specbench.bench.benchmark import peer_warnings
from specbench.bench.blocks import work_of
from specbench.bench.budget import duration
from specbench.bench.hub import download_missing
from specbench.bench.plan import TargetPlan
from specbench.bench.planning import RunPlan, narrowed
from specbench.bench.rendering import rendered_here
from specbench.bench.sharding import Shard, run_sharded
from specbench.bench.this_process import (
    autotune_for_plan,
    choose_threads,
    idle_threads,
    open_engines,
    prepare_device,
    read_shapes,
)
from specbench.bench.units import Reporter
from specbench.engines.engine import Engine, Load
from specbench.engines.model_pool import ModelPool
from specbench.engines.transformers import BASELINES
from specbench.errors import ModelError, SpecbenchError, WorkloadError, first_line
from specbench.files.model import open_model
from specbench.fit.weights import model_weights
from specbench.inputs.pairing import Pairing
from specbench.models.library_errors import EXPECTED_ERRORS
from specbench.probes.device import find_device
from specbench.records import Message, Prompt, Request, Result
from specbench.settings import BUILTIN, RunSettings
from specbench.verify.collect import (
    Amount,
    Collector,
    EngineUnderTest,
    KnownOutput,
    VerificationJob,
    VerificationPrompt,
    examine,
)
from specbench.verify.evidence import Evidence
from specbench.verify.judge import MOST_TOKENS, level_of_call, power_of_call
from specbench.verify.reference_model import ReferenceModel
from specbench.words.answers import text

FEWEST_TOKENS = 100  # per cell, also if the budget is too small for them
_SMALL = 32 * 2**20  # bytes of a target's weights in float32
# Time per token relative to greedy decoding without drafts: the mean of the bundled drafters, of
# which only lookahead takes more than twice as long.
_SAMPLED, _READ = 1.3, 0.4  # to sample a token with drafts; to read a token


def collect_evidence(
    plan: RunPlan,
    reporter: Reporter,
    *,
    num_tokens: int,
    budget_s: float | None,
    num_rows: int,
) -> list[Evidence]:
    """The evidence for every planned pairing, K and temperature of the engines in this process, K =
    0 of its target first.

    `num_tokens` are sampled for each, by the built-in decoder in `num_rows` rows. With a budget,
    more are sampled within that time if the target's distributions need them. Raises UsageError
    and WorkloadError before a model is loaded; a model that cannot run gives FailedEvidence.
    """
    models = [model for pairing in plan.pairings for model in pairing.models]
    num_processes = _num_processes(plan.settings, plan.pairings)
    download_missing(models, reporter.warn)
    plans = tuple(
        narrowed(part, read_shapes, rendered_here)
        for target in plan.targets
        if (part := target.in_process) is not None
    )
    work = partial(_collect, plans, num_tokens, budget_s, num_rows)
    return run_sharded(work, num_processes, reporter)


def _num_processes(settings: RunSettings, pairings: Sequence[Pairing]) -> int:
    """One process per core if the models are so small that a forward uses one core; else 1."""
    is_cpu = find_device(settings.machine.device).type == "cpu"
    if not is_cpu or settings.machine.threads is not None or not _are_small(pairings):
        return 1
    return min(idle_threads(), len(pairings))


def _are_small(pairings: Sequence[Pairing]) -> bool:
    """Whether all targets are too small to gain from a second thread."""
    try:
        sizes = [model_weights(open_model(p.target.model), "float32") for p in pairings]
    except ModelError:
        return False
    return all(weights is not None and weights.nbytes <= _SMALL for weights in sizes)


def _collect(
    plans: Sequence[TargetPlan],
    num_tokens: int,
    budget_s: float | None,
    num_rows: int,
    shard: Shard,
    reporter: Reporter,
) -> dict[tuple[int, int], Evidence]:
    """The evidence of a shard of the pairings and of K = 0, by target and job."""
    settings = plans[0].settings
    is_small = _are_small([pairing for plan in plans for pairing in plan.pairings])
    device = prepare_device(settings.machine, threads=1 if is_small else None)
    evidence: dict[tuple[int, int], Evidence] = {}
    num_sampled = sum(job.sampling.temperature > 0 for plan in plans for job in _jobs(plan))
    for number, plan in enumerate(plans):
        for warning in (*peer_warnings(plan), *plan.left_out):
            reporter.warn(text(warning))
        jobs = list(_jobs(plan))
        pairs = list(dict.fromkeys(job.pairing for job in jobs))
        in_shard = {i for i, job in enumerate(jobs) if shard.has(pairs.index(job.pairing))}
        # Every shard has the greedy answers of K = 0, since drafters are compared with them.
        chosen = [i for i, job in enumerate(jobs) if i in in_shard or job.is_greedy_baseline]
        reporter.stage(f"{plan.target.name}: loading")
        pool = ModelPool(device, settings.machine.dtype)
        try:
            engines = open_engines(plan.target, settings, pool)
            rows = {name: num_rows if name == BUILTIN else 1 for name in engines}
            reference = ReferenceModel(pool.load(plan.target.model).model)
            first = next(iter(engines.values()))
            if not is_small and device.type == "cpu" and settings.machine.threads is None:
                target = first.identity
                facts = target.content_sha256, target.dtype, first.name, rows[first.name]
                autotune = partial(autotune_for_plan, plan, first, rows[first.name])
                choose_threads(target.name, facts, autotune)
            began_s = time.monotonic()
            prompts = list(_prompts(plan, first, reporter, rows[first.name]))
            answers_s = (time.monotonic() - began_s) / shard.of
            collector = Collector(reference, prompts, seed=settings.seed)
            enough = num_tokens
            if budget_s is not None:
                baseline = EngineUnderTest(plan.target.name, first, first.baseline)
                level = level_of_call(num_sampled)
                for sampling in {job.sampling for job in jobs if job.sampling.temperature > 0}:
                    needed = collector.tokens_for_control(baseline, sampling, level)
                    enough = max(enough, math.ceil(min(needed, MOST_TOKENS)))
        except EXPECTED_ERRORS as error:
            evidence |= {(number, i): jobs[i].failed(error) for i in in_shard}
            continue
        limit_s = math.inf if budget_s is None else budget_s / len(plans)
        num_each, estimate = _estimate(jobs, prompts, answers_s, enough, limit_s, num_sampled)
        if shard.first == 0:
            reporter.info(estimate)
        amount = Amount(num_each, rows)
        examined = examine(engines, collector, [jobs[i] for i in chosen], amount, reporter.stage)
        evidence |= {(number, i): e for i, e in zip(chosen, examined, strict=True) if i in in_shard}
        for note in dict.fromkeys(note for e in engines.values() for note in e.record.notes):
            reporter.warn(note)
    return evidence


def _jobs(plan: TargetPlan) -> Iterator[VerificationJob]:
    """A job per cell of a run with these settings, grouped by pairing, K = 0 first."""
    drafters = {pairing.name: pairing.drafter for pairing in plan.pairings}
    cells = [
        cell
        for condition in dict.fromkeys(c.without("workload") for c in plan.conditions)
        for cell in plan.cells(condition)
        if cell.key.draft.method not in BASELINES[1:]
    ]
    for pairing in (plan.target.name, *drafters):
        for cell in cells:
            if cell.key.pairing == pairing:
                drafter = drafters.get(pairing)
                yield VerificationJob(
                    pairing, drafter, cell.key.condition.engine, work_of(cell), cell.sampling
                )


def _estimate(
    jobs: Sequence[VerificationJob],
    prompts: Sequence[VerificationPrompt],
    answers_s: float,
    enough: int,
    limit_s: float,
    num_sampled: int,
) -> tuple[int, str]:
    """The tokens to sample per cell, `enough` or as many as the time limit allows, and a sentence
    with the time and the power. The `num_sampled` cells of a call share its false alarm rate."""
    sampled = [job for job in jobs if job.sampling.temperature > 0]
    greedy = len(jobs) - len(sampled)
    answers = sum(prompt.expected_tokens for prompt in prompts)
    token_s = answers_s / max(answers, 1)
    drafted = sum(_SAMPLED if job.work.k else 1.0 for job in sampled)
    greedy_s, cells_s = token_s * greedy * answers, token_s * (drafted + _READ * len(sampled))
    affordable = (limit_s - greedy_s) / cells_s if cells_s else math.inf
    num_tokens = int(min(enough, max(affordable, FEWEST_TOKENS)))
    parts = []
    if greedy:
        parts.append(f"{len(prompts)} greedy answers for each of {greedy} cells")
    if sampled:
        needed = f" of the needed {enough:,}" if num_tokens < enough else ""
        parts.append(f"{num_tokens:,}{needed} sampled tokens for each of {len(sampled)}")
    limit = f" (--time-budget: {duration(limit_s)})" if sampled and limit_s < math.inf else ""
    seconds = greedy_s + cells_s * num_tokens
    estimate = f"about {duration(seconds)}{limit}: {', '.join(parts)}, including K=0"
    if not sampled:
        return num_tokens, estimate
    power = power_of_call(num_tokens, num_sampled)
    return num_tokens, (
        f"{estimate}; 80% power to detect {power.shift:.1%} of tokens shifted (--detect 1% "
        "detects smaller faults and takes longer)"
    )


@dataclass
class _Conversation:
    """A prompt, with the target's answers to the turns so far."""

    workload: str
    prompt: Prompt
    max_new_tokens: int
    answers: list[Message] = field(default_factory=list)
    answered: list[VerificationPrompt] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.workload}/{self.prompt.id}"


def _prompts(
    plan: TargetPlan, engine: Engine, reporter: Reporter, num_rows: int
) -> Iterator[VerificationPrompt]:
    """Every turn of every prompt, after the target's answers to the turns before, each with a
    prediction that its answer resembles."""
    every = [
        _Conversation(w.name, prompt, plan.max_new_tokens(w.name))
        for w in plan.workloads
        for prompt in plan.prompts(w)
    ]
    left, turn = every, 0
    while left:
        requests: list[tuple[_Conversation, Request]] = []
        failed: list[tuple[_Conversation, SpecbenchError]] = []
        for chat in left:
            history = chat.prompt.history(turn, chat.answers)
            try:
                ids = engine.tokenizer.prompt_ids(
                    history, chat.prompt.tools, chat.prompt.template_args
                )
            except (ModelError, WorkloadError) as error:
                failed.append((chat, error))
            else:
                request = Request(prompt_ids=ids, max_new_tokens=chat.max_new_tokens)
                requests.append((chat, request))
        left = []
        for (chat, request), answer in _answered(engine, requests, num_rows):
            if isinstance(answer, SpecbenchError):
                failed.append((chat, answer))
                continue
            chat.answered.append(
                VerificationPrompt(
                    id=f"{chat.name}, turn {turn + 1}" if turn else chat.name,
                    prompt_ids=request.prompt_ids,
                    max_new_tokens=chat.max_new_tokens,
                    prediction_ids=with_wrong_tokens(answer.output_ids),
                    conversation=chat.name if len(chat.prompt.turns) > 1 else None,
                    answer=KnownOutput(engine.name, answer.output_ids),
                )
            )
            text = engine.tokenizer.text(answer.output_ids)
            chat.answers.append(Message(role="assistant", content=text))
            if turn + 1 < len(chat.prompt.turns):
                left.append(chat)
        for chat, failure in failed:
            if not turn:
                raise failure
            reason = first_line(failure)
            reporter.warn(f"{chat.name}, turn {turn + 1} and after are left out: {reason}")
        turn += 1
    for chat in every:
        yield from chat.answered


def _answered(
    engine: Engine, requests: Sequence[tuple[_Conversation, Request]], num_rows: int
) -> "Iterator[tuple[tuple[_Conversation, Request], Result | ModelError]]":
    """The target's answers without drafts; one by one if they cannot all be decoded together."""
    load = Load(concurrency=num_rows)
    batch = [request for _, request in requests]
    try:
        results = engine.serve(batch, engine.baseline, load).results if requests else ()
        yield from zip(requests, results, strict=True)
    except ModelError:
        for pair in requests:
            try:
                yield pair, engine.generate(pair[1], engine.baseline)
            except ModelError as error:
                yield pair, error


def with_wrong_tokens(answer: Sequence[int]) -> tuple[int, ...]:
    """A text with every eighth token replaced by the one before, so that drafts from it are both
    accepted and rejected, and a drafter loses its position in it and finds it again."""
    return tuple(answer[i - 1] if i % 8 == 7 else token for i, token in enumerate(answer))
