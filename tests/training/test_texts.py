"""Texts that heads learn from: the target's own, stored as they come, without measured prompts."""

import json
from collections import Counter
from pathlib import Path

import pytest

from specbench.demo import MODELS, WORKLOADS
from specbench.errors import StoreError, UsageError, WorkloadError
from specbench.models.tokenizer import ChatTokenizer
from tests.decoding.models import generated, random_prompt, tiny_llama
from tests.training.tiny_target import CPU, VOCAB_SIZE, lab
from tools.training.teacher import batches_of, order
from tools.training.texts import (
    TextFile,
    TrainingPrompt,
    TrainingText,
    answer,
    corpus_questions,
    plan_answers,
    workload_questions,
)

ORIGIN = {"target_sha256": "abc", "seed": 0}
QUESTIONS = [
    TrainingPrompt(random_prompt(4 + i % 3, i, VOCAB_SIZE), is_held_out=i < 3) for i in range(10)
]


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer(str(MODELS / "target"), revision=None, trust_remote_code=False)


def answers(path: Path, num_texts: int = 12, temperatures: tuple[float, ...] = (0.0, 1.0)):
    jobs = plan_answers(QUESTIONS, temperatures, num_texts, seed=5)
    file = TextFile(path, ORIGIN, VOCAB_SIZE)
    answer(lab().target, (), jobs, file, max_new_tokens=6, num_rows=2, report=silent)
    return file.texts


def silent(done: int, total: int) -> None:
    """Ignores messages."""


@pytest.mark.slow
def test_corpus_prompts_are_not_in_the_bundled_workloads(tokenizer):
    corpus = corpus_questions(tokenizer, 400, seed=0, end=9300)
    first_turns = {
        tokenizer.prompt_ids(prompt.turns[0])
        for name in ("chat", "code", "creative", "qa", "edit")
        for prompt in load(WORKLOADS / f"{name}.jsonl")
    }

    assert len(first_turns) == 200
    assert not first_turns & {question.ids for question in corpus.questions}
    assert len(corpus.questions) > 500


def load(path: Path):
    from specbench.inputs.workloads import load_workload

    return load_workload(path.stem, folder=path.parent).prompts


@pytest.mark.slow
def test_a_twentieth_of_the_prompts_is_held_out_by_content(tokenizer):
    first, other = (corpus_questions(tokenizer, 400, seed, end=9300).questions for seed in (0, 1))

    held_out = {question.ids for question in first if question.is_held_out}
    assert held_out == {question.ids for question in other if question.is_held_out}
    assert not held_out & {question.ids for question in first if not question.is_held_out}
    assert 0.02 < len(held_out) / len(first) < 0.09
    assert [q.ids for q in first] != [q.ids for q in other]
    assert len({question.ids for question in first}) == len(first)


def test_at_least_one_of_few_prompts_is_held_out(tokenizer, tmp_path):
    path = tmp_path / "few.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Say {i}."}) + "\n" for i in range(3)))

    corpus = workload_questions((str(path),), tokenizer, 400, seed=0)

    assert sorted(question.is_held_out for question in corpus.questions)[-1]
    assert not corpus.questions[-1].is_held_out
    assert list(corpus.sources) == ["few.jsonl"]


def test_settings_that_training_texts_are_made_without_are_named(tokenizer, tmp_path):
    path = tmp_path / "own.jsonl"
    row = {"stop": "x", "thinking": True}
    path.write_text("".join(json.dumps({"prompt": f"Say {i}.", **row}) + "\n" for i in range(3)))
    (note,) = workload_questions((str(path),), tokenizer, 400, seed=0).notes
    assert note.startswith("own.jsonl: ")
    assert note.endswith(" stop")


def test_prompts_that_are_all_too_long_are_a_usage_error(tokenizer, tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"prompt": "long " * 400}) + "\n")

    with pytest.raises(UsageError, match="no prompts are left for training of 1"):
        workload_questions((str(path),), tokenizer, 100, seed=0)


def test_a_single_prompt_is_not_enough_for_training(tokenizer, tmp_path):
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"prompt": "Say 1."}) + "\n")

    with pytest.raises(UsageError, match=r"two prompts.*--workload"):
        workload_questions((str(path),), tokenizer, 100, seed=0)


def test_a_missing_file_is_a_workload_error(tokenizer):
    with pytest.raises(WorkloadError, match="no-such"):
        workload_questions(("./no-such.jsonl",), tokenizer, 100, seed=0)


def test_held_out_prompts_are_answered_greedily_as_transformers_does(tmp_path):
    texts = answers(tmp_path / "texts.jsonl")
    model = tiny_llama(vocab_size=VOCAB_SIZE, num_hidden_layers=3)

    for text in (text for text in texts if text.is_held_out):
        prompt, output = text.ids[: text.num_prompt], text.ids[text.num_prompt :]
        assert output == generated(model, prompt, 6)
    assert [text.is_held_out for text in texts] == [True] * 3 + [False] * 12


def test_repeated_prompts_need_sampled_training_answers(tmp_path):
    texts = answers(tmp_path / "sampled.jsonl", num_texts=30)
    greedy = plan_answers(QUESTIONS, (0.0,), 30, seed=0)

    counts = Counter(text.ids[: text.num_prompt] for text in texts if not text.is_held_out)
    assert sum(counts.values()) == 30
    assert len(set(texts)) == len(texts)
    assert len(greedy) == len(QUESTIONS)


def test_a_killed_run_resumes_with_its_stored_answers(tmp_path):
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    texts = answers(whole)
    content = whole.read_bytes()
    cut.write_bytes(content[: content.index(b"\n", 500) + 9])  # in the middle of a line

    assert len(TextFile(cut, ORIGIN, VOCAB_SIZE).texts) < len(texts)
    assert answers(cut) == texts
    assert cut.read_bytes() == content


def test_a_foreign_file_is_refused_and_unchanged_by_training(tmp_path):
    path = tmp_path / "notes.md"
    path.write_text("a line\nand a last one without an end")

    with pytest.raises(StoreError, match="remove the file"):
        TextFile(path, ORIGIN, VOCAB_SIZE)
    assert path.read_text() == "a line\nand a last one without an end"
    with pytest.raises(StoreError, match="cannot be read"):
        TextFile(tmp_path, ORIGIN, VOCAB_SIZE)


def test_two_trainings_do_not_mix_their_texts(tmp_path):
    first, other = (TextFile(tmp_path / "texts.jsonl", ORIGIN, VOCAB_SIZE) for _ in range(2))
    first.add([TrainingText((1, 2, 3), 1, is_held_out=True)])

    with pytest.raises(StoreError, match="another training"):
        other.add([TrainingText((4, 5, 6), 1, is_held_out=True)])
    assert TextFile(tmp_path / "texts.jsonl", ORIGIN, VOCAB_SIZE).texts == first.texts


def test_fewer_training_texts_are_a_prefix_of_more(tmp_path):
    assert answers(tmp_path / "few.jsonl", 4) == answers(tmp_path / "many.jsonl", 7)[:7]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[[1, 2, 3], 2]", ":2: not a text of this target"),
        ("[[1, 2, 99], 2, false]", ":2: not a text of this target"),
        ("[[1, 2, true], 2, false]", ":2: not a text of this target"),
        ("[[1, 2, 3], 3, false]", ":2: not a text of this target"),
        ("[[1, 2, 3], 0, false]", ":2: not a text of this target"),
        ('{"ids": []}', ":2: not a text of this target"),
        ("[[1, 2", ":2: .*remove the file"),
        ("[" * 100_000, ":2: .*remove the file"),
    ],
)
def test_a_line_that_is_not_text_is_refused(line, says, tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text(f"{json.dumps(ORIGIN)}\n{line}\n")

    with pytest.raises(StoreError, match=says):
        TextFile(path, ORIGIN, VOCAB_SIZE)


@pytest.mark.parametrize("first", ['{"target_sha256": "other", "seed": 0}', "[1]", "7"])
def test_texts_of_another_target_are_refused(first, tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text(f"{first}\n")

    with pytest.raises(StoreError, match="target_sha256"):
        TextFile(path, ORIGIN, VOCAB_SIZE)


def test_batches_have_every_token_once_and_no_padding_is_learned():
    texts = [TrainingText(tuple(range(1, 4 + i)), 2, is_held_out=False) for i in range(40)]

    batches = batches_of(texts, 128, 32, 0, CPU)

    rows = [
        (tuple(ids[: len_of(ids)]), int(flags.sum()))
        for batch in batches
        for ids, flags in zip(batch.ids_BT.tolist(), batch.is_answer_BT, strict=True)
    ]
    cut = [(text.ids[:32], min(len(text.ids), 32) - 2) for text in texts]
    assert sorted(rows) == sorted(cut)
    assert [batch.number for batch in batches] == list(range(len(batches)))


def len_of(ids: list[int]) -> int:
    return ids.index(0) if 0 in ids else len(ids)


def test_every_epoch_has_every_batch_and_a_resumed_one_the_rest():
    steps = order(5, seed=3)
    first, second = ([next(steps) for _ in range(5)] for _ in range(2))

    assert sorted(first) == sorted(second) == list(range(5))
    assert first != second
    resumed = order(5, seed=3, first=7)
    assert [next(resumed) for _ in range(3)] == second[2:]
