"""One training from start to end: ask the target, train, measure, write."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from specbench.decoding.backends import pinned_attention
from specbench.decoding.checkpoint_files import read_checkpoint
from specbench.decoding.digest import weights_sha256
from specbench.decoding.loading import LoadedModel, eos_ids
from specbench.decoding.runner import Runner
from specbench.decoding.self_test import make_checked_runner
from specbench.decoding.tokenizer import Tokenizer
from specbench.drafters.medusa import ACCURACIES
from specbench.engines.shelf import Shelf
from specbench.errors import UsageError
from specbench.model_spec import ModelSpec
from specbench.training.acceptance import Acceptance, measure_acceptance
from specbench.training.answering import answer, plan_answers
from specbench.training.batches import batches_of
from specbench.training.card import training_card
from specbench.training.head_files import CARD, write_head, write_json
from specbench.training.prompts import Asked, corpus_questions, workload_questions
from specbench.training.recipes import new_pupil, open_pupil, recipe_of
from specbench.training.teacher import Teacher
from specbench.training.texts import Text, TextFile
from specbench.training.trainer import Plan, train


class Watch(Protocol):
    """Told of stages, of what is done of them, and of what a user should know."""

    def stage(self, text: str) -> None: ...

    def advance(self, done: int, total: int, seconds_left: float | None) -> None: ...

    def warn(self, text: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """What a user may say of a training."""

    method: str
    target: ModelSpec
    out: Path
    prompts: tuple[str, ...] = ()
    texts: Path | None = None  # a file of texts to share between heads of one target
    num_texts: int = 2000
    temperatures: tuple[float, ...] = (0.0, 0.7)
    max_new_tokens: int = 192
    max_tokens: int = 1024  # of a text
    steps: int = 800
    tokens_per_batch: int = 2048
    num_heads: int = 4  # of Medusa
    mtp_layers: int = 1
    rows: int = 32
    dtype: str | None = None
    seed: int = 0
    budget_s: float | None = None
    resume: bool = False
    keep_gib: float = 4.0  # of the target's states, between epochs
    save_every: int = 100

    @property
    def asked(self) -> dict[str, Any]:
        """What weights follow from, beside the texts: a resumed training must repeat it."""
        return {
            "method": self.method,
            "steps": self.steps,
            "tokens_per_batch": self.tokens_per_batch,
            "num_heads": self.num_heads,
            "mtp_layers": self.mtp_layers,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
        }


def train_head(
    settings: TrainSettings, device: torch.device, command: tuple[str, ...], watch: Watch
) -> dict[str, Any]:
    """Write the head to `settings.out` and return its card.

    The folder has config.json and model.safetensors, which a pairing's `model:` names, the card
    training.json, and in work/ what an interrupted training goes on from.
    """
    began = time.monotonic()
    recipe = recipe_of(settings.method)
    _check_folder(settings)
    watch.stage("loading the target")
    shelf = Shelf(device, settings.dtype)
    loaded, tokenizer = shelf.load(settings.target), shelf.tokenizer(settings.target)
    runner, notes = make_checked_runner(loaded.model)
    for note in notes:
        watch.warn(note)
    asked = _questions(settings, tokenizer, runner)
    texts = _texts(settings, loaded, runner, asked, watch)
    config = loaded.model.config
    count = settings.num_heads if settings.method == "medusa" else settings.mtp_layers
    pupil = new_pupil(settings.method, runner, config, texts, settings.seed, count)
    teacher = Teacher(runner, pupil.features, int(settings.keep_gib * 2**30))
    kept = [text for text in texts if not text.is_held_out]
    batches = batches_of(
        kept, settings.tokens_per_batch, settings.max_tokens, settings.seed, device
    )
    watch.stage(f"training {settings.method}")
    left = None if settings.budget_s is None else settings.budget_s - (time.monotonic() - began)
    plan = Plan(
        recipe.schedule(settings.steps, runner.hidden_size),
        settings.seed,
        None if left is None else max(left, 1.0),
        settings.save_every,
    )
    told = _Told(watch)
    facts = {**settings.asked, "target_sha256": loaded.content_sha256, "texts": len(texts)}
    with pinned_attention(device):
        progress = train(
            pupil, teacher, batches, plan, settings.out / "work" / "state.ckpt", facts, told
        )
        watch.stage("measuring")
        write_head(settings.out, pupil.checkpoint())
        acceptance = _measured(settings, runner, texts, device)
    if acceptance.ranks:
        measured = pupil.checkpoint()
        ranks = [list(head) for head in acceptance.ranks]
        write_head(settings.out, replace(measured, config={**measured.config, ACCURACIES: ranks}))
    card = training_card(
        settings,
        command,
        loaded=loaded,
        progress=progress,
        acceptance=acceptance,
        texts=texts,
        sources=asked.sources,
        num_parameters=sum(tensor.numel() for tensor in pupil.parameters.values()),
        device=device,
        seconds=time.monotonic() - began,
        weights_sha256=weights_sha256(str(settings.out), None),
    )
    write_json(settings.out / CARD, card)
    return card


def _check_folder(settings: TrainSettings) -> None:
    work = settings.out / "work"
    if settings.resume and not work.is_dir():
        raise UsageError(f"{settings.out} holds no training to go on with; leave --resume out")
    if not settings.resume and settings.out.exists() and any(settings.out.iterdir()):
        raise UsageError(
            f"{settings.out} is not empty; --resume goes on with its training, or choose another "
            "--out"
        )
    work.mkdir(parents=True, exist_ok=True)


def _questions(settings: TrainSettings, tokenizer: Tokenizer, runner: Runner) -> Asked:
    most = settings.max_tokens
    if runner.max_position is not None:
        most = min(most, runner.max_position)
    most -= min(settings.max_new_tokens, most // 2)
    if settings.prompts or settings.target.source != "demo:target":
        return workload_questions(settings.prompts, tokenizer, most, settings.seed)
    return corpus_questions(tokenizer, most, settings.seed)


def _texts(
    settings: TrainSettings, loaded: LoadedModel, runner: Runner, asked: Asked, watch: Watch
) -> list[Text]:
    """The target's answers, those of an earlier training where they are given."""
    jobs = plan_answers(asked.questions, settings.temperatures, settings.num_texts, settings.seed)
    origin = {
        "target_sha256": loaded.content_sha256,
        "sources": asked.sources,
        "temperatures": list(settings.temperatures),
        "max_new_tokens": settings.max_new_tokens,
        "seed": settings.seed,
    }
    path = settings.texts or settings.out / "work" / "texts.jsonl"
    file = TextFile(path, origin, runner.vocab_size)
    watch.stage("asking the target")
    answer(
        runner,
        eos_ids(loaded.model),
        jobs,
        file,
        max_new_tokens=settings.max_new_tokens,
        num_rows=settings.rows,
        told=lambda done, total: watch.advance(done, total, None),
    )
    return file.texts[: len(jobs)]


def _measured(
    settings: TrainSettings, runner: Runner, texts: list[Text], device: torch.device
) -> Acceptance:
    """Of the head as it was written."""
    held_out = [text for text in texts if text.is_held_out]
    batches = batches_of(
        held_out, settings.tokens_per_batch, settings.max_tokens, settings.seed, device
    )
    pupil = open_pupil(settings.method, read_checkpoint(str(settings.out)), runner)
    return measure_acceptance(pupil, Teacher(runner, pupil.features, 0), batches)


class _Told:
    """Passes on how a training goes, now and then in words."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __call__(self, step: int, steps: int, loss: float) -> None:
        self._watch.advance(step, steps, None)
        if step % 50 == 0 or step == steps:
            self._watch.stage(f"step {step} of {steps}: loss {loss:.3f}")
