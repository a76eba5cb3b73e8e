"""Reads finished texts along the target, whoever wrote them: evidence for the judge.

Shape suffixes: N tokens, V vocabulary.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specbench.records import Sampling
from specbench.verify.distribution import (
    allowed,
    has_cuts,
    log_likelihoods,
    placed,
    ratio_to_expect,
    surprise,
    token_distribution,
)
from specbench.verify.evidence import (
    CONTROL,
    Divergence,
    Expected,
    Floats,
    GreedyEvidence,
    JointCounts,
    SampledEvidence,
    Subject,
)
from specbench.verify.tally import Tally
from specbench.verify.teacher import ReferenceModel, edge_slack

_AT_ONCE = 64  # texts, of which those of like length are fed together
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

    def __init__(self, teacher: ReferenceModel, *, seed: int) -> None:
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
        readings: list[_ScoredText] = []
        misshapen: list[str] = []
        for group in self._groups(answers, num_tokens):
            begun = []
            for prompt, text, counted in group:
                if not _ends_well(text, prompt.max_new_tokens, eos_ids):
                    misshapen.append(prompt.id)
                noise = np.random.default_rng((self._seed, len(readings)))
                begun.append(_ScoredText(prompt, counted, sampling, noise, tally))
                readings.append(begun[-1])
            texts = [(prompt.prompt_ids, counted) for prompt, _, counted in group]
            for i, logits_NV in self._teacher.together(texts):
                begun[i].add(logits_NV)
        return SampledEvidence(
            subject=subject,
            surprise_N=np.concatenate([part for read in readings for part in read.surprise]),
            identity_N=np.concatenate([part for read in readings for part in read.identity]),
            log_likelihoods={
                factor: sum(float(read.log_likelihoods[i]) for read in readings)
                for i, factor in enumerate(TEMPERATURES)
            },
            colder=Expected(*np.sum([read.colder for read in readings], axis=0)),
            num_texts=len(readings),
            num_outside=sum(read.num_outside for read in readings),
            num_at_edge=sum(read.num_at_edge for read in readings),
            misshapen=tuple(misshapen),
            joint=joint,
        )

    def _groups(
        self, answers: Iterable[tuple[AnsweredPrompt, tuple[int, ...]]], num_tokens: int
    ) -> Iterator[list[tuple[AnsweredPrompt, tuple[int, ...], tuple[int, ...]]]]:
        """Texts that are read at once, whole and as far as they count; no more are asked for."""
        group, left = [], num_tokens
        for prompt, text in answers:
            group.append((prompt, text, text[:left]))
            left -= len(group[-1][2])
            if left <= 0:
                break
            if len(group) >= _AT_ONCE:
                yield group
                group = []
        if group:
            yield group


class _ScoredText:
    """Where each token of one text lies in the target's distribution given what precedes it."""

    def __init__(
        self,
        asked: AnsweredPrompt,
        text: tuple[int, ...],
        sampling: Sampling,
        noise: np.random.Generator,
        tally: Tally | None,
    ) -> None:
        self._asked, self._text, self._sampling = asked, text, sampling
        self._noise, self._tally = noise, tally
        self._begin = 0  # of the text, the first token that is still to be read
        self.surprise: list[Floats] = []
        self.identity: list[Floats] = []
        self.log_likelihoods = np.zeros(len(TEMPERATURES))
        self.colder = np.zeros(2)  # mean and variance
        self.num_outside = self.num_at_edge = 0

    def add(self, logits_NV: Tensor) -> None:
        """The target's logits for its next tokens."""
        begin, self._begin = self._begin, self._begin + len(logits_NV)
        tokens_N = torch.tensor(self._text[begin : self._begin], device=logits_NV.device)
        probs_NV = token_distribution(logits_NV, self._sampling)
        if self._tally is not None:
            self._tally.add(self._asked.id, begin, probs_NV.cpu().numpy(), tokens_N.cpu().numpy())
        if has_cuts(self._sampling):
            is_in_N = _of(allowed(logits_NV, self._sampling), tokens_N)
            slack_N1 = edge_slack(logits_NV)
            is_near_N = _of(allowed(logits_NV, self._sampling, slack_N1), tokens_N)
            self.num_outside += int((~is_near_N).sum())
            self.num_at_edge += int((is_near_N & ~is_in_N).sum())
            probs_NV, tokens_N = probs_NV[is_in_N], tokens_N[is_in_N]
        within = torch.from_numpy(self._noise.random((2, len(tokens_N)))).to(tokens_N.device)
        self.surprise.append(surprise(probs_NV, tokens_N, within[0]).cpu().numpy())
        self.identity.append(placed(probs_NV, tokens_N, within[1]).cpu().numpy())
        self.log_likelihoods += log_likelihoods(probs_NV, tokens_N, TEMPERATURES)
        self.colder += ratio_to_expect(probs_NV, CONTROL)


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
