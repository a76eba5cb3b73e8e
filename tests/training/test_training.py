"""A killed training resumes to the same bits; a checkpoint that cannot be resumed is refused."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specbench.errors import ModelError, ModelMemoryError, StoreError
from specbench.files.model_spec import ModelSpec
from specbench.forward.runner import StockRunner
from specbench.models.checkpoint import read_checkpoint
from tests.decoding.models import tiny_llama
from tests.training.tiny_target import (
    CPU,
    METHODS,
    SETTINGS,
    VOCAB_SIZE,
    Lab,
    lab,
    plan,
    silent,
)
from tools.training import student as students
from tools.training import train_head
from tools.training.settings import TrainSettings
from tools.training.student import Student, measure_acceptance, open_student
from tools.training.train_head import batches_for, write_head
from tools.training.trainer import Plan, StepCallback, TrainingProgress, train


class Killed(Exception):
    """The process ends here."""


def killed_after(last: int) -> StepCallback:
    def report(step: int, steps: int, loss: float) -> None:  # noqa: ARG001
        if step == last:
            raise Killed

    return report


def trained(
    student: Student,
    path: Path,
    steps: int = 6,
    report: StepCallback = silent,
    bench: Lab | None = None,
) -> TrainingProgress:
    bench = bench or lab()
    return train(
        student, bench.teacher(student), bench.batches, plan(steps), path, SETTINGS, report
    )


def weights(student: Student) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in student.parameters.items()}


@pytest.mark.parametrize("method", METHODS)
def test_gradients_reach_every_weight(method):
    bench, student = lab(), lab().student(method)
    teacher = bench.teacher(student)
    for parameter in student.parameters.values():  # a 0 may hide a gradient behind it
        parameter.data += 0.05

    student.loss(teacher.lesson(bench.batches[0]), torch.Generator().manual_seed(0)).backward()

    for name, parameter in student.parameters.items():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    assert not any(p.requires_grad for p in bench.target.model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_killed_training_resumes_to_identical_weights(method, tmp_path):
    at_once, in_two, killer = lab().student(method), lab().student(method), killed_after(5)
    whole = trained(at_once, tmp_path / "whole")

    with pytest.raises(Killed):
        trained(in_two, tmp_path / "parts", report=killer)
    resumed = lab().student(method)
    parts = trained(resumed, tmp_path / "parts")

    assert (parts.step, parts.losses) == (whole.step, whole.losses)
    for name, tensor in weights(at_once).items():
        assert torch.equal(tensor, resumed.parameters[name]), name


@pytest.mark.parametrize("method", METHODS)
def test_weights_stay_in_float32_with_a_bfloat16_target(method, tmp_path):
    half = StockRunner(
        tiny_llama(vocab_size=VOCAB_SIZE, num_hidden_layers=3).requires_grad_(False).bfloat16()
    )
    bench = lab()._replace(target=half)
    student = bench.student(method)
    path = tmp_path / "state"

    train(student, bench.teacher(student), bench.batches, plan(3), path, SETTINGS, silent)

    assert {tensor.dtype for tensor in student.parameters.values()} == {torch.float32}
    is_rounded = [t.equal(t.bfloat16().float()) for t in student.parameters.values()]
    assert not all(is_rounded)


def test_a_head_for_a_large_vocabulary_learns_the_most_frequent_tokens(tmp_path, monkeypatch):
    monkeypatch.setattr(students, "_MAX_DRAFT_VOCABULARY", 7)
    bench = lab(0.1)
    student = bench.student("eagle3")

    trained(student, tmp_path / "state", bench=bench)
    write_head(tmp_path / "head", student.checkpoint())
    written = open_student("eagle3", read_checkpoint(str(tmp_path / "head")), bench.target)

    counts_V = students.token_counts(bench.texts, VOCAB_SIZE)
    d2t_D = written.checkpoint().tensors["d2t"]
    ids = (d2t_D + torch.arange(7)).tolist()
    assert min(counts_V[ids]) >= max(counts_V[i] for i in range(VOCAB_SIZE) if i not in ids)
    assert measure_acceptance(written, bench.teacher(written), bench.held_out, 1).contexts > 0


def test_a_training_that_does_not_fit_into_memory_names_what_is_smaller(monkeypatch, tmp_path):
    def run_out(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(train_head, "_train_head", run_out)
    settings = TrainSettings(
        method="eagle", target="big", spec=ModelSpec(source="org/big"), out=tmp_path
    )
    with pytest.raises(ModelMemoryError, match=r"org/big.*cpu.*--tokens-per-batch.*--rows"):
        train_head.train_head(settings, CPU, (), None)


def test_a_nan_loss_ends_the_training(tmp_path):
    student = lab().student("medusa")
    next(iter(student.parameters.values())).data.fill_(torch.nan)

    with pytest.raises(ModelError, match=r"step 1.*--dtype float32"):
        trained(student, tmp_path / "state")


def test_held_out_texts_are_not_trained_on():
    texts = lab().texts
    settings = TrainSettings(
        method="eagle", target="any", spec=ModelSpec(source="any"), out=Path("any")
    )
    rows = [
        {
            tuple(row)
            for b in batches_for(settings, texts, CPU, held_out=flag)
            for row in b.ids_BT.tolist()
        }
        for flag in (False, True)
    ]

    assert not rows[0] & rows[1]
    assert len(rows[0] | rows[1]) == len(set(texts))
    assert rows[1]


def test_another_seed_gives_other_weights(tmp_path):
    bench, first, other = lab(), lab().student("eagle"), lab().student("eagle")
    for student, seed in ((first, 0), (other, 1)):
        path = tmp_path / str(seed)
        train(student, bench.teacher(student), bench.batches, plan(2, seed), path, SETTINGS, silent)

    assert any(not torch.equal(first.parameters[n], other.parameters[n]) for n in first.parameters)


def test_a_time_budget_shortens_the_training_schedule(tmp_path):
    bench, student = lab(), lab().student("medusa")
    short = plan(10_000)._replace(seconds=0.01)

    progress = train(
        student, bench.teacher(student), bench.batches, short, tmp_path / "state", SETTINGS, silent
    )

    assert progress.step == progress.steps == 20


def test_a_budget_also_limits_a_resumed_training(tmp_path):
    bench, path = lab(), tmp_path / "state"

    def stop(step: int, steps: int, loss: float) -> None:  # noqa: ARG001
        if step == 30:
            raise KeyboardInterrupt

    def continue_training(plan: Plan, report: StepCallback) -> TrainingProgress:
        student = lab().student("medusa")
        return train(student, bench.teacher(student), bench.batches, plan, path, SETTINGS, report)

    long = plan(10_000)._replace(save_every=25)
    with pytest.raises(KeyboardInterrupt):
        continue_training(long, stop)
    progress = continue_training(long._replace(seconds=0.01), silent)

    assert progress.step == progress.steps == 25 + 20


class Run:
    """A pickle that would run code."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return print, ("ran",)


def damage(path: Path, kind: str) -> None:
    content = torch.load(path, weights_only=True)
    name = next(iter(content["parameters"]))
    if kind == "code":
        path.write_bytes(pickle.dumps(Run()))
    elif kind == "code inside":
        torch.save({**content, "settings": Run()}, path)
    elif kind == "cut off":
        path.write_bytes(path.read_bytes()[:-500])
    elif kind == "a list":
        torch.save([1, 2], path)
    elif kind == "another shape":
        content["parameters"][name] = content["parameters"][name][:1]
        torch.save(content, path)
    elif kind == "another head":
        content["parameters"]["more"] = torch.zeros(1)
        torch.save(content, path)
    elif kind == "a step past the end":
        content["progress"]["step"] = 4
        torch.save(content, path)
    elif kind == "a word for a step":
        content["progress"]["step"] = "4"
        torch.save(content, path)
    elif kind == "another step":
        content["progress"]["stepp"] = 4
        torch.save(content, path)


@pytest.mark.parametrize(
    "kind",
    [
        "code",
        "code inside",
        "cut off",
        "a list",
        "another shape",
        "another head",
        "another step",
        "a step past the end",
        "a word for a step",
    ],
)
def test_a_damaged_training_checkpoint_is_refused(kind, tmp_path, capsys):
    path = tmp_path / "state"
    trained(lab().student("medusa"), path, steps=3)
    damage(path, kind)

    with pytest.raises(StoreError, match=r"cannot be resumed: .*; remove"):
        trained(lab().student("medusa"), path)

    assert "ran" not in capsys.readouterr().out


def test_training_with_other_settings_cannot_be_resumed(tmp_path):
    bench, student, path = lab(), lab().student("medusa"), tmp_path / "state"
    trained(student, path, steps=3)

    with pytest.raises(StoreError, match=r"seed 0.*7"):
        train(
            student,
            bench.teacher(student),
            bench.batches,
            plan(6),
            path,
            {**SETTINGS, "seed": 7},
            silent,
        )
