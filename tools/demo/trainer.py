"""The training loop: processes of one thread each that average their gradients."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from tools.demo.documents import Batch
from tools.demo.optimizer import together
from tools.training.trainer import MuonAdamW, Schedule

Loss = Callable[[LlamaForCausalLM, Batch], Tensor]


@dataclass(kw_only=True)
class Progress:
    """What the card tells about a training."""

    losses: list[float] = field(default_factory=list)  # mean over each 100 steps
    tokens: int = 0
    wall_s: float = 0.0


def train(
    model: LlamaForCausalLM,
    batches: list[Batch],
    loss_of: Loss,
    schedule: Schedule,
    checkpoint: Path,
) -> Progress:
    """Train in place inside a process group; goes on from the checkpoint if there is one."""
    rank, world = dist.get_rank(), dist.get_world_size()
    progress, start = Progress(), 0
    optimizer = MuonAdamW(
        dict(model.named_parameters()), model.config.vocab_size, orthogonalize=together
    )
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=False)
        model.load_state_dict(saved["model"])
        optimizer.load(saved["optimizer"])
        progress, start = saved["progress"], saved["step"]
    parameters = list(model.parameters())
    recent, began, wall_before = [], time.monotonic(), progress.wall_s
    for step in range(start, schedule.steps):
        batch = batches[(step * world + rank) % len(batches)]
        loss = loss_of(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        _average_gradients(parameters)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        factor = schedule.factor(step)
        optimizer.step(schedule.muon_lr * factor, schedule.adamw_lr * factor)
        model.zero_grad(set_to_none=True)
        recent.append(loss.item())
        progress.tokens += world * batch.ids_BT.numel()
        progress.wall_s = wall_before + time.monotonic() - began
        if (step + 1) % 100 == 0 or step + 1 == schedule.steps:
            progress.losses.append(sum(recent) / len(recent))
            recent = []
            if rank == 0:
                speed = progress.tokens / progress.wall_s
                print(
                    f"step {step + 1}: loss {progress.losses[-1]:.4f}, {speed:.0f} tokens/s",
                    flush=True,
                )
                _save(checkpoint, model, optimizer, progress, step + 1)
    return progress


def answer_loss(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    """Mean cross-entropy in nats over the answer tokens."""
    hidden_BTC = model.model(input_ids=batch.ids_BT, use_cache=False)[0]
    is_next = batch.is_answer_BT[:, 1:]
    logits = model.lm_head(hidden_BTC[:, :-1][is_next])
    return nn.functional.cross_entropy(logits, batch.ids_BT[:, 1:][is_next])


def _average_gradients(parameters: list[nn.Parameter]) -> None:
    if dist.get_world_size() == 1:
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    parts = torch.split(flat, [g.numel() for g in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def _save(
    checkpoint: Path, model: LlamaForCausalLM, optimizer: MuonAdamW, progress: Progress, step: int
) -> None:
    temporary = checkpoint.with_suffix(".tmp")
    state = {"model": model.state_dict(), "optimizer": optimizer.state(), "progress": progress}
    torch.save({**state, "step": step}, temporary)
    temporary.replace(checkpoint)
