"""Evidence for a whole `verify`: target after target, through the engines that a run has."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from specbench.bench.benchmark import peer_warnings
from specbench.bench.blocks import work_of
from specbench.bench.budget import duration
from specbench.bench.hub import download_missing
from specbench.bench.long_prompts import without_long_prompts
from specbench.bench.plan import TargetPlan
from specbench.bench.planning import plan_targets
from specbench.bench.progress import Reporter
from specbench.bench.sharding import Shard, run_sharded
from specbench.bench.this_process import open_engines, read_shapes
from specbench.bench.threads import autotune_for_plan, choose_threads, idle_threads
from specbench.engines.engine import Engine, Load
from specbench.engines.expected_errors import EXPECTED_ERRORS
from specbench.engines.model_pool import ModelPool
from specbench.engines.transformers import BASELINES
from specbench.errors import ModelError, SpecbenchError, WorkloadError, first_line
from specbench.files.model import open_model
from specbench.fit.weights import model_weights
from specbench.inputs.pairing import Pairing
from specbench.probes.device import find_device
from specbench.records import Message, Prompt, Request, Result, Sampling
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

FEWEST_TOKENS = 100  # of each cell, whatever the budget
_SMALL = 32 * 2**20  # bytes of a target's weights in float32
# Time per token over that of a greedy one without drafts: mean of the embedded drafters, of which
# lookahead alone takes more than twice as long.
_SAMPLED, _READ = 1.3, 0.4  # to draw it with drafts; to read any


def collect_evidence(
    settings: RunSettings,
    pairings: Sequence[Pairing],
    reporter: Reporter,
    *,
    num_tokens: int,
    budget_s: float | None,
    num_rows: int,
) -> list[Evidence]:
    """Every pairing at every K and temperature, K = 0 of its target before it.

    `num_tokens` are sampled for each, by the built-in decoder `num_rows` texts at once. With a
    budget, as many more as the target's distributions need to show anything, within that time.
    Raises UsageError and WorkloadError before anything is loaded; a model that cannot run is
    evidence.
    """
    work = partial(_collect, settings, tuple(pairings), num_tokens, budget_s, num_rows)
    return run_sharded(work, _num_processes(settings, pairings), reporter)


def _num_processes(settings: RunSettings, pairings: Sequence[Pairing]) -> int:
    """As many as there are cores, where a model is so small that its forwards use one core."""
    is_cpu = find_device(settings.machine.device).type == "cpu"
    if not is_cpu or settings.machine.threads is not None or not _are_small(pairings):
        return 1
    return min(idle_threads(), len(pairings))


def _are_small(pairings: Sequence[Pairing]) -> bool:
    """Whether a second thread would gain nothing: its share of a matrix takes microseconds."""
    try:
        found = [model_weights(open_model(one.target.model), "float32") for one in pairings]
    except ModelError:
        return False
    return all(weights is not None and weights.nbytes <= _SMALL for weights in found)


def _collect(
    settings: RunSettings,
    pairings: Sequence[Pairing],
    num_tokens: int,
    budget_s: float | None,
    num_rows: int,
    shard: Shard,
    reporter: Reporter,
) -> dict[tuple[int, int], Evidence]:
    """A share of the pairings, a target's K = 0 being one of them; by target and job."""
    device = find_device(settings.machine.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    is_small = _are_small(pairings)
    torch.set_num_threads(settings.machine.threads or (1 if is_small else idle_threads()))
    download_missing([model for one in pairings for model in one.models], reporter.warn)
    evidence: dict[tuple[int, int], Evidence] = {}
    plans = list(plan_targets(settings, pairings, lambda _: "", read_shapes))
    num_sampled = sum(job.sampling.temperature > 0 for plan in plans for job in _jobs(plan))
    for number, plan in enumerate(plans):
        for warning in (*peer_warnings(plan), *plan.left_out):
            reporter.warn(warning)
        jobs = list(_jobs(plan))
        pairs = list(dict.fromkeys(job.pairing for job in jobs))
        own = {i for i, job in enumerate(jobs) if shard.has(pairs.index(job.pairing))}
        # K = 0 answers in every share, at no cost: what drafters answer is held to it.
        asked = [i for i, job in enumerate(jobs) if i in own or job.is_greedy_baseline]
        reporter.stage(f"{plan.target.name}: loading")
        pool = ModelPool(device, settings.machine.dtype)
        try:
            engines = open_engines(plan.target, device, settings, pool)
            rows = {name: num_rows if name == BUILTIN else 1 for name in engines}
            teacher = ReferenceModel(pool.load(plan.target.model).model)
            first = next(iter(engines.values()))
            if not is_small and device.type == "cpu" and settings.machine.threads is None:
                of = first.identity
                facts = of.content_sha256, of.dtype, first.name, rows[first.name]
                autotune = partial(autotune_for_plan, plan, first, rows[first.name])
                choose_threads(of.name, facts, autotune)
            began_s = time.monotonic()
            questions = list(_questions(plan, first, reporter, rows[first.name]))
            answers_s = (time.monotonic() - began_s) / shard.of
            collector = Collector(teacher, questions, seed=settings.seed)
            enough = num_tokens
            if budget_s is not None:
                who = EngineUnderTest(plan.target.name, first, first.baseline)
                for sampling in {job.sampling for job in jobs if job.sampling.temperature > 0}:
                    needed = collector.tokens_for_control(who, sampling, level_of_call(num_sampled))
                    enough = max(enough, math.ceil(min(needed, MOST_TOKENS)))
        except EXPECTED_ERRORS as error:
            evidence |= {(number, i): jobs[i].refused(error) for i in own}
            continue
        limit_s = math.inf if budget_s is None else budget_s / len(plans)
        num_each, told = _outlook(jobs, questions, answers_s, enough, limit_s, num_sampled)
        if shard.first == 0:
            reporter.info(told)
        amount = Amount(num_each, rows)
        found = examine(engines, collector, [jobs[i] for i in asked], amount, reporter.stage)
        evidence |= {(number, i): f for i, f in zip(asked, found, strict=True) if i in own}
        for note in dict.fromkeys(note for e in engines.values() for note in e.record.notes):
            reporter.warn(note)
    return evidence


def _jobs(plan: TargetPlan) -> Iterator[VerificationJob]:
    """The cells that a run of these settings has, a pairing's together and K = 0 first."""
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


def _outlook(
    jobs: Sequence[VerificationJob],
    questions: Sequence[VerificationPrompt],
    answers_s: float,
    enough: int,
    limit_s: float,
    num_sampled: int,
) -> tuple[int, str]:
    """Tokens to sample for each cell, `enough` or what fits into the limit; in words how long that
    takes and what it can find. `num_sampled` cells of the call share its false alarms."""
    sampled = [job for job in jobs if job.sampling.temperature > 0]
    greedy = len(jobs) - len(sampled)
    answers = sum(question.expected_tokens for question in questions)
    token_s = answers_s / max(answers, 1)
    drafted = sum(_SAMPLED if job.work.k else 1.0 for job in sampled)
    greedy_s, cells_s = token_s * greedy * answers, token_s * (drafted + _READ * len(sampled))
    affordable = (limit_s - greedy_s) / cells_s if cells_s else math.inf
    num_tokens = int(min(enough, max(affordable, FEWEST_TOKENS)))
    parts = []
    if greedy:
        parts.append(f"{len(questions)} greedy answers for each of {greedy} cells")
    if sampled:
        needed = f" of the needed {enough:,}" if num_tokens < enough else ""
        parts.append(f"{num_tokens:,}{needed} sampled tokens for each of {len(sampled)}")
    limit = f" (--time-budget: {duration(limit_s)})" if sampled and limit_s < math.inf else ""
    seconds = greedy_s + cells_s * num_tokens
    told = f"about {duration(seconds)}{limit}: {', '.join(parts)}, K = 0 included"
    if not sampled:
        return num_tokens, told
    power = power_of_call(num_tokens, num_sampled)
    return num_tokens, (
        f"{told}; 80% power to detect {power.shift:.1%} of tokens shifted (--detect 1% "
        "detects smaller faults and takes longer)"
    )


@dataclass
class _Conversation:
    """A prompt, as far as the target has answered it."""

    workload: str
    prompt: Prompt
    max_new_tokens: int
    history: list[Message] = field(default_factory=list)
    asked: list[VerificationPrompt] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.workload}/{self.prompt.id}"


def _questions(
    plan: TargetPlan, engine: Engine, reporter: Reporter, num_rows: int
) -> Iterator[VerificationPrompt]:
    """Every turn of every prompt that the target takes, after its own answers, each with a text
    that its answer resembles."""
    plan, left_out = without_long_prompts(plan, engine)
    for failure in left_out:
        reporter.warn(f"{failure.workload}: left out: {failure.reason}")
    every = [
        _Conversation(w.name, prompt, plan.max_new_tokens(w.name))
        for w in plan.workloads
        for prompt in plan.prompts(w)
    ]
    left, turn = every, 0
    while left:
        able: list[tuple[_Conversation, Request]] = []
        refused: list[tuple[_Conversation, SpecbenchError]] = []
        for one in left:
            one.history += one.prompt.turns[turn]
            try:
                ids = engine.tokenizer.prompt_ids(
                    one.history, one.prompt.tools, one.prompt.template_args
                )
            except (ModelError, WorkloadError) as error:
                refused.append((one, error))
            else:
                able.append((one, _greedy(ids, one.max_new_tokens)))
        left = []
        for (one, request), answer in _answered(engine, able, num_rows):
            if isinstance(answer, SpecbenchError):
                refused.append((one, answer))
                continue
            one.asked.append(
                VerificationPrompt(
                    id=f"{one.name}, turn {turn + 1}" if turn else one.name,
                    prompt_ids=request.prompt_ids,
                    max_new_tokens=one.max_new_tokens,
                    prediction_ids=nearly(answer.output_ids),
                    conversation=one.name if len(one.prompt.turns) > 1 else None,
                    answer=KnownOutput(engine.name, answer.output_ids),
                )
            )
            text = engine.tokenizer.text(answer.output_ids)
            one.history.append(Message(role="assistant", content=text))
            if turn + 1 < len(one.prompt.turns):
                left.append(one)
        for one, why in refused:
            if not turn:
                raise why
            told = first_line(why)
            reporter.warn(f"{one.name}, turn {turn + 1} and after are left out: {told}")
        turn += 1
    for one in every:
        yield from one.asked


def _answered(
    engine: Engine, asked: Sequence[tuple[_Conversation, Request]], num_rows: int
) -> "Iterator[tuple[tuple[_Conversation, Request], Result | ModelError]]":
    """The target's own answers, without drafts; where one is refused, each by itself."""
    load = Load(concurrency=num_rows)
    requests = [request for _, request in asked]
    try:
        results = engine.serve(requests, engine.baseline, load).results if asked else ()
        yield from zip(asked, results, strict=True)
    except ModelError:
        for one in asked:
            try:
                yield one, engine.generate(one[1], engine.baseline)
            except ModelError as error:
                yield one, error


def _greedy(prompt_ids: tuple[int, ...], length: int) -> Request:
    return Request(prompt_ids=prompt_ids, max_new_tokens=length, sampling=Sampling(), seed=0)


def nearly(answer: Sequence[int]) -> tuple[int, ...]:
    """A text with every eighth token replaced by the one before: drafts from it are accepted and
    refused, and their place is lost and found."""
    return tuple(answer[i - 1] if i % 8 == 7 else token for i, token in enumerate(answer))
