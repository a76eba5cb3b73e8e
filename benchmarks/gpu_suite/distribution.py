"""The distribution of sampled text on a model so small that it is known exactly.

Shape suffixes: N texts, T their tokens, V vocabulary.
"""

import itertools
from typing import Any

import torch
from scipy.stats import chisquare
from torch import Tensor
from transformers import LlamaConfig

from benchmarks.gpu_suite.models import make_model
from specbench.decode.drafter import Proposal
from specbench.decode.sampling import Sampler
from specbench.decode.verifier import Verdict

VOCAB_SIZE = 7
NUM_TOKENS = 5  # the last three are tested: rounds of several drafts lead there
PROMPT = (1, 5, 2, 3, 1, 5, 2, 6, 4, 1, 5)
_FEW = 5.0  # texts expected less often than this are counted together


def tiny(device: torch.device, *, seed: int) -> Any:
    """A one-layer model of seven tokens in float32."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    return make_model(config, torch.float32, device, seed=seed)


@torch.inference_mode()
def exact_distribution(model: Any, temperature: float) -> Tensor:
    """Probability of the last three tokens [V, V, V] by the model's own forward, in float64."""
    prefixes = itertools.product(range(VOCAB_SIZE), repeat=NUM_TOKENS - 1)
    tokens_NT = torch.tensor([[*PROMPT, *prefix] for prefix in prefixes], device=model.device)
    logits_NTV = model(input_ids=tokens_NT, use_cache=False).logits[:, len(PROMPT) - 1 :].cpu()
    probs = torch.ones((), dtype=torch.float64)
    for i in range(NUM_TOKENS):
        scores_NV = logits_NTV[:: VOCAB_SIZE ** (NUM_TOKENS - 1 - i), i].double() / temperature
        probs = probs[..., None] * scores_NV.softmax(-1).view(*probs.shape, VOCAB_SIZE)
    return probs.sum(dim=tuple(range(NUM_TOKENS - 3)))


def p_value(texts_NT: Tensor, probs: Tensor) -> float:
    """Chi-square p-value of the texts under the distribution; rare ones are counted together."""
    places_3 = torch.tensor([VOCAB_SIZE**2, VOCAB_SIZE, 1])
    observed = torch.bincount(
        (texts_NT[:, -3:] * places_3).sum(1), minlength=probs.numel()
    ).double()
    expected = probs.flatten() * len(texts_NT)
    is_rare = expected < _FEW
    if is_rare.any():
        observed, expected = (
            torch.cat([counts[~is_rare], counts[is_rare].sum()[None]])
            for counts in (observed, expected)
        )
    return float(chisquare(observed, expected).pvalue)


def accept_all(
    proposal: Proposal,
    logits_BNV: Tensor,
    sampler: Sampler,
    seed_B: Tensor,
    positions_BN: Tensor,
) -> Verdict:
    """A wrong verifier, which the test has to catch: it keeps every draft."""
    target_BN = sampler.pick(logits_BNV, seed_B, positions_BN)
    return Verdict(proposal.num_drafted_B, torch.cat([proposal.tokens_BK, target_BN[:, -1:]], 1))
