"""A whole training: generate the target's answers, train a head, measure it, write its card."""

import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save
from torch import Tensor

from specbench.engines.model_pool import ModelPool
from specbench.errors import ModelMemoryError, UsageError
from specbench.files.medusa import ACCURACIES
from specbench.forward.attention.stock import pinned_attention
from specbench.forward.runner import Runner
from specbench.forward.self_test import make_checked_runner
from specbench.models.checkpoint import Checkpoint, read_checkpoint
from specbench.models.loading import LoadedModel, weights_sha256
from specbench.models.tokenizer import ChatTokenizer
from specbench.probes.environment import cpu_model, git_commit, package_versions, program_name
from specbench.shipped import PACKAGE
from tools.training.settings import MAX_TOKENS, RECIPES, TrainSettings, replaced
from tools.training.student import (
    Acceptance,
    Student,
    measure_acceptance,
    new_student,
    open_student,
)
from tools.training.teacher import Batch, Teacher, batches_of
from tools.training.texts import (
    TextFile,
    TrainingPrompts,
    TrainingText,
    answer,
    corpus_questions,
    plan_answers,
    workload_questions,
)
from tools.training.trainer import Plan, schedule, train

CARD = "training.json"
_CACHE_BYTES = 4 * 2**30  # for the target's states, which each epoch needs again


def write_head(folder: Path, checkpoint: Checkpoint, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write the head's tensors and config; floating-point tensors are converted to `dtype`."""
    folder.mkdir(parents=True, exist_ok=True)

    def converted(tensor: Tensor) -> Tensor:
        cast = tensor.to(dtype) if tensor.is_floating_point() else tensor
        return cast.detach().cpu().contiguous()

    tensors = {name: converted(tensor) for name, tensor in checkpoint.tensors.items()}
    with replaced(folder / "model.safetensors") as stream:
        stream.write(save(tensors, metadata={"format": "pt"}))
    write_json(folder / "config.json", dict(checkpoint.config))


def write_json(path: Path, content: dict[str, Any]) -> None:
    with replaced(path) as stream:
        stream.write(f"{json.dumps(content, indent=2)}\n".encode())


class TrainingReporter(Protocol):
    """Receives stages, their progress, and warnings."""

    def stage(self, text: str) -> None: ...

    def advance(self, done: int, total: int, seconds_left: float | None) -> None: ...

    def warn(self, text: str) -> None: ...


def train_head(
    settings: TrainSettings, device: torch.device, command: tuple[str, ...], watch: TrainingReporter
) -> dict[str, Any]:
    """Write the head to `settings.out` and return its card.

    A pairing's `model:` names this folder. It contains config.json, model.safetensors, the card
    training.json, and work/ with the files that an interrupted training resumes from.
    ModelMemoryError if the device has too little memory; also the errors of `load_model`, of
    workloads and of stored texts.
    """
    try:
        with pinned_attention(device):
            return _train_head(settings, device, command, watch)
    except torch.OutOfMemoryError as error:
        raise ModelMemoryError(
            f"{settings.spec.source} and the training of its head do not fit on {device}: choose "
            "a smaller --tokens-per-batch or --rows, or a smaller target"
        ) from error


def _train_head(
    settings: TrainSettings, device: torch.device, command: tuple[str, ...], watch: TrainingReporter
) -> dict[str, Any]:
    began = time.monotonic()
    recipe = RECIPES[settings.method]
    _check_folder(settings)
    watch.stage("loading the target")
    pool = ModelPool(device, settings.dtype)
    loaded, tokenizer = pool.load(settings.spec), pool.tokenizer(settings.spec)
    runner, notes = make_checked_runner(loaded.model)
    for note in notes:
        watch.warn(note)
    prompts = _questions(settings, tokenizer, runner, watch)
    texts = _texts(settings, loaded, runner, prompts, watch)

    watch.stage(f"training {settings.method}")
    sizes = {"num_heads": settings.num_heads, "num_layers": settings.mtp_layers}
    size = sizes.get(recipe.size, 1)
    student = new_student(settings.method, runner, loaded.model.config, texts, settings.seed, size)
    plan = Plan(
        schedule(recipe, settings.steps, runner.hidden_size),
        settings.seed,
        _seconds_left(settings, began),
    )
    progress = train(
        student,
        Teacher(runner, student.features, _CACHE_BYTES),
        batches_for(settings, texts, device, held_out=False),
        plan,
        settings.out / "work" / "state.ckpt",
        {**settings.identity, "target_sha256": loaded.content_sha256, "texts": len(texts)},
        _ThrottledReporter(watch),
    )

    watch.stage("measuring")
    acceptance = _write_and_measure(settings, student, runner, texts, device)
    # The card must not contain host, user or folder names.
    card = {
        "method": settings.method,
        "command": [program_name(command[0]), *command[1:]],
        "target": {
            "source": settings.spec.source,
            "sha256": loaded.content_sha256,
            "dtype": loaded.dtype,
        },
        "head": {
            "parameters": sum(tensor.numel() for tensor in student.parameters.values()),
            "sha256": weights_sha256(str(settings.out), None),
            "stored_as": "bfloat16",
        },
        "texts": {
            "sources": dict(prompts.sources),
            "temperatures": list(settings.temperatures),
            "count": len(texts),
            "held_out": sum(text.is_held_out for text in texts),
            "answer_tokens": sum(len(text.ids) - text.num_prompt for text in texts),
        },
        "training": {
            **settings.identity,
            "steps": progress.steps,
            "answer_tokens": progress.tokens,
            "losses_per_100_steps": [round(loss, 4) for loss in progress.losses],
            "seconds": round(progress.seconds, 1),
        },
        "held_out": {
            "acceptance_per_position": list(acceptance.per_position),
            "mean_length_of_the_chain": round(acceptance.mean_length, 4),
            "contexts": acceptance.contexts,
            "text": "greedy answers to prompts that were not trained on",
        },
        "seconds": round(time.monotonic() - began, 1),
        "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
        "cpu": cpu_model(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "packages": package_versions(),
        "commit": git_commit(PACKAGE),
    }
    write_json(settings.out / CARD, card)
    return card


def batches_for(
    settings: TrainSettings, texts: Sequence[TrainingText], device: torch.device, *, held_out: bool
) -> list[Batch]:
    """Batches of the held-out texts, or of the others."""
    selected = [text for text in texts if text.is_held_out is held_out]
    return batches_of(selected, settings.tokens_per_batch, MAX_TOKENS, settings.seed, device)


def _seconds_left(settings: TrainSettings, began: float) -> float | None:
    if settings.budget_s is None:
        return None
    return max(settings.budget_s - (time.monotonic() - began), 1.0)


def _check_folder(settings: TrainSettings) -> None:
    out, work = settings.out, settings.out / "work"
    try:
        if settings.resume and not work.is_dir():
            raise UsageError(f"{out} has no training to resume; leave --resume out")
        if not settings.resume and out.exists() and any(out.iterdir()):
            raise UsageError(
                f"{out} is not empty; resume its training with --resume, or choose another --output"
            )
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output {out}: {error.strerror}") from error


def _questions(
    settings: TrainSettings, tokenizer: ChatTokenizer, runner: Runner, watch: TrainingReporter
) -> TrainingPrompts:
    most = MAX_TOKENS
    if runner.max_position is not None:
        most = min(most, runner.max_position)
    most -= min(settings.max_new_tokens, most // 2)
    if settings.prompts or settings.spec.source != "demo:target":
        if not settings.prompts:
            watch.warn("trains on the shipped workloads: measure the head on other prompts")
        prompts = workload_questions(
            settings.prompts, tokenizer, most, settings.seed, settings.prompt_field
        )
        for note in prompts.notes:
            watch.warn(note)
        return prompts
    return corpus_questions(tokenizer, most, settings.seed)


def _texts(
    settings: TrainSettings,
    loaded: LoadedModel,
    runner: Runner,
    prompts: TrainingPrompts,
    watch: TrainingReporter,
) -> list[TrainingText]:
    """The target's answers; those that are already in the file are not generated again."""
    jobs = plan_answers(prompts.questions, settings.temperatures, settings.num_texts, settings.seed)
    origin = {
        "target_sha256": loaded.content_sha256,
        "sources": prompts.sources,
        "temperatures": list(settings.temperatures),
        "max_new_tokens": settings.max_new_tokens,
        "seed": settings.seed,
    }
    path = settings.texts or settings.out / "work" / "texts.jsonl"
    file = TextFile(path, origin, runner.vocab_size)
    watch.stage("asking the target")
    answer(
        runner,
        loaded.eos_ids,
        jobs,
        file,
        max_new_tokens=settings.max_new_tokens,
        num_rows=settings.rows,
        report=lambda done, total: watch.advance(done, total, None),
    )
    return file.texts[: len(jobs)]


def _write_and_measure(
    settings: TrainSettings,
    student: Student,
    runner: Runner,
    texts: list[TrainingText],
    device: torch.device,
) -> Acceptance:
    """Write the head and measure it as written; Medusa's accuracies are added to its config."""
    trained = student.checkpoint()
    write_head(settings.out, trained)
    written = open_student(settings.method, read_checkpoint(str(settings.out)), runner)
    batches = batches_for(settings, texts, device, held_out=True)
    acceptance = measure_acceptance(written, Teacher(runner, written.features, 0), batches)
    if acceptance.ranks:
        ranks = [list(head) for head in acceptance.ranks]
        write_json(settings.out / "config.json", {**trained.config, ACCURACIES: ranks})
    return acceptance


class _ThrottledReporter:
    """Reports the progress of a training; the loss only every 50 steps."""

    def __init__(self, watch: TrainingReporter) -> None:
        self._watch = watch

    def __call__(self, step: int, steps: int, loss: float) -> None:
        self._watch.advance(step, steps, None)
        if step % 50 == 0 or step == steps:
            self._watch.stage(f"step {step} of {steps}: loss {loss:.3f}")
