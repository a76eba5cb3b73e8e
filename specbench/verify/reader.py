"""Reads finished texts along the target, whoever wrote them: evidence for the judge.

Shape suffixes: N tokens, V vocabulary.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

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
from specbench.verify.tally import Tally
from specbench.verify.teacher import Teacher, edge_slack

TEMPERATURES = (0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)  # as shares of the one asked for

Texts = Sequence[tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class AnsweredPrompt:
    """A prompt that was answered; `id` names workload, prompt and turn."""

    id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int


class Reader:
    """Reads texts along one target."""

    def __init__(self, teacher: Teacher, *, seed: int) -> None:
        self._teacher = teacher
        self._seed = seed

    def greedy(
        self,
        subject: Subject,
        asked: Sequence[AnsweredPrompt],
        texts: Texts,
        baseline: Texts | None,
        *,
        eos_ids: Collection[int],
    ) -> GreedyEvidence:
        """Texts beside those of K = 0; without these, beside the target's best tokens.

        After a first difference the rest of a text is held to the target's best tokens, too. So
        is its end, wherever there is no text of K = 0 to hold it to.
        """
        divergences: list[Divergence] = []
        for i, (prompt, text) in enumerate(zip(asked, texts, strict=True)):
            place = (prompt.id, prompt.prompt_ids)
            first = None
            if baseline is not None:
                first = self._teacher.divergence(*place, baseline[i], text)
                if first is None:
                    continue
            found = self._teacher.departures(*place, text)
            if first is not None:
                found = [first, *(d for d in found if d.position > first.position)]
            if not _ends_well(text, prompt.max_new_tokens, eos_ids):
                end = _end(text, prompt.max_new_tokens, eos_ids)
                if not found or found[-1].position < end:  # else it is told already
                    found.append(self._teacher.ending(*place, text, end))
            divergences += found
        return GreedyEvidence(
            subject=subject,
            num_prompts=len(asked),
            num_tokens=sum(map(len, texts)),
            divergences=tuple(divergences),
        )

    def sampled(
        self,
        subject: Subject,
        sampling: Sampling,
        answers: Iterable[tuple[AnsweredPrompt, tuple[int, ...]]],
        num_tokens: int,
        *,
        eos_ids: Collection[int],
        joint: JointCounts | None = None,
        tally: Tally | None = None,
    ) -> SampledEvidence:
        """The first `num_tokens` tokens of one sampled text after the other.

        The number is fixed beforehand and the last text is cut to it: stopping at a text's
        end would prefer some distributions to others. A `tally` is told every token, too.
        """
        readings: list[_Reading] = []
        misshapen: list[str] = []
        left = num_tokens
        for prompt, text in answers:
            if not _ends_well(text, prompt.max_new_tokens, eos_ids):
                misshapen.append(prompt.id)
            read = self._read(prompt, text[:left], sampling, len(readings), tally)
            readings.append(read)
            left -= len(text[:left])
            if left <= 0:
                break
        return SampledEvidence(
            subject=subject,
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
            joint=joint,
        )

    def _read(
        self,
        asked: AnsweredPrompt,
        text: tuple[int, ...],
        sampling: Sampling,
        place: int,
        tally: Tally | None,
    ) -> "_Reading":
        """Where each token lies in the target's distribution given what precedes it."""
        noise = np.random.default_rng((self._seed, place))
        likely: list[Tensor] = []
        own: list[Tensor] = []
        log_likelihoods = np.zeros(len(TEMPERATURES))
        num_outside = num_at_edge = begin = 0
        for logits_NV in self._teacher.logits(asked.prompt_ids, text):
            tokens_N = torch.tensor(text[begin : begin + len(logits_NV)], device=logits_NV.device)
            is_in_N = _of(allowed(logits_NV, sampling), tokens_N)
            is_near_N = _of(allowed(logits_NV, sampling, edge_slack(logits_NV)), tokens_N)
            num_outside += int((~is_near_N).sum())
            num_at_edge += int((is_near_N & ~is_in_N).sum())
            probs_NV = token_distribution(logits_NV, sampling)
            if tally is not None:
                tally.add(asked.id, begin, probs_NV.cpu().numpy(), tokens_N.cpu().numpy())
            begin += len(logits_NV)
            probs_NV, tokens_N = probs_NV[is_in_N], tokens_N[is_in_N]
            within = torch.from_numpy(noise.random((2, len(tokens_N)))).to(tokens_N.device)
            likely.append(surprise(probs_NV, tokens_N, within[0]))
            own.append(placed(probs_NV, tokens_N, within[1]))
            log_likelihoods += [log_likelihood(probs_NV, tokens_N, f) for f in TEMPERATURES]
        surprise_N, identity_N = (torch.cat(chunks).cpu().numpy() for chunks in (likely, own))
        return _Reading(surprise_N, identity_N, tuple(log_likelihoods), num_outside, num_at_edge)


class _Reading(NamedTuple):
    surprise_N: Floats
    identity_N: Floats
    log_likelihoods: tuple[float, ...]
    num_outside: int
    num_at_edge: int


def _of(is_allowed_NV: Tensor, tokens_N: Tensor) -> Tensor:
    return is_allowed_NV.gather(1, tokens_N[:, None])[:, 0]


def _ends_well(text: Sequence[int], max_new_tokens: int, eos_ids: Collection[int]) -> bool:
    """One end-of-text token, the last; or none, and all the tokens that were asked for."""
    if any(token in eos_ids for token in text[:-1]) or len(text) > max_new_tokens:
        return False
    return len(text) == max_new_tokens or text[-1] in eos_ids


def _end(text: Sequence[int], max_new_tokens: int, eos_ids: Collection[int]) -> int:
    """How many of its tokens belong to it."""
    ends = (i + 1 for i, token in enumerate(text) if token in eos_ids)
    return min(next(ends, len(text)), max_new_tokens, len(text))
