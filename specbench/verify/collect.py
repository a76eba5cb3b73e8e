"""Has an engine of this process decode, and its texts read: evidence for the judge."""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from specbench.engines.engine import Engine, EngineRequest, EngineResult, Load, Work
from specbench.records import Sampling
from specbench.verify.evidence import (
    GreedyEvidence,
    JointCounts,
    SampledEvidence,
    Subject,
)
from specbench.verify.reader import AnsweredPrompt, Reader, Texts
from specbench.verify.teacher import Teacher

SMALL_VOCABULARY = 64  # up to here the joint distribution of a few tokens is enumerated, too
_MOST_CELLS = 4096
_MOST_JOINT_TOKENS = 4
_GREEDY = Sampling()


@runtime_checkable
class LossyByChoice(Protocol):
    """An engine or a wrapper of one that has options which change the distribution on purpose."""

    def lossy_option(self, work: Work) -> str | None:
        """The name of the option that `work` uses; None where it is lossless."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question(AnsweredPrompt):
    """A prompt to decode.

    Questions of one `conversation` are its turns in order: an engine may keep what it has read.
    """

    prediction_ids: tuple[int, ...] = ()  # a text that the answer may resemble
    conversation: str | None = None

    def asked(self, sampling: Sampling, seed: int) -> EngineRequest:
        return EngineRequest(
            prompt_ids=self.prompt_ids,
            max_new_tokens=self.max_new_tokens,
            sampling=sampling,
            seed=seed,
            conversation=self.conversation,
            prediction_ids=self.prediction_ids,
        )


class Examined(NamedTuple):
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

    def __init__(self, teacher: Teacher, questions: Sequence[Question], *, seed: int) -> None:
        self._teacher = teacher
        self._reader = Reader(teacher, seed=seed)
        self._questions = questions
        self._seed = seed

    def greedy_texts(self, who: Examined) -> Texts:
        """The answer to every question at temperature 0."""
        requests = [question.asked(_GREEDY, seed=0) for question in self._questions]
        return [result.output_ids for result in self._serve(who, requests)]

    def greedy(self, who: Examined, texts: Texts, baseline: Texts | None) -> GreedyEvidence:
        """Texts beside those of K = 0; without these, beside the target's best tokens."""
        return self._reader.greedy(
            who.at(0.0), self._questions, texts, baseline, eos_ids=who.engine.eos_ids
        )

    def sampled(self, who: Examined, sampling: Sampling, num_tokens: int) -> SampledEvidence:
        """The first `num_tokens` tokens of one sampled text after the other.

        The number is fixed beforehand and the last text is cut to it: stopping at a text's
        end would prefer some distributions to others.
        """
        return self._reader.sampled(
            who.at(sampling.temperature),
            sampling,
            self._sampled_texts(who, sampling, num_tokens),
            num_tokens,
            eos_ids=who.engine.eos_ids,
            joint=self._joint(who, sampling, num_tokens),
        )

    def _sampled_texts(
        self, who: Examined, sampling: Sampling, num_tokens: int
    ) -> Iterator[tuple[Question, tuple[int, ...]]]:
        """Every question in turn, again and again, each time with other noise.

        No more are decoded at once than `num_tokens` take, or as the engine has rows for.
        """
        left = num_tokens
        for repeat in itertools.count():
            asked = list(enumerate(self._questions))
            while asked:
                some = _begin(asked, left, who.num_rows)
                asked = asked[len(some) :]
                requests = [
                    question.asked(
                        sampling, self._draw(who, sampling, f"{i} {question.id}", repeat)
                    )
                    for i, question in some
                ]
                for (_, question), result in zip(some, self._serve(who, requests), strict=True):
                    left -= len(result.output_ids)
                    yield question, result.output_ids

    def _joint(self, who: Examined, sampling: Sampling, num_tokens: int) -> JointCounts | None:
        """Counts of the first few tokens of many texts, where all such texts can be listed."""
        V, question = self._teacher.vocab_size, self._questions[0]
        if V > SMALL_VOCABULARY:
            return None
        length = max(n for n in range(1, _MOST_JOINT_TOKENS + 1) if n == 1 or V**n <= _MOST_CELLS)
        probs_C = self._teacher.joint_probs(question.prompt_ids, length, sampling)
        requests = [
            EngineRequest(
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

    def _serve(self, who: Examined, requests: Sequence[EngineRequest]) -> Sequence[EngineResult]:
        return who.engine.serve(requests, who.work, Load(concurrency=who.num_rows)).results

    def _draw(self, who: Examined, sampling: Sampling, what: str, repeat: int) -> int:
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


def _begin(
    asked: Sequence[tuple[int, Question]], num_tokens: int, num_rows: int
) -> Sequence[tuple[int, Question]]:
    """The first questions: whole conversations, for so many tokens and rows at least."""
    most = 0
    for at, (_, question) in enumerate(asked):
        before = asked[at - 1][1].conversation if at else None
        is_new = question.conversation is None or question.conversation != before
        if is_new and most >= num_tokens and at >= num_rows:
            return asked[:at]
        most += question.max_new_tokens
    return asked
