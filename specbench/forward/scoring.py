"""Log-probabilities of finished texts under the target, to choose the best sample.

Shape suffixes: B samples, T tokens fed, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specbench.footprint import rounded_up
from specbench.forward.attention.stock import pinned_attention
from specbench.forward.runner import Runner, check_context

MOST_LOGITS = 2**25  # per forward
_CHUNK = 512  # tokens per row and forward


@torch.inference_mode()
def mean_log_probs(
    target: Runner, prompt_ids: Sequence[int], outputs: Sequence[Sequence[int]]
) -> tuple[float, ...]:
    """Mean log-probability per token of each output after the prompt, in nats per token.

    The distribution is the target's at temperature 1. The end-of-text token counts like any other,
    and dividing by the length keeps short texts from being preferred. The prompt is prefilled once,
    the outputs run as a batch. Uses the target's rows 0 .. B - 1, whose requests must be done.
    Raises ModelError if a text is longer than the target's context.
    """
    num_samples, num_prompt = len(outputs), len(prompt_ids)
    longest = max(map(len, outputs))
    check_context(target.max_position, num_prompt + longest)
    target.allocate(num_samples, rounded_up(num_prompt + longest))
    scores_B = torch.zeros(num_samples, device=target.device)
    lengths_B = torch.tensor(list(map(len, outputs)), device=target.device)
    # The logits after the last prompt token predict the first output token.
    fed_BT = pad_sequence(
        [torch.tensor([prompt_ids[-1], *output]) for output in outputs], batch_first=True
    ).to(target.device)
    begin = num_prompt - 1
    chunk = max(min(MOST_LOGITS // (num_samples * target.vocab_size), _CHUNK), 1)
    with pinned_attention(target.device):
        _prefill(target, prompt_ids[:-1], num_samples)
        for start in range(0, longest, chunk):
            offsets_T = torch.arange(start, min(start + chunk, longest), device=target.device)
            logits_BTV = target.forward(
                fed_BT[:, offsets_T],
                (begin + offsets_T).expand(num_samples, -1),
                rounded_up(begin + start + len(offsets_T)),
                start=begin + start,
            ).logits
            output_BT1 = fed_BT[:, offsets_T + 1, None]
            log_probs_BT = logits_BTV.float().log_softmax(-1).gather(-1, output_BT1)[..., 0]
            scores_B += log_probs_BT.masked_fill(offsets_T >= lengths_B[:, None], 0.0).sum(1)
    return tuple((scores_B / lengths_B).tolist())


@torch.inference_mode()
def next_logits(target: Runner, tokens: Sequence[int]) -> Tensor:
    """Logits [V] of the token after a text of at least one token.

    Uses the target's row 0, whose request must be done. Raises ModelError if the text is longer
    than the target's context.
    """
    num_tokens = len(tokens)
    check_context(target.max_position, num_tokens)
    target.allocate(1, rounded_up(num_tokens))
    last_11 = torch.tensor([[tokens[-1]]], device=target.device)
    with pinned_attention(target.device):
        _prefill(target, tokens[:-1], 1)
        position_11 = torch.full_like(last_11, num_tokens - 1)
        span = rounded_up(num_tokens)
        return target.forward(last_11, position_11, span, start=num_tokens - 1).logits[0, -1]


def _prefill(target: Runner, tokens: Sequence[int], num_rows: int) -> None:
    """Prefill the first row with tokens that all rows begin with, and copy it to the others."""
    tokens_1T = torch.tensor([list(tokens)], device=target.device)
    for start in range(0, len(tokens), _CHUNK):
        stop = min(start + _CHUNK, len(tokens))
        positions_1T = torch.arange(start, stop, device=target.device)[None]
        target.forward(
            tokens_1T[:, start:stop],
            positions_1T,
            rounded_up(stop),
            last_B=torch.zeros_like(positions_1T[0, :1]),
            start=start,
        )
    for row in range(1, num_rows):
        target.copy_row(0, row, len(tokens))


def likeliest(log_probs: Sequence[float]) -> int:
    """The index of the sample with the highest mean log-probability, or the first of a tie."""
    return max(range(len(log_probs)), key=lambda i: log_probs[i])
