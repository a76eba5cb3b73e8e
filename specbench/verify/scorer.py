"""Scores finished texts of any engine by the target's logits, as evidence for judge.py.

Shape suffixes: N tokens, V vocabulary.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specbench.records import Sampling
from specbench.verify.evidence import (
    CONTROL,
    Divergence,
    Floats,
    GreedyEvidence,
    JointCounts,
    SampledEvidence,
    Subject,
    SumMoments,
)
from specbench.verify.reference_model import (
    ReferenceModel,
    allowed,
    edge_slack,
    expected_log_ratio,
    has_cuts,
    identity,
    log_likelihoods,
    surprise,
    token_distribution,
)
from specbench.verify.statistics import Tally

_GROUP = 64  # texts from which batches of similar length are made
TEMPERATURES = (0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)  # factors of the requested temperature

Texts = Sequence[tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class AnsweredPrompt:
    """A prompt whose output is scored."""

    id: str  # names workload, prompt and turn
    prompt_ids: tuple[int, ...]
    max_new_tokens: int


class TextScorer:
    """Scores texts by the logits of one target."""

    def __init__(self, reference: ReferenceModel, *, seed: int) -> None:
        self._reference = reference
        self._seed = seed

    def greedy(
        self,
        subject: Subject,
        prompts: Sequence[AnsweredPrompt],
        texts: Texts,
        baseline: Texts | None,
        *,
        eos_ids: Collection[int],
    ) -> GreedyEvidence:
        """Compare texts with those at K = 0, or, without a baseline, with the target's best tokens.

        After the first difference from K = 0, the rest of a text is compared with the target's best
        tokens, and so is its end. A text equal to that at K = 0 is not checked further.
        """
        divergences: list[Divergence] = []
        for i, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            named = (prompt.id, prompt.prompt_ids)
            first = None
            if baseline is not None:
                first = self._reference.divergence(*named, baseline[i], text)
                if first is None:
                    continue
            end = _wrong_end(text, prompt.max_new_tokens, eos_ids)
            departures = self._reference.departures(*named, text[:end])
            if first is not None:
                departures = [first, *(d for d in departures if d.position > first.position)]
            if end is not None and (first is None or first.position < end):
                departures.append(self._reference.ending(*named, text, end))
            divergences += departures
        return GreedyEvidence(
            subject=subject,
            num_prompts=len(prompts),
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
        """Score the first `num_tokens` tokens of the sampled texts, in order.

        The number is fixed beforehand and the last text is cut, because stopping at the end of a
        text would favor some distributions. A `tally` also counts every token.
        """
        scored: list[_ScoredText] = []
        wrongly_ended: list[str] = []
        for group in self._groups(answers, num_tokens):
            scored_group = []
            for prompt, text, counted in group:
                if _wrong_end(text, prompt.max_new_tokens, eos_ids) is not None:
                    wrongly_ended.append(prompt.id)
                noise = np.random.default_rng((self._seed, len(scored)))
                scored_group.append(_ScoredText(prompt, counted, sampling, noise, tally))
                scored.append(scored_group[-1])
            texts = [(prompt.prompt_ids, counted) for prompt, _, counted in group]
            for i, logits_NV in self._reference.logits_of_texts(texts):
                scored_group[i].add(logits_NV)
        return SampledEvidence(
            subject=subject,
            surprise_N=np.concatenate([part for each in scored for part in each.surprise]),
            identity_N=np.concatenate([part for each in scored for part in each.identity]),
            log_likelihoods={
                factor: sum(float(each.log_likelihoods[i]) for each in scored)
                for i, factor in enumerate(TEMPERATURES)
            },
            colder=SumMoments(*np.sum([each.colder for each in scored], axis=0)),
            num_texts=len(scored),
            num_outside=sum(each.num_outside for each in scored),
            num_at_edge=sum(each.num_at_edge for each in scored),
            wrongly_ended=tuple(wrongly_ended),
            joint=joint,
        )

    def _groups(
        self, answers: Iterable[tuple[AnsweredPrompt, tuple[int, ...]]], num_tokens: int
    ) -> Iterator[list[tuple[AnsweredPrompt, tuple[int, ...], tuple[int, ...]]]]:
        """Groups of prompts with their whole text and its counted part. Texts after the last
        counted one are not consumed."""
        group, left = [], num_tokens
        for prompt, text in answers:
            group.append((prompt, text, text[:left]))
            left -= len(group[-1][2])
            if left <= 0:
                break
            if len(group) >= _GROUP:
                yield group
                group = []
        if group:
            yield group


class _ScoredText:
    """The quantile of each token of a text in the target's distribution given those before it."""

    def __init__(
        self,
        prompt: AnsweredPrompt,
        text: tuple[int, ...],
        sampling: Sampling,
        noise: np.random.Generator,
        tally: Tally | None,
    ) -> None:
        self._prompt, self._text, self._sampling = prompt, text, sampling
        self._noise, self._tally = noise, tally
        self._begin = 0  # the first token of the text without a score
        self.surprise: list[Floats] = []
        self.identity: list[Floats] = []
        self.log_likelihoods = np.zeros(len(TEMPERATURES))
        self.colder = np.zeros(2)  # mean and variance
        self.num_outside = self.num_at_edge = 0

    def add(self, logits_NV: Tensor) -> None:
        """Score the next tokens by the target's logits for them."""
        begin, self._begin = self._begin, self._begin + len(logits_NV)
        text = self._text[begin : self._begin]
        tokens_N = torch.tensor(text, dtype=torch.long, device=logits_NV.device)
        probs_NV = token_distribution(logits_NV, self._sampling)
        if self._tally is not None:
            self._tally.add(self._prompt.id, begin, probs_NV.cpu().numpy(), tokens_N.cpu().numpy())
        if has_cuts(self._sampling):
            is_in_N = _gather_tokens(allowed(logits_NV, self._sampling), tokens_N)
            slack_N1 = edge_slack(logits_NV)
            is_near_N = _gather_tokens(allowed(logits_NV, self._sampling, slack_N1), tokens_N)
            self.num_outside += int((~is_near_N).sum())
            self.num_at_edge += int((is_near_N & ~is_in_N).sum())
            probs_NV, tokens_N = probs_NV[is_in_N], tokens_N[is_in_N]
        within = torch.from_numpy(self._noise.random((2, len(tokens_N)))).to(tokens_N.device)
        self.surprise.append(surprise(probs_NV, tokens_N, within[0]).cpu().numpy())
        self.identity.append(identity(probs_NV, tokens_N, within[1]).cpu().numpy())
        self.log_likelihoods += log_likelihoods(probs_NV, tokens_N, TEMPERATURES)
        self.colder += expected_log_ratio(probs_NV, CONTROL)


def _gather_tokens(is_allowed_NV: Tensor, tokens_N: Tensor) -> Tensor:
    return is_allowed_NV.gather(1, tokens_N[:, None])[:, 0]


def _wrong_end(text: Sequence[int], max_new_tokens: int, eos_ids: Collection[int]) -> int | None:
    """The number of tokens up to the correct end of a longer text, or of one that stops early; None
    if it ends with its first end-of-text token or with the last requested token."""
    ends = (i + 1 for i, token in enumerate(text[:max_new_tokens]) if token in eos_ids)
    end = next(ends, max_new_tokens)
    return None if len(text) == end else min(end, len(text))
