"""The page's view of one generation, round by round."""

import re
from collections.abc import Sequence
from dataclasses import replace

from specbench.records import Interval, ReferenceRecord
from specbench.report.blocks import shown_generations
from specbench.report.document import Document, build_document
from specbench.report.html import to_html
from specbench.report.steps import STEPS_LEGEND, ShownGeneration
from tests.report.stored_runs import SMALL, Wish, stored_run


def with_text(wish: Wish, pieces: Sequence[str]) -> Document:
    """A made-up run whose first prompts have these pieces, over and over."""
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


def shown(one: ShownGeneration) -> str:
    """The text as a reader sees it."""
    boxes = [step.accepted + step.bonus + step.after for step in one.steps]
    return (one.before + "".join(boxes)).replace("\u00a0", " ")


def test_each_workload_shows_the_generation_of_its_best_drafter() -> None:
    document = with_text(SMALL, [" word"])
    code, creative = shown_generations(document)
    winner = next(d for d in document.decisions if d.draft.k == 4)
    assert code.title == f"code: {winner.leader.source}, K=4, code-0"
    assert creative.title.startswith("creative: demo/draft, K=1")
    assert code.before == " word"
    assert shown(code) == " word" * 49
    assert any(step.num_rejected for step in creative.steps)
    assert code.steps[0].hover_text.startswith("Round 1: 4 drafted, ")
    told = re.findall("<del>\u2212(\\d+)</del>", to_html([document]))
    every = (*code.steps, *creative.steps)
    assert list(map(int, told)) == [step.num_rejected for step in every if step.num_rejected]


def test_the_drafter_nearest_to_a_speedup_is_shown_if_none_helps() -> None:
    document = with_text(SMALL, [" word"])
    speedups = {
        "draft": Interval(estimate=0.9, low=0.85, high=0.95),
        "poor": Interval(estimate=0.97, low=0.93, high=0.99),
    }
    decisions = tuple(
        replace(one, speedup=speedups[one.leader.draft.drafter]) for one in document.decisions
    )
    code, creative = shown_generations(replace(document, decisions=decisions))
    assert code.title.startswith("code: demo/poor, ")
    assert creative.title.startswith("creative: demo/poor, ")


def test_line_ends_and_control_characters_are_shown_as_symbols() -> None:
    document = with_text(SMALL, ["\x1b[31m", "a\n"])
    code, _ = shown_generations(document)
    text = shown(code)
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


def test_a_very_long_generation_is_truncated_with_a_note() -> None:
    document = with_text(SMALL, ["x"])
    long = {key: replace(one, rounds=one.rounds * 100) for key, one in document.generations.items()}
    code, _ = shown_generations(replace(document, generations=long))
    assert len(code.steps) == 150
    assert code.more.endswith("more rounds")


def test_the_page_marks_every_part_of_a_round_with_hover_text() -> None:
    document = with_text(SMALL, [" The", " quick", " fox,\n", " jumps"])
    long = {key: replace(one, rounds=one.rounds * 40) for key, one in document.generations.items()}
    document = replace(document, generations=long)
    page = to_html([document])
    boxes = re.findall(r'<div class="steps"[^>]*>(.*?)</div>', page, re.DOTALL)
    part = r"(?:<ins>(.*?)</ins>)?(?:<b>(.*?)</b>)?(?:<del>\u2212(\d+)</del>)?"
    box = re.compile(rf'<span class="step" title="(.*?)">{part}</span>(\n?)', re.DOTALL)
    told = shown_generations(document)
    assert len(boxes) == len(told)
    for written, one in zip(boxes, told, strict=True):
        assert written.startswith(f"{one.before}<span")
        assert written.endswith(f'<span class="muted">{one.more}</span>')
        assert box.findall(written) == [
            (step.hover_text, step.accepted, step.bonus, str(step.num_rejected or ""), step.after)
            for step in one.steps
        ]
    assert any(step.accepted and step.bonus and step.num_rejected for step in told[0].steps)
    for i, step in enumerate(told[0].steps):
        number, drafted, accepted = map(int, re.findall(r"\d+", step.hover_text)[:3])
        assert (number, drafted - accepted) == (i + 1, step.num_rejected)
    assert STEPS_LEGEND.split(",")[0] in page
