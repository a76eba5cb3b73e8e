"""Decodes, and reads the texts along the target: evidence for the judge.

Anything that takes prompts and gives tokens back can be examined; the target that its texts
are read along is always ours. Shape suffixes: N tokens, V vocabulary.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from specbench.engines.engine import Engine, EngineRequest, EngineResult, Load, Work
from specbench.records import Sampling
from specbench.verify.distribution import (
    allowed,
    log_likelihood,
    placed,
    surprise,
    token_distribution,
)
from specbench.verify.evidence import (
    Divergence,
    Floats,
    GreedyEvidence,
    JointCounts,
    SampledEvidence,
    Subject,
)
from specbench.verify.teacher import Teacher, edge_slack

TEMPERATURES = (0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)  # as shares of the one asked for
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
class Question:
    """A prompt to decode; `id` names workload, prompt and turn.

    Questions of one `conversation` are its turns in order: an engine may keep what it has read.
    """

    id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
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


Texts = Sequence[tuple[int, ...]]


class Collector:
    """Examines engines over one target."""

    def __init__(self, teacher: Teacher, questions: Sequence[Question], *, seed: int) -> None:
        self._teacher = teacher
        self._questions = questions
        self._seed = seed

    def greedy_texts(self, who: Examined) -> Texts:
        """The answer to every question at temperature 0."""
        requests = [question.asked(_GREEDY, seed=0) for question in self._questions]
        return [result.output_ids for result in self._serve(who, requests)]

    def greedy(self, who: Examined, texts: Texts, baseline: Texts | None) -> GreedyEvidence:
        """Texts beside those of K = 0; without these, beside the target's best tokens.

        After a first difference the rest of a text is held to the target's best tokens, too. So
        is its end, wherever there is no text of K = 0 to hold it to.
        """
        divergences: list[Divergence] = []
        eos_ids = frozenset(who.engine.eos_ids)
        for i, (question, text) in enumerate(zip(self._questions, texts, strict=True)):
            asked = (question.id, question.prompt_ids)
            first = None
            if baseline is not None:
                first = self._teacher.divergence(*asked, baseline[i], text)
                if first is None:
                    continue
            found = self._teacher.departures(*asked, text)
            if first is not None:
                found = [first, *(d for d in found if d.position > first.position)]
            if not _ends_well(text, question.max_new_tokens, eos_ids):
                end = _end(text, question.max_new_tokens, eos_ids)
                if not found or found[-1].position < end:  # else it is told already
                    found.append(self._teacher.ending(*asked, text, end))
            divergences += found
        return GreedyEvidence(
            subject=who.at(0.0),
            num_prompts=len(self._questions),
            num_tokens=sum(map(len, texts)),
            divergences=tuple(divergences),
        )

    def sampled(self, who: Examined, sampling: Sampling, num_tokens: int) -> SampledEvidence:
        """The first `num_tokens` tokens of one sampled text after the other.

        The number is fixed beforehand and the last text is cut to it: stopping at a text's
        end would prefer some distributions to others.
        """
        eos_ids = frozenset(who.engine.eos_ids)
        readings: list[_Reading] = []
        misshapen: list[str] = []
        left = num_tokens
        for question, text in self._sampled_texts(who, sampling):
            if not _ends_well(text, question.max_new_tokens, eos_ids):
                misshapen.append(question.id)
            read = self._read(question, text[:left], sampling, place=len(readings))
            readings.append(read)
            left -= len(text[:left])
            if left <= 0:
                break
        return SampledEvidence(
            subject=who.at(sampling.temperature),
            surprise_N=np.concatenate([read.surprise_N for read in readings]),
            identity_N=np.concatenate([read.identity_N for read in readings]),
            log_likelihoods={
                factor: sum(read.log_likelihoods[i] for read in readings)
                for i, factor in enumerate(TEMPERATURES)
            },
            num_texts=len(readings),
            num_outside=sum(read.num_outside for read in readings),
            num_at_edge=sum(read.num_at_edge for read in readings),
            misshapen=tuple(misshapen),
            joint=self._joint(who, sampling, num_tokens),
        )

    def _sampled_texts(
        self, who: Examined, sampling: Sampling
    ) -> Iterator[tuple[Question, tuple[int, ...]]]:
        """Every question in turn, again and again, each time with other noise."""
        repeat = 0
        while True:
            requests = [
                question.asked(sampling, self._draw(who, sampling, f"{i} {question.id}", repeat))
                for i, question in enumerate(self._questions)
            ]
            results = self._serve(who, requests)
            yield from zip(self._questions, (r.output_ids for r in results), strict=True)
            repeat += 1

    def _read(
        self, question: Question, text: tuple[int, ...], sampling: Sampling, *, place: int
    ) -> "_Reading":
        """Where each token lies in the target's distribution given what precedes it."""
        noise = np.random.default_rng((self._seed, place))
        likely: list[Tensor] = []
        own: list[Tensor] = []
        log_likelihoods = np.zeros(len(TEMPERATURES))
        num_outside = num_at_edge = begin = 0
        for logits_NV in self._teacher.logits(question.prompt_ids, text):
            tokens_N = torch.tensor(text[begin : begin + len(logits_NV)], device=logits_NV.device)
            begin += len(logits_NV)
            is_in_N = _of(allowed(logits_NV, sampling), tokens_N)
            is_near_N = _of(allowed(logits_NV, sampling, edge_slack(logits_NV)), tokens_N)
            num_outside += int((~is_near_N).sum())
            num_at_edge += int((is_near_N & ~is_in_N).sum())
            probs_NV, tokens_N = token_distribution(logits_NV[is_in_N], sampling), tokens_N[is_in_N]
            within = torch.from_numpy(noise.random((2, len(tokens_N)))).to(tokens_N.device)
            likely.append(surprise(probs_NV, tokens_N, within[0]))
            own.append(placed(probs_NV, tokens_N, within[1]))
            log_likelihoods += [log_likelihood(probs_NV, tokens_N, f) for f in TEMPERATURES]
        surprise_N, identity_N = (torch.cat(chunks).cpu().numpy() for chunks in (likely, own))
        return _Reading(surprise_N, identity_N, tuple(log_likelihoods), num_outside, num_at_edge)

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


class _Reading(NamedTuple):
    surprise_N: Floats
    identity_N: Floats
    log_likelihoods: tuple[float, ...]
    num_outside: int
    num_at_edge: int


def _of(is_allowed_NV: Tensor, tokens_N: Tensor) -> Tensor:
    return is_allowed_NV.gather(1, tokens_N[:, None])[:, 0]


def _ends_well(text: Sequence[int], max_new_tokens: int, eos_ids: frozenset[int]) -> bool:
    """One end-of-text token, the last; or none, and all the tokens that were asked for."""
    if eos_ids.intersection(text[:-1]) or len(text) > max_new_tokens:
        return False
    return len(text) == max_new_tokens or text[-1] in eos_ids


def _end(text: Sequence[int], max_new_tokens: int, eos_ids: frozenset[int]) -> int:
    """How many of its tokens belong to it."""
    ends = (i + 1 for i, token in enumerate(text) if token in eos_ids)
    return min(next(ends, len(text)), max_new_tokens, len(text))
