"""What is said before a later turn, whatever K it is asked at."""

from dataclasses import replace

import pytest

from specbench.bench.served.sessions import (
    Answers,
    cycle_of,
    request_of,
    served_cells,
    template_clock,
)
from specbench.records import Message, Prompt
from tests.bench.served.served_runs import plan_of
from tests.made_records import made_request

TAKES_DATE = "{% if not date_string %}{{ strftime_now('%d %b %Y') }}{% endif %}{{ date_string }}"
FIRST, SECOND = (
    (Message(role="user", content="Say hello"),),
    (Message(role="user", content="And again"),),
)
TALK = Prompt(id="p", turns=(FIRST, SECOND))
PLACE = {"turn": 1, "repeat": 3, "seed": 1}


def said(plan, answers, cell, own):
    """What stands between both turns."""
    later = request_of(plan, cell, TALK, **PLACE)
    first, answer, second = answers.completed(cell, later, [own]).messages
    assert ((first,), (second,)) == (FIRST, SECOND)
    return answer.content


def test_a_later_turn_follows_the_first_answer_without_speculation(tmp_path):
    plan = plan_of(tmp_path)
    plain, drafting, *_ = served_cells(plan, "vllm")
    answers = Answers()
    assert said(plan, answers, drafting, "its own") == "its own"  # nothing is known yet
    answer = made_request(plain.key.id, "p", None, text="Hello")
    answers.learn(plain, [replace(answer, finish_reason="failed", text="Hel"), answer])
    answers.learn(plain, [replace(answer, text="Hi")])
    assert (
        said(plan, answers, drafting, "its own") == said(plan, answers, plain, "its own") == "Hello"
    )


def test_an_answer_is_of_its_temperature(tmp_path):
    plan = plan_of(tmp_path, temperatures=(0.0, 0.7))
    cells = served_cells(plan, "vllm")
    cold, warm = (
        [cell for cell in cells if cell.key.condition.temperature == t] for t in (0.0, 0.7)
    )
    answers = Answers()
    answers.learn(cold[0], [made_request(cold[0].key.id, "p", None, text="Hello")])
    assert said(plan, answers, cold[1], "its own") == "Hello"
    assert said(plan, answers, warm[1], "its own") == "its own"


@pytest.mark.parametrize(
    ("template", "engine", "date", "args"),
    [
        ("{{ strftime_now('%d %b %Y') }}", "vllm", "server", {}),
        (TAKES_DATE, "vllm", "2024-07-26", {"date_string": "26 Jul 2024"}),
        (TAKES_DATE, "openai", "server", {}),  # its API has no arguments of templates
        ("{{ date_string }}", "vllm", "", {}),  # a prompt without one has none on any day
        (None, "vllm", None, {}),
    ],
)
def test_the_date_of_a_chat_template_is_sent_if_it_takes_one(
    tmp_path, template, engine, date, args
):
    plan = plan_of(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(template)
    model = replace(plan.target.model, source=str(tmp_path), folder=tmp_path)
    plan = replace(plan, target=replace(plan.target, model=model))
    assert template_clock(model, engine) == (date, args)
    (cell, *_) = served_cells(plan, "vllm")
    today = {"date_string": "today"}
    own = replace(TALK, template_args=today)
    assert request_of(plan, cell, own, **PLACE).template_args == today


def test_every_temperature_has_starts_of_its_own(tmp_path):
    """An engine may be told the temperature when it starts."""
    plan = plan_of(tmp_path, temperatures=(0.0, 0.7), num_speculative_tokens=(0, 2))
    up = list(cycle_of(served_cells(plan, "vllm"), 0))[:4]
    assert [(s.draft.k, s.temperature) for s in up] == [(0, 0.0), (0, 0.7), (2, 0.0), (2, 0.7)]
    assert all(c.key.condition.temperature == s.temperature for s in up for c in s.cells)
