"""Chooses the number of CPU threads: the fastest of 1, half and all of the physical cores.

Numbers above the count of idle cores are not tried.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import cast

import torch

from specbench import __version__
from specbench.bench.plan import TargetPlan, peers_of
from specbench.engines.engine import Engine, Load, Work
from specbench.forward.autotune import (
    KernelCandidate,
    Outcome,
    Timing,
    fastest,
    find_choice,
    keep_choice,
)
from specbench.models.library_errors import EXPECTED_ERRORS
from specbench.probes import load as host
from specbench.probes.environment import cpu_model
from specbench.probes.load import HostLoad, idle_cores, others_fact, physical_cores
from specbench.records import Contender, KernelChoice, Request, Sampling
from specbench.settings import BUILTIN

TIMED_TOKENS = 12  # per output; at most 7 outputs per K and number of threads
PROMPT_TOKENS = 64

# The key of a choice, in addition to hardware and versions: the sha256 of the target's weights and
# their dtype, the engine, and the concurrency.
Facts = tuple[str, str, str, int]


def candidates(load: HostLoad) -> tuple[list[int], list[Contender]]:
    """Thread counts to try, ascending, and those left out because other processes use cores."""
    num_cores, idle = physical_cores(load.num_cores), idle_cores(load)
    numbers = sorted({1, max(1, num_cores // 2), num_cores})
    left_out = [Contender(name=str(n), refusal=others_fact(load)) for n in numbers if n > idle]
    return [n for n in numbers if n <= idle], left_out


def idle_threads() -> int:
    """The largest thread count to try, for work that is not timed."""
    return candidates(host.host_load())[0][-1]


def choose_threads(
    target: str, facts: Facts, autotune: Callable[[Sequence[int]], Outcome]
) -> KernelChoice:
    """Set torch's number of threads to the cached choice for these facts, else autotune it.

    If nothing can be timed, all idle cores are used, and the choice is not cached.
    """
    load = host.host_load()
    numbers, left_out = candidates(load)
    machine = (cpu_model(), physical_cores(load.num_cores), torch.__version__, __version__)
    key = "; ".join(map(repr, ("threads", *facts, tuple(numbers), *machine)))
    subject = f"threads of {target}"
    torch.set_num_threads(numbers[-1])
    choice = KernelChoice(key=key, subject=subject, chosen=str(numbers[-1]))
    if len(numbers) > 1:
        if known := find_choice(key):
            choice = replace(known, subject=subject)
        else:
            winner, contenders = autotune(numbers)
            if winner is not None:
                choice = replace(choice, chosen=winner, contenders=tuple(contenders))
                keep_choice(choice)
    torch.set_num_threads(int(choice.chosen))
    return replace(choice, contenders=(*choice.contenders, *left_out))


def autotune_threads(
    engine: Engine, works: Sequence[Work], text: str, concurrency: int, numbers: Sequence[int]
) -> Outcome:
    """Decode a few tokens of each work with each number of threads, interleaved.

    Works that the engine cannot run are left out; if all are, the outcome has no winner.
    """
    request = Request(
        prompt_ids=engine.tokenizer.ids(text)[:PROMPT_TOKENS] or engine.eos_ids[:1],
        max_new_tokens=TIMED_TOKENS,
        sampling=Sampling(),
        seed=0,
        stop_at_eos=False,
    )

    def seconds(work: Work) -> float:
        served = engine.serve([request] * concurrency, work, Load(concurrency=concurrency))
        return sum(result.decode_s or result.total_s or 0.0 for result in served.results)

    runnable = []
    for work in works:
        with suppress(*EXPECTED_ERRORS):
            seconds(work)
            runnable.append(work)

    def decode(num_threads: int) -> float:
        torch.set_num_threads(num_threads)
        return sum(map(seconds, runnable))

    runs = [KernelCandidate(str(n), partial(decode, n)) for n in numbers if runnable]
    return fastest(runs, Timing(seconds=lambda run: cast("float", run())))


def autotune_for_plan(
    plan: TargetPlan, engine: Engine, concurrency: int, numbers: Sequence[int]
) -> Outcome:
    """Autotune on the first prompt, with K = 0 and the first loadable pairing at its largest K."""
    works = [engine.baseline]
    for pairing in plan.pairings:
        drafter = pairing.drafter
        methods = (drafter.method,) if engine.name == BUILTIN else peers_of(drafter)
        k = plan.within_reach(drafter.name, plan.largest_k(pairing))
        if not methods or not k:
            continue
        try:
            engine.add_drafter(drafter)
        except EXPECTED_ERRORS:  # the run reports it later, when it loads the drafter
            engine.remove_drafter(drafter.name)
        else:
            works.append(Work(drafter=drafter.name, method=methods[0], k=k))
            break
    prompt = plan.prompts(plan.workloads[0])[0]
    text = "\n".join(message.content for message in prompt.turns[0])
    try:
        return autotune_threads(engine, works, text, concurrency, numbers)
    finally:
        for work in works[1:]:
            engine.remove_drafter(work.drafter)
