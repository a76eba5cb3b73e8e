"""Has an engine of this process decode, and its texts read: evidence for the judge."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from specbench.engines.engine import Engine, Load, Work
from specbench.records import Request, Result, Sampling
from specbench.verify.evidence import (
    GreedyEvidence,
    JointCounts,
    SampledEvidence,
    Subject,
)
from specbench.verify.reader import AnsweredPrompt, Reader, Texts
from specbench.verify.statistics import tokens_for_control
from specbench.verify.teacher import ReferenceModel

SMALL_VOCABULARY = 64  # up to here the joint distribution of a few tokens is enumerated, too
_MOST_CELLS = 4096
_MOST_JOINT_TOKENS = 4
_AT_ONCE = 2**16  # tokens that are sampled before any is read
_GREEDY = Sampling()


@runtime_checkable
class LossyByChoice(Protocol):
    """An engine or a wrapper of one that has options which change the distribution on purpose."""

    def lossy_option(self, work: Work) -> str | None:
        """The name of the option that `work` uses; None where it is lossless."""


class Answered(NamedTuple):
    """An answer, and who gave it."""

    engine: str
    output_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class VerificationPrompt(AnsweredPrompt):
    """A prompt to decode; those of one `conversation` are its turns in order."""

    prediction_ids: tuple[int, ...] = ()  # a text that the answer may resemble
    conversation: str | None = None
    answer: Answered | None = None  # the greedy one at K = 0, where it is known

    @property
    def expected_tokens(self) -> int:
        """About how long an answer will be."""
        return self.max_new_tokens if self.answer is None else len(self.answer.output_ids)

    def asked(self, sampling: Sampling, seed: int, repeat: int = 0) -> Request:
        """`repeat`: how often it was asked before; each time it is another conversation."""
        return Request(
            prompt_ids=self.prompt_ids,
            max_new_tokens=self.max_new_tokens,
            sampling=sampling,
            seed=seed,
            conversation=None if self.conversation is None else f"{self.conversation} {repeat}",
            prediction_ids=self.prediction_ids,
        )


class EngineUnderTest(NamedTuple):
    """Who is examined: an engine doing `work` for a pairing, `num_rows` requests at once."""

    pairing: str
    engine: Engine
    work: Work
    num_rows: int = 1

    def at(self, temperature: float) -> Subject:
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
    """Examines engines over one target."""

    def __init__(
        self, teacher: ReferenceModel, questions: Sequence[VerificationPrompt], *, seed: int
    ) -> None:
        self._teacher = teacher
        self._reader = Reader(teacher, seed=seed)
        self._questions = questions
        self._seed = seed

    def greedy_texts(self, who: EngineUnderTest) -> Texts:
        """The answer to every question at temperature 0; at K = 0 known answers are taken, except
        for turns of a conversation."""
        known = {
            i: question.answer.output_ids
            for i, question in enumerate(self._questions)
            if question.answer is not None
            and question.answer.engine == who.engine.name
            and question.conversation is None
            and not who.work.k
        }
        left = [i for i in range(len(self._questions)) if i not in known]
        requests = [self._questions[i].asked(_GREEDY, seed=0) for i in left]
        results = self._serve(who, requests) if requests else ()
        known |= {i: result.output_ids for i, result in zip(left, results, strict=True)}
        return [known[i] for i in range(len(self._questions))]

    def greedy(self, who: EngineUnderTest, texts: Texts, baseline: Texts | None) -> GreedyEvidence:
        """Texts beside those of K = 0; without these, beside the target's best tokens."""
        return self._reader.greedy(
            who.at(0.0), self._questions, texts, baseline, eos_ids=who.engine.eos_ids
        )

    def sampled(self, who: EngineUnderTest, sampling: Sampling, num_tokens: int) -> SampledEvidence:
        """The first `num_tokens` tokens of one sampled text after the other; the last text is cut,
        so no length is preferred."""
        return self._reader.sampled(
            who.at(sampling.temperature),
            sampling,
            self._sampled_texts(who, sampling, num_tokens),
            num_tokens,
            eos_ids=who.engine.eos_ids,
            joint=self._joint(who, sampling, num_tokens),
        )

    def tokens_for_control(self, who: EngineUnderTest, sampling: Sampling, level: float) -> float:
        """About how many sampled tokens would show a lower temperature at a level, by the target's
        distributions."""
        texts = [(q, q.answer.output_ids) for q in self._questions if q.answer is not None]
        num, subject = sum(len(ids) for _, ids in texts), who.at(sampling.temperature)
        along = self._reader.sampled(subject, sampling, texts, num, eos_ids=who.engine.eos_ids)
        num_others = len(along.log_likelihoods) - 1
        return tokens_for_control(along.colder, len(along.surprise_N), num_others, level)

    def _sampled_texts(
        self, who: EngineUnderTest, sampling: Sampling, num_tokens: int
    ) -> Iterator[tuple[VerificationPrompt, tuple[int, ...]]]:
        """Every question in turn, again and again, each time with other noise.

        No more are decoded at once than `num_tokens` are expected to take, or as the engine has
        rows for.
        """
        begin, left = 0, num_tokens
        while True:
            end = _end(self._questions, begin, min(left, _AT_ONCE), who.num_rows)
            some = [divmod(place, len(self._questions)) for place in range(begin, end)]
            asked = [
                self._questions[i].asked(
                    sampling,
                    self._draw(who, sampling, f"{i} {self._questions[i].id}", repeat),
                    repeat,
                )
                for repeat, i in some
            ]
            for (_, i), result in zip(some, self._serve(who, asked), strict=True):
                left -= len(result.output_ids)
                yield self._questions[i], result.output_ids
            begin = end

    def _joint(
        self, who: EngineUnderTest, sampling: Sampling, num_tokens: int
    ) -> JointCounts | None:
        """Counts of the first few tokens of many texts, where all such texts can be listed."""
        V, question = self._teacher.vocab_size, self._questions[0]
        if V > SMALL_VOCABULARY:
            return None
        length = max(n for n in range(1, _MOST_JOINT_TOKENS + 1) if n == 1 or V**n <= _MOST_CELLS)
        probs_C = self._teacher.joint_probs(question.prompt_ids, length, sampling)
        requests = [
            Request(
                prompt_ids=question.prompt_ids,
                max_new_tokens=length + who.work.k + 1,  # so that rounds may draft all they want
                sampling=sampling,
                seed=self._draw(who, sampling, "joint distribution", i),
                stop_at_eos=False,
                prediction_ids=question.prediction_ids,
            )
            for i in range(num_tokens // length)
        ]
        texts = np.array([r.output_ids[:length] for r in self._serve(who, requests)])
        cells = texts @ (V ** np.arange(length - 1, -1, -1))
        observed_C = np.bincount(cells, minlength=len(probs_C)).astype(np.float64)
        return JointCounts(observed_C=observed_C, probability_C=probs_C.numpy(), num_tokens=length)

    def _serve(self, who: EngineUnderTest, requests: Sequence[Request]) -> Sequence[Result]:
        return who.engine.serve(requests, who.work, Load(concurrency=who.num_rows)).results

    def _draw(self, who: EngineUnderTest, sampling: Sampling, what: str, repeat: int) -> int:
        """A seed that no other request of this call has."""
        parts = (
            self._seed,
            who.pairing,
            who.engine.name,
            who.work.method,
            who.work.k,
            sampling.temperature,
            what,
            repeat,
        )
        digest = hashlib.sha256("|".join(map(str, parts)).encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1


def _end(
    questions: Sequence[VerificationPrompt], begin: int, num_tokens: int, num_rows: int
) -> int:
    """Where to stop from a place of the repeated questions: whole conversations, that many tokens
    and rows."""
    end, expected = begin, 0
    while expected < num_tokens or end - begin < num_rows or not _is_new(questions, end):
        expected += questions[end % len(questions)].expected_tokens
        end += 1
    return end


def _is_new(questions: Sequence[VerificationPrompt], place: int) -> bool:
    """Whether no conversation goes on there."""
    at = place % len(questions)
    own = questions[at].conversation
    return own is None or at == 0 or own != questions[at - 1].conversation
