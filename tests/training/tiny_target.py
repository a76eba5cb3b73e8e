"""A tiny target with its own texts and heads, made once and trained in seconds."""

from functools import cache
from typing import Any, NamedTuple

import torch

from specbench.forward.runner import StockRunner
from tests.decoding.models import random_prompt, tiny_llama
from tools.training.student import Student, new_student
from tools.training.teacher import Batch, Teacher, batches_of
from tools.training.texts import TrainingText, is_held_out
from tools.training.trainer import Plan, Schedule

SETTINGS = {"method": "any", "seed": 0}
VOCAB_SIZE = 11
METHODS = ("eagle", "eagle3", "medusa", "mtp")
CPU = torch.device("cpu")


class Lab(NamedTuple):
    """A target and the parts of a training of a head for it."""

    target: StockRunner
    texts: list[TrainingText]
    batches: list[Batch]
    held_out: list[Batch]

    def student(self, method: str, num_heads: int | None = None) -> Student:
        count = num_heads or (3 if method == "medusa" else 1)
        return new_student(method, self.target, self.target.config, self.texts, 1, count)

    def teacher(self, student: Student) -> Teacher:
        return Teacher(self.target, student.features, 2**24)


@cache
def lab(say: float = 1.0) -> Lab:
    """`say`: how much its layers add to the last token's embedding; of little, heads learn."""
    model = _target(say)
    prompts = [random_prompt(length, seed, VOCAB_SIZE) for seed in range(24) for length in (5, 8)]
    answers = _answers(model, [p for p in prompts if len(p) == 5])
    answers |= _answers(model, [p for p in prompts if len(p) == 8])
    texts = [
        TrainingText((*prompt, *answers[prompt]), len(prompt), is_held_out(prompt))
        for prompt in dict.fromkeys(prompts)
    ]
    texts[0] = texts[0]._replace(is_held_out=True)
    kept, held_out = ([t for t in texts if t.is_held_out is flag] for flag in (False, True))
    batches = batches_of(kept, 256, 128, 0, CPU)
    return Lab(StockRunner(_target(say)), texts, batches, batches_of(held_out, 256, 128, 0, CPU))


def plan(steps: int, seed: int = 0, rate: float = 8e-3) -> Plan:
    schedule = Schedule(steps=steps, muon_lr=rate, adamw_lr=rate, warm_up=4)
    return Plan(schedule, seed, save_every=3)


def silent(step: int, steps: int, loss: float) -> None:
    """Ignores messages."""


def _answers(model: Any, prompts: list[tuple[int, ...]]) -> dict[tuple[int, ...], list[int]]:
    """Twenty greedy tokens after each of some prompts of one length."""
    ids_BT = torch.tensor(prompts)
    out_BT = model.generate(
        ids_BT,
        attention_mask=torch.ones_like(ids_BT),
        do_sample=False,
        max_new_tokens=20,
        min_new_tokens=20,
    )
    return dict(zip(prompts, out_BT[:, ids_BT.shape[1] :].tolist(), strict=True))


def _target(say: float) -> Any:
    model = tiny_llama(vocab_size=VOCAB_SIZE, num_hidden_layers=3).requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.mul_(say)
        layer.mlp.down_proj.weight.mul_(say)
    return model
