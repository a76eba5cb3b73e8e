"""Collects evidence about engines in this process: each decodes, the target scores its outputs."""

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from specbench.engines.engine import Engine, Load, Work
from specbench.errors import ModelError, first_line
from specbench.inputs.pairing import DrafterSpec
from specbench.models.library_errors import EXPECTED_ERRORS
from specbench.records import Request, Result, Sampling
from specbench.verify.evidence import (
    Evidence,
    FailedEvidence,
    GreedyEvidence,
    JointCounts,
    SampledEvidence,
    Subject,
)
from specbench.verify.reference_model import ReferenceModel
from specbench.verify.scorer import AnsweredPrompt, Texts, TextScorer
from specbench.verify.statistics import tokens_for_control

SMALL_VOCABULARY = 64  # up to this size the joint distribution of a few tokens is also tested
_MAX_OUTCOMES = 4096
_MAX_JOINT_TOKENS = 4
_MAX_BATCH_TOKENS = 2**16  # sampled before they are scored
_GREEDY = Sampling()


@runtime_checkable
class LossyByChoice(Protocol):
    """An engine, or a wrapper of one, with options that change the distribution on purpose."""

    def lossy_option(self, work: Work) -> str | None:
        """The name of the lossy option that `work` uses; None if it is lossless."""


class KnownOutput(NamedTuple):
    """An output, and the engine that decoded it."""

    engine: str
    output_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class VerificationPrompt(AnsweredPrompt):
    """A prompt to decode; prompts with the same `conversation` are its turns, in order."""

    prediction_ids: tuple[int, ...] = ()  # a text that the output may resemble
    conversation: str | None = None
    answer: KnownOutput | None = None  # the greedy output at K = 0, if it is known

    @property
    def expected_tokens(self) -> int:
        """The estimated number of tokens of an output."""
        return self.max_new_tokens if self.answer is None else len(self.answer.output_ids)

    def request(self, sampling: Sampling, seed: int, repeat: int = 0) -> Request:
        """The request of one repeat (from 0); each repeat is a separate conversation."""
        return Request(
            prompt_ids=self.prompt_ids,
            max_new_tokens=self.max_new_tokens,
            sampling=sampling,
            seed=seed,
            conversation=None if self.conversation is None else f"{self.conversation} {repeat}",
            prediction_ids=self.prediction_ids,
        )


class EngineUnderTest(NamedTuple):
    """An engine that does `work` for a pairing, with `num_rows` concurrent requests."""

    pairing: str
    engine: Engine
    work: Work
    num_rows: int = 1

    def subject(self, temperature: float) -> Subject:
        """The engine at a temperature, as evidence names it."""
        lossy = None
        if isinstance(self.engine, LossyByChoice):
            lossy = self.engine.lossy_option(self.work)
        return Subject(
            pairing=self.pairing,
            engine=self.engine.name,
            method=self.work.method,
            num_speculative_tokens=self.work.k,
            temperature=temperature,
            lossy=lossy,
        )


class Collector:
    """Collects evidence about engines that decode one target."""

    def __init__(
        self, reference: ReferenceModel, prompts: Sequence[VerificationPrompt], *, seed: int
    ) -> None:
        self._reference = reference
        self._scorer = TextScorer(reference, seed=seed)
        self._prompts = prompts
        self._seed = seed

    def greedy_texts(self, candidate: EngineUnderTest) -> Texts:
        """The greedy output of every prompt. At K = 0, known outputs are reused, except those of
        conversations."""
        known = {
            i: prompt.answer.output_ids
            for i, prompt in enumerate(self._prompts)
            if prompt.answer is not None
            and prompt.answer.engine == candidate.engine.name
            and prompt.conversation is None
            and not candidate.work.k
        }
        missing = [i for i in range(len(self._prompts)) if i not in known]
        requests = [self._prompts[i].request(_GREEDY, seed=0) for i in missing]
        results = self._serve(candidate, requests) if requests else ()
        known |= {i: result.output_ids for i, result in zip(missing, results, strict=True)}
        return [known[i] for i in range(len(self._prompts))]

    def greedy(
        self, candidate: EngineUnderTest, texts: Texts, baseline: Texts | None
    ) -> GreedyEvidence:
        """Compare texts with those at K = 0; without a baseline, with the target's best tokens."""
        return self._scorer.greedy(
            candidate.subject(0.0), self._prompts, texts, baseline, eos_ids=candidate.engine.eos_ids
        )

    def sampled(
        self, candidate: EngineUnderTest, sampling: Sampling, num_tokens: int
    ) -> SampledEvidence:
        """Sample texts and score their first `num_tokens` tokens, in order. The last text is cut,
        because leaving it out would favor short texts."""
        return self._scorer.sampled(
            candidate.subject(sampling.temperature),
            sampling,
            self._sampled_texts(candidate, sampling, num_tokens),
            num_tokens,
            eos_ids=candidate.engine.eos_ids,
            joint=self._joint(candidate, sampling, num_tokens),
        )

    def tokens_for_control(
        self, candidate: EngineUnderTest, sampling: Sampling, level: float
    ) -> float:
        """The estimated number of sampled tokens that reveal a lower temperature at significance
        level `level`, from the target's distributions along the known outputs."""
        texts = [(p, p.answer.output_ids) for p in self._prompts if p.answer is not None]
        num_tokens = sum(len(ids) for _, ids in texts)
        subject = candidate.subject(sampling.temperature)
        scored = self._scorer.sampled(
            subject, sampling, texts, num_tokens, eos_ids=candidate.engine.eos_ids
        )
        num_others = len(scored.log_likelihoods) - 1
        return tokens_for_control(scored.colder, len(scored.surprise_N), num_others, level)

    def _sampled_texts(
        self, candidate: EngineUnderTest, sampling: Sampling, num_tokens: int
    ) -> Iterator[tuple[VerificationPrompt, tuple[int, ...]]]:
        """An endless stream of sampled texts for all prompts, repeated with different seeds.

        A batch has as many requests as `num_tokens` are expected to need, but at least as many as
        the engine decodes concurrently.
        """
        begin, left = 0, num_tokens
        while True:
            end = _end(self._prompts, begin, min(left, _MAX_BATCH_TOKENS), candidate.num_rows)
            batch = [divmod(index, len(self._prompts)) for index in range(begin, end)]
            requests = [
                self._prompts[i].request(
                    sampling,
                    self._seed_of(candidate, sampling, f"{i} {self._prompts[i].id}", repeat),
                    repeat,
                )
                for repeat, i in batch
            ]
            for (_, i), result in zip(batch, self._serve(candidate, requests), strict=True):
                left -= len(result.output_ids)
                yield self._prompts[i], result.output_ids
            begin = end

    def _joint(
        self, candidate: EngineUnderTest, sampling: Sampling, num_tokens: int
    ) -> JointCounts | None:
        """Counts of the first few tokens of many texts; None if the vocabulary is too large."""
        V, prompt = self._reference.vocab_size, self._prompts[0]
        if V > SMALL_VOCABULARY:
            return None
        length = max(n for n in range(1, _MAX_JOINT_TOKENS + 1) if n == 1 or V**n <= _MAX_OUTCOMES)
        probs_C = self._reference.joint_probs(prompt.prompt_ids, length, sampling)
        requests = [
            Request(
                prompt_ids=prompt.prompt_ids,
                max_new_tokens=length + candidate.work.k + 1,  # so that rounds draft up to K
                sampling=sampling,
                seed=self._seed_of(candidate, sampling, "joint distribution", i),
                stop_at_eos=False,
                prediction_ids=prompt.prediction_ids,
            )
            for i in range(num_tokens // length)
        ]
        texts = np.array([r.output_ids[:length] for r in self._serve(candidate, requests)])
        # C: the joint outcomes, each a number in base V whose digits are the token ids.
        outcomes = texts @ (V ** np.arange(length - 1, -1, -1))
        observed_C = np.bincount(outcomes, minlength=len(probs_C)).astype(np.float64)
        return JointCounts(observed_C=observed_C, probability_C=probs_C.numpy(), num_tokens=length)

    def _serve(self, candidate: EngineUnderTest, requests: Sequence[Request]) -> Sequence[Result]:
        return candidate.engine.serve(
            requests, candidate.work, Load(concurrency=candidate.num_rows)
        ).results

    def _seed_of(
        self, candidate: EngineUnderTest, sampling: Sampling, use: str, repeat: int
    ) -> int:
        """A seed that is unique among the requests of the call."""
        parts = (
            self._seed,
            candidate.pairing,
            candidate.engine.name,
            candidate.work.method,
            candidate.work.k,
            sampling.temperature,
            use,
            repeat,
        )
        digest = hashlib.sha256("|".join(map(str, parts)).encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1


def _end(prompts: Sequence[VerificationPrompt], begin: int, num_tokens: int, num_rows: int) -> int:
    """The index after the last prompt of a batch, in the endlessly repeated prompts.

    The batch has whole conversations, at least `num_tokens` expected tokens and at least `num_rows`
    requests.
    """
    end, expected = begin, 0
    while expected < num_tokens or end - begin < num_rows or not _starts_conversation(prompts, end):
        expected += prompts[end % len(prompts)].expected_tokens
        end += 1
    return end


def _starts_conversation(prompts: Sequence[VerificationPrompt], index: int) -> bool:
    """Whether this prompt does not continue the conversation of the one before it."""
    i = index % len(prompts)
    conversation = prompts[i].conversation
    return conversation is None or i == 0 or conversation != prompts[i - 1].conversation


class VerificationJob(NamedTuple):
    """The work of one engine for a pairing at one temperature; `drafter` is None at K = 0."""

    pairing: str
    drafter: DrafterSpec | None
    engine: str
    work: Work
    sampling: Sampling

    @property
    def is_greedy_baseline(self) -> bool:
        return self.drafter is None and self.sampling.temperature == 0

    def failed(self, error: Exception) -> FailedEvidence:
        """The evidence for a job that an engine could not run. Whether it is lossy is read from
        the drafter's configuration, because the engine might not have loaded the drafter."""
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
    """The number of tokens to sample per job, and of concurrent requests per engine."""

    num_tokens: int
    num_rows: Mapping[str, int]


def examine(
    engines: Mapping[str, Engine],
    collector: Collector,
    jobs: Sequence[VerificationJob],
    amount: Amount,
    stage: Callable[[str], None],
) -> list[Evidence]:
    """The evidence for every job, in order; an error of an engine is evidence as well.

    The jobs of a pairing must be consecutive, and those at K = 0 must come first.
    """
    baselines: dict[str, Texts] = {}
    evidence: list[Evidence] = []
    for pairing, grouped in itertools.groupby(jobs, lambda job: job.pairing):
        group = list(grouped)
        drafter = group[0].drafter
        errors: dict[str, Exception] = {}
        for name in dict.fromkeys(job.engine for job in group):
            try:
                if drafter is not None:
                    engines[name].add_drafter(drafter)
            except EXPECTED_ERRORS as error:
                errors[name] = error
        for job in group:
            candidate = EngineUnderTest(
                pairing, engines[job.engine], job.work, amount.num_rows[job.engine]
            )
            method = f"{job.work.method} " if job.work.k else ""
            stage(f"{pairing}: {method}K={job.work.k} T={job.sampling.temperature:g}")
            try:
                if job.engine in errors:
                    raise errors[job.engine]
                evidence.append(_evidence(collector, candidate, job, amount.num_tokens, baselines))
            except EXPECTED_ERRORS as error:
                evidence.append(job.failed(error))
        if drafter is not None:
            for engine in engines.values():
                engine.remove_drafter(drafter.name)
    return evidence


def _evidence(
    collector: Collector,
    candidate: EngineUnderTest,
    job: VerificationJob,
    num_tokens: int,
    baselines: dict[str, Texts],
) -> Evidence:
    if job.sampling.temperature > 0:
        return collector.sampled(candidate, job.sampling, num_tokens)
    texts = collector.greedy_texts(candidate)
    if job.drafter is None:
        baselines[job.engine] = texts
        return collector.greedy(candidate, texts, None)
    if job.engine not in baselines:
        raise ModelError(f"{job.engine} could not decode at K=0, so there is nothing to compare")
    return collector.greedy(candidate, texts, baselines[job.engine])
