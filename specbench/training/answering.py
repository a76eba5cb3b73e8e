"""Lets the target answer: many rows of the built-in decoder, some greedy, some sampled."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from specbench.decode.clock import make_clock
from specbench.decode.decoder import Decoder
from specbench.decode.drafter import NoDrafter
from specbench.decode.policy import FixedK
from specbench.decode.sampling import Sampler
from specbench.forward.runner import Runner
from specbench.records import Request, Sampling
from specbench.training.prompts import Question
from specbench.training.texts import Text, TextFile

MOST_HELD_OUT = 200
_CHUNK = 2  # times as many requests as rows are stored at once
_RUN = 64  # answers in a row at one temperature


class Job(NamedTuple):
    """One answer that is wanted."""

    question: Question
    temperature: float
    seed: int


def plan_answers(
    questions: Sequence[Question], temperatures: Sequence[float], most: int, seed: int
) -> list[Job]:
    """Held-out questions once, greedily; then `most` others, at each temperature in turn.

    With fewer questions than that, they are asked again as long as answers differ: at
    temperatures above 0. Fewer answers are the first ones of more.
    """
    held_out = [q for q in questions if q.is_held_out][:MOST_HELD_OUT]
    others = [q for q in questions if not q.is_held_out]
    jobs = [Job(question, 0.0, seed) for question in held_out]
    sampled = [t for t in temperatures if t > 0]
    for i in range(most):
        turn, place = divmod(i, len(others))
        if turn and not sampled:
            break
        allowed = temperatures if turn == 0 else sampled
        jobs.append(Job(others[place], allowed[(i // _RUN) % len(allowed)], seed + i))
    return jobs


def answer(
    runner: Runner,
    eos_ids: Sequence[int],
    jobs: Sequence[Job],
    file: TextFile,
    *,
    max_new_tokens: int,
    num_rows: int,
    told: Callable[[int, int], None],
) -> None:
    """Add the answers that the file lacks; `told` hears how many of them are there."""
    decoder = Decoder(runner, NoDrafter(), eos_ids=eos_ids, clock=make_clock(runner.device))
    while len(file.texts) < len(jobs):
        told(len(file.texts), len(jobs))
        first = jobs[len(file.texts)]
        waiting = islice(jobs, len(file.texts), len(file.texts) + num_rows * _CHUNK)
        chunk: list[Job] = []
        for job in waiting:
            if job.temperature != first.temperature:
                break
            chunk.append(job)
        requests = [
            Request(
                prompt_ids=job.question.ids,
                max_new_tokens=min(max_new_tokens, _room(runner, job)),
                seed=job.seed,
            )
            for job in chunk
        ]
        sampler = Sampler(Sampling(temperature=first.temperature))
        rows = min(num_rows, len(chunk))
        results = decoder.serve(requests, sampler, FixedK(0), num_rows=rows).results
        file.add(
            [
                Text(
                    (*job.question.ids, *result.output_ids),
                    len(job.question.ids),
                    job.question.is_held_out,
                )
                for job, result in zip(chunk, results, strict=True)
            ]
        )
    told(len(jobs), len(jobs))


def _room(runner: Runner, job: Job) -> int:
    limit = runner.max_position
    return 2**30 if limit is None else limit - len(job.question.ids)
