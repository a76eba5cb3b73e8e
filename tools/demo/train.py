"""Train the embedded pair: `python -m tools.demo.train --out DIR`."""

import argparse
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from transformers import AutoTokenizer, LlamaForCausalLM

from tools.demo.architecture import draft_model, poor_model, target_model
from tools.demo.corpus import (
    DRAFT_START,
    END,
    SEED,
    TARGET_START,
    training_conversations,
)
from tools.demo.corpus.grammar import Dice
from tools.demo.documents import Batch, batches, encode
from tools.demo.tokenizer import train_tokenizer
from tools.demo.trainer import Loss, answer_loss, train
from tools.training.trainer import Schedule

PARTS = ("target", "draft", "poor")
TARGET_STEPS, DRAFT_STEPS, POOR_STEPS = 2100, 500, 140
TOKENS_PER_PROCESS = 1408
DECAY_PART = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for models and checkpoints")
    parser.add_argument("--part", choices=("tokenizer", *PARTS, "all"), default="all")
    parser.add_argument("--processes", type=int, default=2, help="one thread each")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.part in ("tokenizer", "all"):
        make_tokenizer(arguments.out)
    for part in PARTS:
        if arguments.part in (part, "all"):
            _rendezvous(arguments.out, part).unlink(missing_ok=True)
            world = (arguments.processes, part, arguments.out)
            spawn(_process, world, arguments.processes)  # type: ignore[no-untyped-call]


def make_tokenizer(out: Path) -> None:
    """Learn the vocabulary from 2000 conversations of each register."""
    texts = (
        message["content"]
        for conversation in training_conversations(SEED, 0, 2000)
        for message in conversation.messages()
    )
    train_tokenizer(texts).save_pretrained(out / "tokenizer")


def _process(rank: int, world: int, part: str, out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{_rendezvous(out, part)}", rank=rank, world_size=world
    )
    trainers = (_train_target, _train_draft, _train_poor)
    dict(zip(PARTS, trainers, strict=True))[part](out)
    dist.destroy_process_group()


def _rendezvous(out: Path, part: str) -> Path:
    """The file over which the processes find each other; a killed run leaves it behind."""
    return (out / f"rendezvous-{part}").resolve()


def _train_target(out: Path) -> None:
    """From a random start, over all registers alike."""
    schedule = Schedule(steps=TARGET_STEPS, muon_lr=5e-3, adamw_lr=5e-3, decay_part=DECAY_PART)
    rows = _batches(out, TARGET_START, DRAFT_START)
    _run("target", out, target_model(SEED), rows, answer_loss, schedule)


def _train_draft(out: Path) -> None:
    """Distil: the loss is the cross-entropy to the target's whole distribution."""
    target = LlamaForCausalLM.from_pretrained(out / "target", dtype=torch.float32).eval()
    model = draft_model(target, SEED + 1)
    schedule = Schedule(steps=DRAFT_STEPS, muon_lr=4e-3, adamw_lr=2e-3, decay_part=DECAY_PART)
    rows = _batches(out, DRAFT_START, END)
    _run("draft", out, model, rows, partial(distillation_loss, target), schedule)


def _train_poor(out: Path) -> None:
    """Hardly trained, and without the target."""
    model = poor_model(SEED + 2)
    schedule = Schedule(steps=POOR_STEPS, muon_lr=5e-3, adamw_lr=5e-3, decay_part=DECAY_PART)
    rows = _batches(out, TARGET_START, 2000)
    _run("poor", out, model, rows, answer_loss, schedule)


def distillation_loss(target: LlamaForCausalLM, model: LlamaForCausalLM, batch: Batch) -> Tensor:
    """Cross-entropy in nats between the target's distribution and the model's, on answers."""
    is_next = batch.is_answer_BT[:, 1:]
    with torch.no_grad():
        hidden = target.model(input_ids=batch.ids_BT, use_cache=False)[0][:, :-1][is_next]
        probabilities = target.lm_head(hidden).softmax(-1)
    hidden = model.model(input_ids=batch.ids_BT, use_cache=False)[0][:, :-1][is_next]
    return nn.functional.cross_entropy(model.lm_head(hidden), probabilities)


def _batches(out: Path, start: int, end: int) -> list[Batch]:
    tokenizer = AutoTokenizer.from_pretrained(out / "tokenizer")
    conversations = training_conversations(SEED, start, end)
    documents = [encode(conversation, tokenizer) for conversation in conversations]
    return batches(documents, TOKENS_PER_PROCESS, Dice(SEED, "order", start))


def _run(
    name: str,
    out: Path,
    model: LlamaForCausalLM,
    rows: list[Batch],
    loss_of: Loss,
    schedule: Schedule,
) -> None:
    progress = train(model, rows, loss_of, schedule, out / f"{name}.checkpoint")
    if dist.get_rank() == 0:
        model.to(torch.bfloat16).save_pretrained(out / name)
        AutoTokenizer.from_pretrained(out / "tokenizer").save_pretrained(out / name)
        record = {"schedule": asdict(schedule), "progress": asdict(progress), "batches": len(rows)}
        (out / f"{name}.json").write_text(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
