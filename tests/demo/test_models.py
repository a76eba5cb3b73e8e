"""The shipped models: intact, loadable in plain Hugging Face form, and sensible to read."""

import json

import pytest

from specbench.demo import MODELS, ROOT, WORKLOADS
from specbench.demo.corpus import REGISTERS, sample
from tools.demo.card import NAMES, head_facts, load, weights_sha256
from tools.demo.card_text import model_card
from tools.demo.documents import encode
from tools.demo.evaluation import (
    agreement,
    answers,
    distributions,
    most_repeated,
    parses,
    prompt_ids,
)


def prompts(register: str, tokenizer, count: int) -> list[list[int]]:
    text = (WORKLOADS / f"{register}.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    rows = [json.loads(line) for line in text]
    return [prompt_ids(tokenizer, line["turns"][0], line.get("system")) for line in rows]


@pytest.mark.parametrize("name", NAMES)
def test_the_bundled_weights_match_the_hashes_of_the_card(name: str, card: dict) -> None:
    assert weights_sha256(name) == card["models"][name]["sha256"]


def test_the_card_page_is_generated_from_the_card_data(card: dict) -> None:
    assert (ROOT / "MODEL_CARD.md").read_text(encoding="utf-8") == model_card(card, head_facts())


def test_the_model_card_states_how_the_heads_were_trained(card: dict) -> None:
    heads = head_facts()
    page = model_card(card, heads)
    for name, head in heads.items():
        row = next(line for line in page.split("\n") if line.startswith(f"| `{name}` |"))
        assert f"{head['head']['parameters']:,}" in row
        assert f"| {head['training']['steps']:,} |" in row
        assert f"{head['held_out']['acceptance_per_position'][-1]:.3f} |" in row
        assert all(source in page for source in head["texts"]["sources"])
    num_dirty = sum(head["commit"].endswith("-dirty") for head in heads.values())
    assert page.count("changes that were not committed") == num_dirty


def test_the_bundled_demo_stays_below_15_megabytes() -> None:
    files = [path for path in ROOT.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) < 15_000_000


@pytest.mark.parametrize("name", NAMES)
def test_all_models_have_the_same_tokenizer_and_end_mark(name: str) -> None:
    expected = (MODELS / "target" / "tokenizer.json").read_bytes()
    assert (MODELS / name / "tokenizer.json").read_bytes() == expected
    config = json.loads((MODELS / name / "generation_config.json").read_text(encoding="utf-8"))
    assert config["eos_token_id"] == 2


@pytest.mark.parametrize("register", REGISTERS)
def test_training_rows_are_what_the_chat_template_gives(register: str, tokenizer) -> None:
    for index in range(20):
        conversation = sample(register, index, 0)
        template = tokenizer.apply_chat_template(conversation.messages())["input_ids"]
        assert encode(conversation, tokenizer).ids == template


def test_text_survives_the_tokenizer(tokenizer) -> None:
    text = 'def f(x):\n    return x ** 10  # "naïve" café\n'
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.long
@pytest.mark.slow
def test_at_least_seven_of_ten_code_answers_are_valid_python(target, tokenizer) -> None:
    outputs = answers(target, prompts("code", tokenizer, 10), sampled=False)
    texts = [tokenizer.decode(answer.ids, skip_special_tokens=True) for answer in outputs]
    assert sum(map(parses, texts)) >= 7


@pytest.mark.long
@pytest.mark.slow
def test_greedy_stories_do_not_loop(target, tokenizer) -> None:
    outputs = answers(target, prompts("creative", tokenizer, 5), sampled=False)
    assert sum(most_repeated(answer.ids) <= 3 for answer in outputs) >= 4


@pytest.mark.long
@pytest.mark.slow
def test_the_good_draft_has_far_higher_acceptance_than_the_poor_one(target, tokenizer) -> None:
    ids = prompts("chat", tokenizer, 3)
    greedy, sampled = answers(target, ids, sampled=False), answers(target, ids, sampled=True)
    good = agreement(target, load("draft"), greedy, sampled)
    poor = agreement(target, load("poor"), greedy, sampled)
    assert good.alpha > poor.alpha + 0.2
    assert good.greedy > poor.greedy + 0.2


def test_the_target_agrees_with_itself_completely(target, tokenizer) -> None:
    ids = prompts("qa", tokenizer, 3)
    outputs = answers(target, ids, sampled=False)
    same = agreement(target, target, outputs, outputs)
    assert same.greedy == 1.0
    assert same.alpha == pytest.approx(1.0, abs=1e-5)


def test_a_greedy_answer_is_the_first_choice_of_each_distribution(target, tokenizer) -> None:
    (answer,) = answers(target, prompts("qa", tokenizer, 1), sampled=False)
    assert distributions(target, answer).argmax(-1).tolist() == answer.ids


def test_the_most_repeated_run_is_counted() -> None:
    assert most_repeated([1, 2, 1, 2, 1, 2], n=2) == 3
    assert most_repeated([1], n=2) == 0
