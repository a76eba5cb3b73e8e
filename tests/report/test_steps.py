"""The page's view of one generation, round by round, for a run and for rounds written by hand."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from specbench.decide.recommend import judge
from specbench.metrics.cell import CellData
from specbench.records import AnswerCheck, Interval, ReferenceRecord, RequestRecord, RoundLog
from specbench.report.blocks import shown_generations
from specbench.report.document import Document, build_document
from specbench.report.html import to_html
from specbench.report.steps import STEPS_LEGEND, ShownGeneration, generation_of
from tests.cell_keys import BASE_KEY, with_axes
from tests.made_records import made_request
from tests.report.stored_runs import SMALL, Wish, stored_run


def with_text(wish: Wish, pieces: Sequence[str]) -> Document:
    """A synthetic run whose first prompts have these pieces, repeatedly."""
    stored = stored_run(wish)
    lengths = {r.prompt_id: len(r.output_ids) for b in stored.blocks for r in b.requests}
    return build_document(
        replace(
            stored,
            references=tuple(
                ReferenceRecord(
                    target=wish.target,
                    workload=workload,
                    prompt_id=f"{workload}-0",
                    turn=0,
                    num_prompt_tokens=40,
                    output_ids=tuple(range(lengths[f"{workload}-0"])),
                    pieces=tuple(pieces[i % len(pieces)] for i in range(49)),
                )
                for workload in wish.workloads
            ),
        )
    )


def shown_text(generated: ShownGeneration) -> str:
    """The text as a reader sees it."""
    boxes = [step.accepted + step.bonus + step.after for step in generated.steps]
    return (generated.before + "".join(boxes)).replace("\u00a0", " ")


def test_each_workload_shows_the_generation_of_its_best_drafter() -> None:
    document = with_text(SMALL, [" word"])
    code, creative = shown_generations(document)
    winner = next(d for d in document.decisions if d.draft.k == 4)
    assert code.title == f"code: {winner.leader.source}, K=4, code-0"
    assert creative.title.startswith("creative: demo/draft, K=1")
    assert code.before == " word"
    assert shown_text(code) == " word" * 49
    assert any(step.num_rejected for step in creative.steps)
    assert code.steps[0].hover_text.startswith("Round 1: 4 drafted, ")


def test_the_drafter_nearest_to_a_speedup_is_shown_if_none_helps() -> None:
    document = with_text(SMALL, [" word"])
    speedups = {
        "draft": Interval(estimate=0.9, low=0.85, high=0.95),
        "poor": Interval(estimate=0.97, low=0.93, high=0.99),
    }
    decisions = tuple(
        replace(d, speedup=of, verdict=judge(of))
        for d in document.decisions
        for of in (speedups[d.leader.draft.drafter],)
    )
    code, creative = shown_generations(replace(document, decisions=decisions))
    assert code.title.startswith("code: demo/poor, ")
    assert creative.title.startswith("creative: demo/poor, ")


def test_line_ends_and_control_characters_are_shown_as_symbols() -> None:
    document = with_text(SMALL, ["\x1b[31m", "a\n"])
    code, _ = shown_generations(document)
    text = shown_text(code)
    assert "\x1b" not in text
    assert text.startswith("\u241b[31ma\u21b5\n")


def test_a_shown_generation_breaks_lines_after_whole_boxes() -> None:
    code, _ = shown_generations(with_text(SMALL, [" a", "b\n"]))
    ending = [step for step in code.steps if step.after]
    assert ending
    assert all((step.bonus or step.accepted).endswith("b\u21b5") for step in ending)
    assert not any((step.accepted + step.bonus).startswith(" ") for step in code.steps)


def test_a_run_without_stored_text_has_no_such_view(cpu_document: Document) -> None:
    assert shown_generations(cpu_document) == ()


CELL_KEY = with_axes(
    BASE_KEY, drafter="draft", method="draft_model", num_speculative_tokens=3, temperature=0.0
)
ROUNDS = RoundLog(
    num_drafted=(3, 3, 2),
    num_accepted=(2, 0, 2),
    num_emitted=(3, 1, 2),  # the budget of the last one ends before the target's own token
    round_s=(0.1, 0.2, 0.3),
)
REFERENCE = ReferenceRecord(
    target=CELL_KEY.condition.target,
    workload=CELL_KEY.condition.workload,
    prompt_id="p",
    turn=0,
    num_prompt_tokens=3,
    output_ids=tuple(range(7)),
    pieces=("a", "b", "c", "d", "e", "f", "g"),
)
REQUEST = made_request(CELL_KEY.id, "p", ROUNDS)


def generation(
    *requests: RequestRecord, references: Sequence[ReferenceRecord] = (REFERENCE,)
) -> ShownGeneration | None:
    return generation_of(CellData(key=CELL_KEY, requests=requests), references)


def test_every_piece_is_accepted_or_the_targets_own() -> None:
    generated = generation(REQUEST)
    assert generated is not None
    assert (generated.title.rpartition(", ")[2], generated.before, generated.more) == ("p", "a", "")
    parts = [(step.accepted, step.bonus, step.num_rejected) for step in generated.steps]
    assert parts == [("bc", "d", 1), ("", "e", 3), ("fg", "", 0)]
    assert generated.steps[0].hover_text == "Round 1: 3 drafted, 2 accepted, 100 ms"


def test_tokens_of_a_predicted_output_are_in_no_round() -> None:
    check = AnswerCheck(num_drafted=4, num_accepted=1, num_emitted=2, seconds=0.1)
    log = replace(ROUNDS, num_emitted=(2, 1, 1), num_accepted=(1, 0, 1))
    ids = tuple(range(7))
    generated = generation(made_request(CELL_KEY.id, "p", log, output_ids=ids, answer_check=check))
    assert generated is not None
    assert (generated.before, generated.steps[0].accepted) == ("abc", "d")


def test_the_first_request_with_a_stored_text_is_shown() -> None:
    other = made_request(CELL_KEY.id, "other", ROUNDS)
    failed = replace(REQUEST, finish_reason="failed")
    few = replace(ROUNDS, num_drafted=(3, 1, 2), num_accepted=(2, 1, 1))
    later = made_request(CELL_KEY.id, "later", few)
    upper = replace(REFERENCE, prompt_id="a-prompt-before", pieces=tuple("ABCDEFG"))
    requests = (other, failed, REQUEST, later)
    assert generation(*requests, references=(upper, REFERENCE)) == generation(REQUEST)


@pytest.mark.parametrize(
    "change",
    [
        {"pieces": None},
        {"workload": "other"},
        {"context": 1_000},
        {"output_ids": (9, *range(1, 7))},
    ],
)
def test_no_generation_is_shown_without_the_targets_own_text(change: dict[str, Any]) -> None:
    assert generation(REQUEST, references=[replace(REFERENCE, **change)]) is None


def test_no_generation_is_shown_above_temperature_0_and_without_rounds() -> None:
    warm = with_axes(CELL_KEY, temperature=1.0)
    assert generation_of(CellData(key=warm, requests=(REQUEST,)), [REFERENCE]) is None
    assert generation(replace(REQUEST, rounds=None)) is None


def test_a_very_long_generation_is_truncated_with_a_note() -> None:
    rounds = RoundLog(
        num_drafted=(1,) * 200,
        num_accepted=(0,) * 200,
        num_emitted=(1,) * 200,
        round_s=(0.1,) * 200,
    )
    long = replace(REFERENCE, output_ids=tuple(range(201)), pieces=("x",) * 201)
    generated = generation(made_request(CELL_KEY.id, "p", rounds), references=[long])
    assert generated is not None
    assert (len(generated.steps), generated.more) == (150, "and 50 more rounds")


@pytest.mark.usefixtures("without_charts")
def test_the_page_marks_every_part_of_a_round_with_hover_text() -> None:
    document = with_text(SMALL, [" The", " quick", " fox,\n", " jumps"])
    cut = {key: replace(g, more="and 3 more rounds") for key, g in document.generations.items()}
    document = replace(document, generations=cut)
    page = to_html([document])
    boxes = re.findall(r'<div class="steps"[^>]*>(.*?)</div>', page, re.DOTALL)
    part = r"(?:<ins>(.*?)</ins>)?(?:<b>(.*?)</b>)?(?:<del>\u2212(\d+)</del>)?"
    box = re.compile(rf'<span class="step" title="(.*?)">{part}</span>(\n?)', re.DOTALL)
    generations = shown_generations(document)
    assert len(boxes) == len(generations)
    for written, generated in zip(boxes, generations, strict=True):
        assert written.startswith(f"{generated.before}<span")
        assert written.endswith(f'<span class="muted">{generated.more}</span>')
        assert box.findall(written) == [
            (step.hover_text, step.accepted, step.bonus, str(step.num_rejected or ""), step.after)
            for step in generated.steps
        ]
    assert any(step.accepted and step.bonus and step.num_rejected for step in generations[0].steps)
    for i, step in enumerate(generations[0].steps):
        number, drafted, accepted = map(int, re.findall(r"\d+", step.hover_text)[:3])
        assert (number, drafted - accepted) == (i + 1, step.num_rejected)
    assert STEPS_LEGEND.split(",")[0] in page
