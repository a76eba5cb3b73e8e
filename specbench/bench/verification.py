"""Evidence for a whole `verify`: target after target, through the engines that a run has."""

from collections.abc import Iterator, Sequence

import torch

from specbench.bench.benchmark import peer_warnings
from specbench.bench.blocks import work_of
from specbench.bench.hub import look_for_hub
from specbench.bench.plan import TargetPlan
from specbench.bench.planning import plan_targets
from specbench.bench.this_process import default_threads, find_device, open_engines, read_shapes
from specbench.bench.watch import Watch
from specbench.engines.engine import Engine, EngineRequest
from specbench.engines.model_pool import ModelPool
from specbench.engines.peers import BASELINES
from specbench.engines.refusals import REFUSALS
from specbench.errors import ModelError, WorkloadError, first_line
from specbench.inputs.pairing import Pairing
from specbench.inputs.workloads import DEFAULT_MAX_NEW_TOKENS
from specbench.records import Message, Sampling
from specbench.settings import BUILTIN, RunSettings
from specbench.verify.collect import Collector, Question
from specbench.verify.evidence import Evidence
from specbench.verify.examine import Amount, Job, examine
from specbench.verify.teacher import Teacher


def collect_evidence(
    settings: RunSettings,
    pairings: Sequence[Pairing],
    watch: Watch,
    *,
    num_tokens: int,
    num_rows: int,
) -> list[Evidence]:
    """Every pairing at every K and temperature, K = 0 of its target before it.

    `num_tokens` are sampled for each, by the built-in decoder `num_rows` texts at once. Raises
    UsageError and WorkloadError before anything is loaded; a model that cannot run is evidence.
    """
    device = find_device(settings.machine.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(settings.machine.threads or default_threads(pairings))
    look_for_hub(pairings, watch.warn)
    evidence: list[Evidence] = []
    for plan in plan_targets(settings, pairings, lambda _: "", read_shapes):
        for warning in (*peer_warnings(plan), *plan.left_out):
            watch.warn(warning)
        jobs = list(_jobs(plan))
        watch.stage(f"{plan.target.name}: loading")
        pool = ModelPool(device, settings.machine.dtype)
        try:
            engines = open_engines(plan.target, device, settings, pool)
            teacher = Teacher(pool.load(plan.target.model).model)
            first = next(iter(engines.values()))
            questions = list(_questions(plan, first, watch))
        except REFUSALS as error:
            evidence += [job.refused(error) for job in jobs]
            continue
        collector = Collector(teacher, questions, seed=settings.seed)
        rows = {name: num_rows if name == BUILTIN else 1 for name in engines}
        evidence += examine(engines, collector, jobs, Amount(num_tokens, rows), watch.stage)
        for note in dict.fromkeys(note for e in engines.values() for note in e.record.notes):
            watch.warn(note)
    return evidence


def _jobs(plan: TargetPlan) -> Iterator[Job]:
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
                yield Job(pairing, drafter, cell.key.condition.engine, work_of(cell), cell.sampling)


def _questions(plan: TargetPlan, engine: Engine, watch: Watch) -> Iterator[Question]:
    """Every turn of every prompt; the turns before it are answered by the target itself.

    Each comes with a text that its answer resembles, so that drafters which want one draft from
    it. A later turn that the target cannot take is left out, and said to be.
    """
    for workload in plan.workloads:
        asked = plan.settings.sampling.max_new_tokens
        length = asked or workload.max_new_tokens or DEFAULT_MAX_NEW_TOKENS
        for prompt in plan.prompts(workload):
            conversation = f"{workload.name}/{prompt.id}"
            history: list[Message] = []
            for turn, messages in enumerate(prompt.turns):
                history += messages
                name = f"{conversation}, turn {turn + 1}" if turn else conversation
                try:
                    ids = engine.tokenizer.prompt_ids(history, prompt.tools, prompt.template_args)
                    answer = _answer(engine, ids, length)
                except (ModelError, WorkloadError) as error:
                    if not turn:
                        raise
                    watch.warn(f"{name} and after are left out: {first_line(error)}")
                    break
                yield Question(
                    id=name,
                    prompt_ids=ids,
                    max_new_tokens=length,
                    prediction_ids=nearly(answer),
                    conversation=conversation if len(prompt.turns) > 1 else None,
                )
                text = engine.tokenizer.text(answer)
                history.append(Message(role="assistant", content=text))


def _answer(engine: Engine, prompt_ids: tuple[int, ...], length: int) -> tuple[int, ...]:
    """The target's own, greedily and without drafts."""
    request = EngineRequest(
        prompt_ids=prompt_ids, max_new_tokens=length, sampling=Sampling(), seed=0
    )
    return engine.generate(request, engine.baseline).output_ids


def nearly(answer: Sequence[int]) -> tuple[int, ...]:
    """A text with every eighth token replaced by the one before: drafts from it are accepted and
    refused, and their place is lost and found."""
    return tuple(answer[i - 1] if i % 8 == 7 else token for i, token in enumerate(answer))
