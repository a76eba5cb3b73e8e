"""The target as reference: its logits for every token of a finished text, and the distribution that
sampling must follow.

The distribution does not share code with decode/sampling.py, so that it detects faults there.
Shape suffixes: T tokens fed, N tokens, V vocabulary, R rows.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.errors import ModelError
from specbench.forward.runner import check_context
from specbench.forward.self_test import make_checked_runner
from specbench.records import Sampling
from specbench.verify.evidence import Divergence

_CHUNK = 512  # tokens of a text per forward
_ROWS = 64  # short texts per forward
_MOST_LOGITS = 2**22  # per forward of several texts, unless a chunk has more
# Differences in rounding steps that rounding may cause. Logits of the demo target differed by
# up to 18 steps in float32 and up to 7 in the others, between the fused runner with five tokens per
# forward and the stock runner with the whole text.
_TIE_STEPS = {torch.float32: 32.0, torch.float16: 8.0, torch.bfloat16: 8.0}
_EDGE = 2  # factor of a tie for the cut by top-k or top-p, which depends on many logits

Text = tuple[Sequence[int], Sequence[int]]  # the tokens of a prompt, and those of its output


class ReferenceModel:
    """A loaded model, run by transformers' code with a separate cache; ModelError if it cannot
    run."""

    def __init__(self, model: Any) -> None:
        self._runner, _ = make_checked_runner(model, "stock")
        self._cached_prompt: tuple[int, ...] = ()  # all tokens except the last are in the cache
        self.vocab_size = self._runner.vocab_size
        self.device = self._runner.device

    @torch.inference_mode()
    def logits(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> Iterator[Tensor]:
        """Logits [<= 512, V] for each token of the output, in order.

        Consecutive outputs of one prompt share its forward. ModelError if the text is longer than
        the target's context, or a logit is NaN.
        """
        fed = [*prompt_ids, *output_ids[:-1]]
        check_context(self._runner.max_position, len(fed))
        cache = self._runner.cache
        self._runner.allocate(1, len(fed))
        tokens_1T = torch.tensor([fed], device=self.device)
        first = len(prompt_ids) - 1
        is_cached = self._cached_prompt == tuple(prompt_ids) and self._runner.cache is cache
        is_cached &= self._runner.most_drafts is None  # a state includes the last output
        self._cached_prompt = ()
        # The prompt and the output are in separate chunks, because the prompt needs no logits.
        begins = [*range(first if is_cached else 0, first, _CHUNK), *range(first, len(fed), _CHUNK)]
        for begin, end in itertools.pairwise([*begins, len(fed)]):
            last_1 = None if begin >= first else torch.zeros_like(tokens_1T[0, :1])
            logits_1TV = self._forward(tokens_1T[:, begin:end], begin, last_1)
            if begin >= first:
                self._cached_prompt = tuple(prompt_ids)
                yield _checked(logits_1TV[0, : len(output_ids)])  # none for an empty output

    def logits_of_texts(self, texts: Sequence[Text]) -> Iterator[tuple[int, Tensor]]:
        """The index of a text and the logits [<= 512, V] of its next tokens; texts in any order.

        Short texts of similar length share a forward.
        """
        lengths = [len(prompt) + len(output) for prompt, output in texts]
        left = sorted(range(len(texts)), key=lengths.__getitem__, reverse=True)
        while left:
            num = self._batch_size(lengths[left[0]])
            batch, left = left[:num], left[num:]
            if len(batch) > 1:
                yield from zip(batch, self._batched([texts[i] for i in batch]), strict=True)
            else:
                for logits_NV in self.logits(*texts[batch[0]]):
                    yield batch[0], logits_NV

    def _batch_size(self, length: int) -> int:
        """The number of texts of this length, prompt included, per forward."""
        if (
            length > _CHUNK or self._runner.most_drafts is not None
        ):  # recurrent states do not allow padding
            return 1
        return max(1, max(_CHUNK, _MOST_LOGITS // self.vocab_size) // length)

    @torch.inference_mode()
    def _batched(self, texts: Sequence[Text]) -> list[Tensor]:
        """Logits [N, V] of each text; a prompt that all texts share is prefilled once.

        Rows are padded at the end, so no token attends to the padding.
        """
        first_prompt, _ = texts[0]
        is_shared = all(tuple(prompt) == tuple(first_prompt) for prompt, _ in texts)
        begin = len(first_prompt) - 1 if is_shared else 0
        fed = [[*prompt, *output[:-1]][begin:] for prompt, output in texts]
        R, T = len(texts), max(map(len, fed))
        check_context(self._runner.max_position, begin + T)
        self._cached_prompt = ()
        self._runner.allocate(R, begin + T)
        if begin:
            prompt_1T = torch.tensor([first_prompt[:-1]], device=self.device)
            self._forward(prompt_1T, 0, last_1=torch.zeros_like(prompt_1T[0, :1]))
            for row in range(1, R):
                self._runner.copy_row(0, row, begin)
        tokens_RT = torch.tensor([[*ids, *[0] * (T - len(ids))] for ids in fed], device=self.device)
        logits_RTV = self._forward(tokens_RT, begin)
        text_logits = []
        for (prompt, output), logits_TV in zip(texts, logits_RTV, strict=True):
            first = len(prompt) - 1 - begin
            text_logits.append(_checked(logits_TV[first : first + len(output)]))
        return text_logits

    def _forward(self, tokens_RT: Tensor, begin: int, last_1: Tensor | None = None) -> Tensor:
        """Logits [R, T, V] of tokens at positions from `begin` on."""
        R, T = tokens_RT.shape
        positions_RT = torch.arange(begin, begin + T, device=self.device).expand(R, -1)
        out = self._runner.forward(tokens_RT, positions_RT, begin + T, last_B=last_1, start=begin)
        return out.logits

    def divergence(
        self,
        prompt_id: str,
        prompt_ids: Sequence[int],
        expected: Sequence[int],
        actual: Sequence[int],
    ) -> Divergence | None:
        """The first position at which `actual` differs from `expected`, with the logits there; None
        if they are equal."""
        pairs = enumerate(itertools.zip_longest(expected, actual))
        position = next((i for i, (a, b) in pairs if a != b), None)
        if position is None:
            return None
        *_, last_NV = self.logits(prompt_ids, [*expected[:position], 0])
        expected_id, actual_id = (
            ids[position] if position < len(ids) else None for ids in (expected, actual)
        )
        return _divergence(prompt_id, position, expected_id, actual_id, last_NV[-1])

    def departures(
        self, prompt_id: str, prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> list[Divergence]:
        """All tokens of a greedy text that are not the target's best, given the tokens before."""
        divergences: list[Divergence] = []
        position = 0
        for logits_NV in self.logits(prompt_ids, output_ids):
            for best, logits_V in zip(logits_NV.argmax(-1).tolist(), logits_NV, strict=True):
                token = output_ids[position]
                if best != token:
                    divergences.append(_divergence(prompt_id, position, best, token, logits_V))
                position += 1
        return divergences

    def ending(
        self, prompt_id: str, prompt_ids: Sequence[int], output_ids: Sequence[int], end: int
    ) -> Divergence:
        """The divergence of a text that continues past its correct `end`, or stops before it."""
        is_longer = end < len(output_ids)
        *_, last_NV = self.logits(prompt_ids, [*output_ids[:end], 0])
        token = output_ids[end] if is_longer else None
        expected = None if is_longer else int(last_NV[-1].argmax())
        return _divergence(prompt_id, end, expected, token, last_NV[-1])

    @torch.inference_mode()
    def joint_probs(self, prompt_ids: Sequence[int], num_tokens: int, sampling: Sampling) -> Tensor:
        """The probability of every text of `num_tokens` tokens, float64 [V ** num_tokens].

        The index of a text is the number with its tokens as digits in base V, the first being the
        highest.
        """
        V = self.vocab_size
        probs = torch.ones(1, dtype=torch.float64)
        for length in range(num_tokens):
            prefixes = itertools.product(range(V), repeat=length)
            rows = [self._next_probs(prompt_ids, batch, sampling) for batch in _batches(prefixes)]
            probs = (probs[:, None] * torch.cat(rows).cpu()).flatten()
        return probs

    def _next_probs(
        self, prompt_ids: Sequence[int], prefixes: Sequence[tuple[int, ...]], sampling: Sampling
    ) -> Tensor:
        tokens_RT = torch.tensor([[*prompt_ids, *prefix] for prefix in prefixes])
        self._cached_prompt = ()
        self._runner.allocate(*tokens_RT.shape)
        logits_RTV = self._forward(tokens_RT.to(self.device), 0)
        return token_distribution(logits_RTV[:, -1], sampling)


def _checked(logits_NV: Tensor) -> Tensor:
    if bool(logits_NV.isnan().any()):
        raise ModelError("the target's logits are not numbers (NaN); try another dtype")
    return logits_NV


def _divergence(
    prompt_id: str, position: int, expected: int | None, actual: int | None, logits_V: Tensor
) -> Divergence:
    best, second = logits_V.topk(2).values.double().tolist()
    steps = below = None
    if expected is not None and actual is not None:
        worse = min(float(logits_V[expected]), float(logits_V[actual]))
        below = best - worse
        steps = below / float(rounding_step(logits_V[None]))
    return Divergence(
        prompt_id=prompt_id,
        position=position,
        expected=expected,
        found=actual,
        gap=best - second,
        steps=steps,
        below=below,
        tie_steps=_tie_steps(logits_V.dtype),
    )


def edge_slack(logits_NV: Tensor) -> Tensor:
    """The distance from a cut, in logits, within which rounding decides, float64 [N, 1]."""
    return _EDGE * _tie_steps(logits_NV.dtype) * rounding_step(logits_NV)


def _tie_steps(dtype: torch.dtype) -> float:
    return _TIE_STEPS.get(dtype, _TIE_STEPS[torch.float32])


def rounding_step(logits_NV: Tensor) -> Tensor:
    """One unit in the last place at the magnitude of each largest logit, float64 [N, 1].

    float64 models also compute norms and rotary positions in float32, so float32's step is used.
    """
    dtype = logits_NV.dtype
    eps = torch.finfo(torch.float32 if dtype == torch.float64 else dtype).eps
    largest_N1 = logits_NV.double().amax(-1, keepdim=True).abs().clamp(min=1e-3)
    return eps * torch.exp2(largest_N1.log2().floor())


def _batches(prefixes: Iterator[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    while batch := list(itertools.islice(prefixes, _ROWS)):
        yield batch


def token_distribution(logits_NV: Tensor, sampling: Sampling) -> Tensor:
    """The probability of every token, float64 [N, V], at a temperature above 0."""
    scores_NV = logits_NV.double() / sampling.temperature
    if has_cuts(sampling):
        scores_NV = scores_NV.masked_fill(~allowed(logits_NV, sampling), -torch.inf)
    return scores_NV.softmax(-1)


def has_cuts(sampling: Sampling) -> bool:
    """Whether top-k or top-p may exclude tokens."""
    return sampling.top_k > 0 or sampling.top_p < 1


def log_likelihoods(probs_NV: Tensor, tokens_N: Tensor, factors: Sequence[float]) -> list[float]:
    """The log-likelihood of all tokens at each factor times the temperature.

    Top-k and top-p keep the same tokens at every factor.
    """
    logs_NV = probs_NV.log()
    chosen = float(logs_NV.gather(1, tokens_N[:, None]).sum())
    totals, powers_NV = [], torch.empty_like(logs_NV)
    for factor in factors:
        # Log-probabilities are at most 0, and the largest is close to 0: the exponentials cannot
        # overflow, and at least one does not underflow.
        torch.mul(logs_NV, 1 / factor, out=powers_NV).exp_()
        totals.append(chosen / factor - float(powers_NV.sum(-1).log().sum()))
    return totals


def expected_log_ratio(probs_NV: Tensor, factor: float) -> tuple[float, float]:
    """Mean and variance of the log-likelihood ratio of `factor` times this temperature to this
    temperature, summed over all tokens, if tokens are drawn at the former.
    """
    logs_NV = probs_NV.log().clamp(min=-1e3)  # below the range of float64: an excluded token adds 0
    powers_NV = logs_NV / factor
    total_N1 = powers_NV.logsumexp(-1, keepdim=True)
    ratios_NV = powers_NV - logs_NV - total_N1
    other_NV = powers_NV.sub_(total_N1).exp_()
    mean_N = (other_NV * ratios_NV).sum(-1)
    variance_N = (other_NV * ratios_NV**2).sum(-1) - mean_N**2
    return float(mean_N.sum()), float(variance_N.sum())


def allowed(logits_NV: Tensor, sampling: Sampling, slack_N1: Tensor | None = None) -> Tensor:
    """The tokens that top-k and then top-p keep, bool [N, V].

    `slack_N1` widens both cuts by the rounding error of the distance of two logits.
    """
    scores_NV = logits_NV.double() / sampling.temperature
    slack = 0.0 if slack_N1 is None else slack_N1.double() / sampling.temperature
    kept_NV = torch.ones_like(scores_NV, dtype=torch.bool)
    if 0 < sampling.top_k < scores_NV.shape[-1]:
        ranked_NV = scores_NV.sort(-1, descending=True).values
        kept_NV = scores_NV >= ranked_NV[:, sampling.top_k - 1 :][:, :1] - slack
    if sampling.top_p < 1:
        p_NV = scores_NV.masked_fill(~kept_NV, -torch.inf).softmax(-1)
        ranked, order_NV = p_NV.sort(-1, descending=True)
        # A token is kept if those before it do not fill the nucleus; equal ones are treated alike.
        ahead_NV = ranked.cumsum(-1) - ranked
        is_tied_NV = ranked == ranked.roll(1, -1)
        is_tied_NV[:, 0] = False
        ahead_NV = ahead_NV.masked_fill(is_tied_NV, 0.0).cummax(-1).values
        # Rounding may lower the odds of the tokens before it by exp(slack), so the nucleus is full
        # only if their odds * exp(-slack) = odds of top_p.
        rest = (1 - sampling.top_p) * torch.exp(-torch.as_tensor(slack, device=p_NV.device))
        nucleus = sampling.top_p if slack_N1 is None else sampling.top_p / (sampling.top_p + rest)
        stays_NV = ahead_NV < nucleus
        stays_NV[:, 0] = True
        kept_NV = kept_NV & torch.zeros_like(kept_NV).scatter(-1, order_NV, stays_NV)
    return kept_NV


def surprise(p_NV: Tensor, tokens_N: Tensor, within_N: Tensor) -> Tensor:
    """The mass of the tokens less likely than each drawn one, plus `within_N` of the drawn one.

    It is uniform in [0, 1] if the tokens were drawn from p. The sum is over the less likely tokens,
    so that it is precise in the far tail. Equal probabilities are ordered by token id.
    """
    p_N1 = p_NV.gather(1, tokens_N[:, None])
    ids_V = torch.arange(p_NV.shape[1], device=p_NV.device)
    is_less_NV = (p_NV < p_N1) | ((p_NV == p_N1) & (ids_V > tokens_N[:, None]))
    return p_NV.masked_fill(~is_less_NV, 0.0).sum(1) + within_N * p_N1[:, 0]


def identity(p_NV: Tensor, tokens_N: Tensor, within_N: Tensor) -> Tensor:
    """The mass of the tokens with smaller ids than each drawn one, plus `within_N` of the drawn
    one."""
    ids_V = torch.arange(p_NV.shape[1], device=p_NV.device)
    drawn_N = p_NV.gather(1, tokens_N[:, None])[:, 0]
    before_N = p_NV.masked_fill(ids_V >= tokens_N[:, None], 0.0).sum(1)
    return before_N + within_N * drawn_N
