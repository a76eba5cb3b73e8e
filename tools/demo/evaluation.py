"""What the card says about the models: perplexity, entropy, acceptance and answers."""

import ast
import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tools.demo.architecture import EOS_ID, PAD_ID
from tools.demo.corpus.conversation import CorpusConversation
from tools.demo.documents import encode


# Shape suffixes: T positions of answers, V vocabulary.
class Answer(NamedTuple):
    """The ids of a prompt under the template and of the target's answer to it."""

    prompt: list[int]
    ids: list[int]


class Agreement(NamedTuple):
    """How well a draft fits the target on the target's own text."""

    greedy: float  # share of positions with equal argmax, on greedy text
    alpha: float  # mean of sum_x min(p(x), q(x)) at temperature 1, on sampled text


def prompt_ids(
    tokenizer: PreTrainedTokenizerFast, prompt: str, system: str | None = None
) -> list[int]:
    """The first user message under the chat template, ready for an answer."""
    messages = [{"role": "user", "content": prompt}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    ids: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True)[
        "input_ids"
    ]
    return ids


@torch.inference_mode()
def answers(
    model: LlamaForCausalLM,
    prompts: Sequence[list[int]],
    *,
    sampled: bool,
    max_new_tokens: int = 192,
    seed: int = 0,
) -> list[Answer]:
    """Answers up to and including the end mark, greedy or sampled at temperature 1."""
    torch.manual_seed(seed)
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD_ID] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    config = GenerationConfig(
        do_sample=sampled,
        top_k=0 if sampled else None,
        max_new_tokens=max_new_tokens,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
    )
    output = model.generate(
        input_ids=ids,
        attention_mask=mask,
        generation_config=config,
    )
    return [
        Answer(prompt, _until_end(row))
        for prompt, row in zip(prompts, output[:, width:].tolist(), strict=True)
    ]


@torch.inference_mode()
def perplexity(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    conversations: Sequence[CorpusConversation],
) -> float:
    """exp of the mean negative log-likelihood of the answer tokens of written conversations."""
    total, count = 0.0, 0
    for conversation in conversations:
        document = encode(conversation, tokenizer)
        ids = torch.tensor(document.ids)
        is_next = torch.tensor(document.is_answer[1:])
        log_probs = model(ids[None]).logits[0, :-1].log_softmax(-1)[is_next]
        total -= log_probs.gather(1, ids[1:][is_next][:, None]).sum().item()
        count += int(is_next.sum())
    return float(torch.tensor(total / count).exp())


def entropy(target: LlamaForCausalLM, sampled: Sequence[Answer]) -> float:
    """Mean entropy in nats a token of the target on its own sampled text."""
    p_TV = torch.cat([distributions(target, answer) for answer in sampled])
    return float(torch.special.entr(p_TV).sum(-1).mean())


def agreement(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    greedy: Sequence[Answer],
    sampled: Sequence[Answer],
) -> Agreement:
    """Teacher-forced agreement; alpha is 1 minus total variation (Leviathan et al. 2023, 3.2)."""
    same = [
        distributions(target, answer).argmax(-1) == distributions(draft, answer).argmax(-1)
        for answer in greedy
    ]
    shared = [
        torch.minimum(distributions(target, a), distributions(draft, a)).sum(-1) for a in sampled
    ]
    return Agreement(float(torch.cat(same).float().mean()), float(torch.cat(shared).mean()))


def code_blocks(text: str) -> list[str]:
    """The fenced Python blocks of an answer."""
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def parses(text: str) -> bool:
    """True if the answer has a Python block and every block is valid Python."""
    blocks = code_blocks(text)
    try:
        for block in blocks:
            ast.parse(block)
    except SyntaxError:
        return False
    return bool(blocks)


def most_repeated(ids: Sequence[int], n: int = 8) -> int:
    """How often the most frequent run of `n` tokens occurs."""
    runs = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return max((runs.count(run) for run in set(runs)), default=0)


@torch.inference_mode()
def distributions(model: LlamaForCausalLM, answer: Answer) -> Tensor:
    """The model's distribution before each token of the answer, [T, V]."""
    ids = torch.tensor([answer.prompt + answer.ids])
    logits_TV: Tensor = model(ids).logits[0, len(answer.prompt) - 1 : -1]
    return logits_TV.softmax(-1)


def _until_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(EOS_ID) + 1] if EOS_ID in ids else ids
