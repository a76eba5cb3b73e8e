"""One target's share of a call: its engines, K = 0 first, then drafter after drafter."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from specbench.engines.engine import Engine, Work
from specbench.engines.refusals import REFUSALS
from specbench.errors import ModelError, first_line
from specbench.inputs.pairing import DrafterSpec
from specbench.records import Sampling
from specbench.verify.collect import Collector, EngineUnderTest
from specbench.verify.evidence import Evidence, FailedEvidence, Subject
from specbench.verify.reader import Texts


class VerificationJob(NamedTuple):
    """One engine doing `work` at one temperature; no drafter at K = 0."""

    pairing: str
    drafter: DrafterSpec | None
    engine: str
    work: Work
    sampling: Sampling

    @property
    def is_greedy_baseline(self) -> bool:
        return self.drafter is None and self.sampling.temperature == 0

    def refused(self, error: Exception) -> FailedEvidence:
        """As evidence. Whether it is lossy follows from its drafter, which no engine may have."""
        rule = self.drafter.lossy if self.drafter else None
        subject = Subject(
            pairing=self.pairing,
            engine=self.engine,
            method=self.work.method,
            num_speculative_tokens=self.work.k,
            temperature=self.sampling.temperature,
            lossy=str(rule) if rule else None,
        )
        return FailedEvidence(subject=subject, reason=first_line(error))


class Amount(NamedTuple):
    """Tokens sampled for each job, and requests that an engine decodes at once."""

    num_tokens: int
    num_rows: Mapping[str, int]


def examine(
    engines: Mapping[str, Engine],
    collector: Collector,
    jobs: Sequence[VerificationJob],
    amount: Amount,
    stage: Callable[[str], None],
) -> list[Evidence]:
    """Evidence for every job in order, a pairing's together and K = 0 first; a refusal is
    evidence."""
    baselines: dict[str, Texts] = {}
    found: list[Evidence] = []
    for pairing, group in itertools.groupby(jobs, lambda job: job.pairing):
        own = list(group)
        refused: dict[str, Exception] = {}
        for name in dict.fromkeys(job.engine for job in own):
            drafter = own[0].drafter
            try:
                if drafter is not None:
                    engines[name].add_drafter(drafter)
            except REFUSALS as error:
                refused[name] = error
        for job in own:
            who = EngineUnderTest(
                pairing, engines[job.engine], job.work, amount.num_rows[job.engine]
            )
            method = f"{job.work.method} " if job.work.k else ""
            stage(f"{pairing}: {method}K={job.work.k} T={job.sampling.temperature:g}")
            try:
                if job.engine in refused:
                    raise refused[job.engine]
                found.append(_evidence(collector, who, job, amount.num_tokens, baselines))
            except REFUSALS as error:
                found.append(job.refused(error))
        if own[0].drafter is not None:
            for engine in engines.values():
                engine.remove_drafter(own[0].drafter.name)
    return found


def _evidence(
    collector: Collector,
    who: EngineUnderTest,
    job: VerificationJob,
    num_tokens: int,
    baselines: dict[str, Texts],
) -> Evidence:
    if job.sampling.temperature > 0:
        return collector.sampled(who, job.sampling, num_tokens)
    texts = collector.greedy_texts(who)
    if job.drafter is None:
        baselines[job.engine] = texts
        return collector.greedy(who, texts, None)
    if job.engine not in baselines:
        raise ModelError(f"{job.engine} could not decode at K = 0, so there is nothing to compare")
    return collector.greedy(who, texts, baselines[job.engine])
