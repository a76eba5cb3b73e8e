"""The distribution that sampling must follow, implemented a second time.

It shares no code with decode/sampling.py, so that it detects faults there.
Shape suffixes: N tokens, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.records import Sampling


def token_distribution(logits_NV: Tensor, sampling: Sampling) -> Tensor:
    """Probability of every token, float64 [N, V], at a temperature above 0."""
    scores_NV = logits_NV.double() / sampling.temperature
    if has_cuts(sampling):
        scores_NV = scores_NV.masked_fill(~allowed(logits_NV, sampling), -torch.inf)
    return scores_NV.softmax(-1)


def has_cuts(sampling: Sampling) -> bool:
    """Whether top-k or top-p may leave tokens out."""
    return sampling.top_k > 0 or sampling.top_p < 1


def log_likelihoods(probs_NV: Tensor, tokens_N: Tensor, factors: Sequence[float]) -> list[float]:
    """Log-likelihood of all tokens at each factor times the temperature.

    Top-k and top-p keep the same tokens at every factor.
    """
    logs_NV = probs_NV.log()
    chosen = float(logs_NV.gather(1, tokens_N[:, None]).sum())
    totals, powers_NV = [], torch.empty_like(logs_NV)
    for factor in factors:
        # Logarithms of probabilities are at most 0, and the largest near it: nothing overflows,
        # and not everything underflows.
        torch.mul(logs_NV, 1 / factor, out=powers_NV).exp_()
        totals.append(chosen / factor - float(powers_NV.sum(-1).log().sum()))
    return totals


def ratio_to_expect(probs_NV: Tensor, factor: float) -> tuple[float, float]:
    """Mean and variance, over all tokens, of the log-likelihood ratio of another temperature to
    this one, if tokens were drawn at the other one: `factor` times this temperature.
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
    """Tokens that top-k and then top-p keep, bool [N, V].

    `slack_N1` widens both cuts by the error that rounding gives the distance of two logits.
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
        # A token stays while those before it have not filled the nucleus; equal ones stay together.
        ahead_NV = ranked.cumsum(-1) - ranked
        is_tied_NV = ranked == ranked.roll(1, -1)
        is_tied_NV[:, 0] = False
        ahead_NV = ahead_NV.masked_fill(is_tied_NV, 0.0).cummax(-1).values
        # Rounding may lower the odds of the tokens before it by exp(slack): the nucleus is full
        # once odds of those * exp(-slack) = odds of top_p.
        rest = (1 - sampling.top_p) * torch.exp(-torch.as_tensor(slack, device=p_NV.device))
        nucleus = sampling.top_p if slack_N1 is None else sampling.top_p / (sampling.top_p + rest)
        stays_NV = ahead_NV < nucleus
        stays_NV[:, 0] = True
        kept_NV = kept_NV & torch.zeros_like(kept_NV).scatter(-1, order_NV, stays_NV)
    return kept_NV


def surprise(p_NV: Tensor, tokens_N: Tensor, within_N: Tensor) -> Tensor:
    """Mass of the tokens less likely than each drawn one, plus `within_N` of the drawn one.

    Uniform in [0, 1] if the tokens were drawn from p. Summed from the small side, so that a
    token in the far tail keeps its digits. Equal probabilities are ordered by token id.
    """
    p_N1 = p_NV.gather(1, tokens_N[:, None])
    ids_V = torch.arange(p_NV.shape[1], device=p_NV.device)
    is_less_NV = (p_NV < p_N1) | ((p_NV == p_N1) & (ids_V > tokens_N[:, None]))
    return p_NV.masked_fill(~is_less_NV, 0.0).sum(1) + within_N * p_N1[:, 0]


def identity(p_NV: Tensor, tokens_N: Tensor, within_N: Tensor) -> Tensor:
    """Mass of the tokens with smaller ids than each drawn one, plus `within_N` of the drawn one."""
    ids_V = torch.arange(p_NV.shape[1], device=p_NV.device)
    drawn_N = p_NV.gather(1, tokens_N[:, None])[:, 0]
    before_N = p_NV.masked_fill(ids_V >= tokens_N[:, None], 0.0).sum(1)
    return before_N + within_N * drawn_N
